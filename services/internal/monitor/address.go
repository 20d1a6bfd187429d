package monitor

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// Addresses are a process's listen addresses; "" means none.
type Addresses struct {
	// Listen is the address of its service.
	Listen string
	// Metrics and Profiles are the values of --metrics-listen and --pprof-listen.
	Metrics, Profiles string
	// Console is the value of --console-listen, which only schedulers have.
	Console string
}

// Validate returns all errors, each with its flag.
func (a Addresses) Validate() error {
	var wrong []error
	check := func(flag, address, what string) {
		switch {
		case address == "":
		case !wellFormed(address):
			wrong = append(wrong, fmt.Errorf("%s %q: want host:port or unix:PATH", flag, address))
		case clash(address, a.Listen):
			wrong = append(wrong, fmt.Errorf("%s %q: is --listen; %s need an address of their own", flag, address, what))
		}
	}
	check("--metrics-listen", a.Metrics, "metrics")
	check("--pprof-listen", a.Profiles, "profiles")
	check("--console-listen", a.Console, "browsers")
	for _, other := range [][2]string{{"--metrics-listen", a.Metrics}, {"--pprof-listen", a.Profiles}} {
		if a.Console != "" && clash(a.Console, other[1]) {
			wrong = append(wrong, fmt.Errorf("--console-listen %q: is %s; browsers need an address of their own", a.Console, other[0]))
		}
	}
	switch {
	case a.Profiles == "":
	case clash(a.Profiles, a.Metrics):
		wrong = append(wrong, fmt.Errorf("--pprof-listen %q: is --metrics-listen; profiles need an address of their own", a.Profiles))
	case !loopback(a.Profiles):
		wrong = append(wrong, fmt.Errorf("--pprof-listen %q: want a loopback address such as 127.0.0.1:6060, or unix:PATH: profiles show what "+
			"the process does, and cost it time", a.Profiles))
	}
	return errors.Join(wrong...)
}

// unix reports whether an address is a path.
func unix(address string) bool { return strings.HasPrefix(address, "unix:") }

func wellFormed(address string) bool {
	_, port, err := net.SplitHostPort(address)
	return unix(address) || err == nil && port != ""
}

// clash reports whether two addresses cannot both be listened on.
func clash(a, b string) bool {
	if unix(a) || unix(b) {
		return a == b
	}
	hostA, portA, errA := net.SplitHostPort(a)
	hostB, portB, errB := net.SplitHostPort(b)
	return errA == nil && errB == nil && portA == portB && portA != "0" && (hostA == hostB || everywhere(hostA) || everywhere(hostB))
}

// everywhere reports whether a host stands for all addresses.
func everywhere(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "" || err == nil && ip.IsUnspecified()
}

// loopback reports whether an address is reachable from this machine only, whatever names resolve
// to.
func loopback(address string) bool {
	if unix(address) {
		return true
	}
	host, _, err := net.SplitHostPort(address)
	ip, notIP := netip.ParseAddr(host)
	return err == nil && notIP == nil && ip.Unmap().IsLoopback()
}
