package transport

import (
	"net"
	"strings"
)

// StaysHere reports whether what is sent to an address cannot leave this machine: a Unix socket, localhost, or a loopback
// address. Other names are not looked up: what they mean may change.
func StaysHere(address string) bool {
	for _, local := range []string{"unix:", "unix-abstract:"} {
		if strings.HasPrefix(address, local) {
			return true
		}
	}
	address = strings.TrimLeft(strings.TrimPrefix(address, "dns:"), "/")
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
