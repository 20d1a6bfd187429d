package transport

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/spf13/pflag"
)

// System is the value of --tls-ca that stands for the system's authorities.
const System = "system"

// Flags configure a program's connections. The zero value is plaintext on this machine.
type Flags struct {
	// Cert and Key are PEM files: the certificate with its intermediates, and its key.
	Cert, Key string
	// CA is a PEM file of the authorities of dialled servers, or System. "": plaintext.
	CA string
	// ServerName is the name that a server's certificate must have. "": the dialled host, unless
	// ServerSANs is set.
	ServerName string
	// ServerSANs are texts for ParseSAN. A server's certificate must have one of these names, and
	// the dialled host does not matter.
	ServerSANs []string
	// ClientCA is a PEM file of the authorities of callers. "": callers need no certificate.
	ClientCA string
	// ClientSANs are texts for ParseSAN. A caller's certificate must have one of these names.
	// Empty: every certificate of ClientCA is accepted.
	ClientSANs []string
	// MaxConnections bounds the connections of one address; 0: no bound.
	MaxConnections int
	// Insecure allows plaintext with other machines if the other flags do not request TLS.
	Insecure bool
}

// defaultMaxConnections is more than the clients of one machine, or those that share an address,
// need.
const defaultMaxConnections = 4096

// AddServerFlags adds the flags of a server to fs. A program that is both server and client calls
// AddClientFlags too.
func (f *Flags) AddServerFlags(fs *pflag.FlagSet) {
	f.addCommon(fs)
	fs.IntVar(&f.MaxConnections, "max-connections-per-address", defaultMaxConnections, "connections that one address of callers may have; 0: any number")
	fs.StringVar(&f.ClientCA, "tls-client-ca", f.ClientCA, "file of the authorities of callers, in PEM: callers must present a certificate of one of them (default: no certificate is needed)")
	fs.StringSliceVar(&f.ClientSANs, "tls-client-san", f.ClientSANs, "names of which a caller's certificate must have one, to the letter: dns:NAME, uri:spiffe://DOMAIN/PATH or ip:ADDRESS, separated by commas (default: any)")
}

// AddClientFlags adds the flags of a client to fs.
func (f *Flags) AddClientFlags(fs *pflag.FlagSet) {
	f.addCommon(fs)
	fs.StringVar(&f.CA, "tls-ca", f.CA, "file of the authorities of the servers that are dialled, in PEM, or "+System+" for those that this machine trusts; turns TLS on (default: plaintext)")
	fs.StringVar(&f.ServerName, "tls-server-name", f.ServerName, "name that the certificates of servers must have (default: the host that is dialled)")
	fs.StringSliceVar(&f.ServerSANs, "tls-server-san", f.ServerSANs, "names of which a server's certificate must have one, instead of the host that is dialled: dns:NAME, uri:spiffe://DOMAIN/PATH or ip:ADDRESS, separated by commas")
}

// addCommon adds the flags that servers and clients share.
func (f *Flags) addCommon(fs *pflag.FlagSet) {
	if fs.Lookup("tls-cert") != nil {
		return
	}
	fs.StringVar(&f.Cert, "tls-cert", f.Cert, "file of this program's certificate and those that lead to its authority, in PEM")
	fs.StringVar(&f.Key, "tls-key", f.Key, "file of its key, in PEM")
	fs.BoolVar(&f.Insecure, "insecure", f.Insecure, "allow plaintext with other machines where no certificate is given: for private networks alone")
}

// CheckListen refuses to serve other machines in plaintext without --insecure.
func (f *Flags) CheckListen(address string) error {
	if f.Cert != "" || f.Key != "" || f.Insecure || IsLocal(address) {
		return nil
	}
	return fmt.Errorf("--listen %q: would serve other machines in plaintext: give --tls-cert and --tls-key (millrace certs makes them for development), listen on 127.0.0.1, or give --insecure if the network is private", address)
}

// CheckDial refuses to dial another machine in plaintext without --insecure. flag is the flag that
// named the address.
func (f *Flags) CheckDial(flag, address string) error {
	if f.CA != "" || f.Insecure || IsLocal(address) {
		return nil
	}
	return fmt.Errorf("%s %q: would be dialled in plaintext, and is another machine: give --tls-ca, or --insecure if the network is private", flag, address)
}

// CheckClient is CheckDial and Check for a program that is not a server.
func (f *Flags) CheckClient(flag, address string) error {
	if f.Cert != "" && f.CA == "" {
		return errors.New("--tls-cert: needs --tls-ca, since a certificate is shown over TLS alone")
	}
	return errors.Join(f.CheckDial(flag, address), f.Check())
}

// Check refuses contradictory flags and unusable files.
func (f *Flags) Check() error {
	var wrong []error
	needs := func(given bool, flag, needed, why string) {
		if given {
			wrong = append(wrong, fmt.Errorf("%s: needs %s, %s", flag, needed, why))
		}
	}
	needs(f.Cert != "" && f.Key == "", "--tls-cert", "--tls-key", "the key of that certificate")
	needs(f.Key != "" && f.Cert == "", "--tls-key", "--tls-cert", "the certificate of that key")
	needs(f.ClientCA != "" && f.Cert == "", "--tls-client-ca", "--tls-cert", "since callers show certificates over TLS alone")
	needs(len(f.ClientSANs) > 0 && f.ClientCA == "", "--tls-client-san", "--tls-client-ca", "since a name counts only if an authority vouches for it")
	needs(f.ServerName != "" && f.CA == "", "--tls-server-name", "--tls-ca", "since a name counts only if an authority vouches for it")
	needs(len(f.ServerSANs) > 0 && f.CA == "", "--tls-server-san", "--tls-ca", "since a name counts only if an authority vouches for it")
	if f.MaxConnections < 0 {
		wrong = append(wrong, fmt.Errorf("--max-connections-per-address %d: want 1 or more, or 0 for any number", f.MaxConnections))
	}
	if f.ClientCA == System {
		wrong = append(wrong, errors.New("--tls-client-ca: want a file: those that this machine trusts vouch for anybody (a file of that name is ./"+System+")"))
	}
	if _, err := ParseSANs(f.ClientSANs); err != nil {
		wrong = append(wrong, fmt.Errorf("--tls-client-san: %w", err))
	}
	if _, err := ParseSANs(f.ServerSANs); err != nil {
		wrong = append(wrong, fmt.Errorf("--tls-server-san: %w", err))
	}
	if len(wrong) > 0 {
		return errors.Join(wrong...)
	}
	for _, files := range []files{f.serverFiles(), f.clientFiles()} {
		if _, _, err := files.load(); err != nil {
			return err
		}
	}
	return nil
}

// serverFiles returns the files of a server.
func (f *Flags) serverFiles() files {
	return files{cert: f.Cert, key: f.Key, ca: f.ClientCA, caFlag: "--tls-client-ca"}
}

// clientFiles returns the files of a client.
func (f *Flags) clientFiles() files {
	return files{cert: f.Cert, key: f.Key, ca: f.CA, caFlag: "--tls-ca"}
}

// IsLocal reports whether traffic to an address cannot leave this machine: a Unix socket,
// localhost, or a loopback address. It does not look up other names, because the result may change.
func IsLocal(address string) bool {
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
