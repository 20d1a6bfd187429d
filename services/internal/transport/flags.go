package transport

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"
)

// System is the value of --tls-ca that stands for the authorities that this machine trusts.
const System = "system"

// Flags are what a program was told about its connections. The zero value is plaintext on this machine.
type Flags struct {
	// Cert and Key are PEM files: the certificate with those that lead to its authority, and its key.
	Cert, Key string
	// CA is a PEM file of the authorities of the servers that are dialled, or System. Empty: they are dialled in plaintext.
	CA string
	// ServerName is the name that their certificates must have. Empty: the host that is dialled, unless there are ServerSANs.
	ServerName string
	// ServerSANs are texts for ParseSAN. Their certificates must have one of these; then the host that is dialled does not count.
	ServerSANs []string
	// ClientCA is a PEM file of the authorities of callers. Empty: callers need no certificate.
	ClientCA string
	// ClientSANs are texts for ParseSAN: callers' certificates must have one of these. Empty: all that ClientCA vouches for may call.
	ClientSANs []string
	// MaxConnections is how many connections a server takes of one address; 0: any number.
	MaxConnections int
	// Insecure allows plaintext with other machines, where the other flags do not ask for TLS.
	Insecure bool
}

// defaultMaxConnections is above what a machine has of one caller, and what many behind one address have.
const defaultMaxConnections = 4096

// Serves puts the flags of a server on fs. A program that is both server and client calls Dials too.
func (f *Flags) Serves(fs *pflag.FlagSet) {
	f.own(fs)
	fs.IntVar(&f.MaxConnections, "max-connections-per-address", defaultMaxConnections, "connections that one address of callers may have; 0: any number")
	fs.StringVar(&f.ClientCA, "tls-client-ca", f.ClientCA, "file of the authorities of callers, in PEM: who calls must show a certificate of theirs (default: anyone may call)")
	fs.StringSliceVar(&f.ClientSANs, "tls-client-san", f.ClientSANs, "names of which a caller's certificate must have one, to the letter: dns:NAME, uri:spiffe://DOMAIN/PATH or ip:ADDRESS, separated by commas (default: any)")
}

// Dials puts the flags of a client on fs.
func (f *Flags) Dials(fs *pflag.FlagSet) {
	f.own(fs)
	fs.StringVar(&f.CA, "tls-ca", f.CA, "file of the authorities of the servers that are dialled, in PEM, or "+System+" for those that this machine trusts; turns TLS on (default: plaintext)")
	fs.StringVar(&f.ServerName, "tls-server-name", f.ServerName, "name that the certificates of servers must have (default: the host that is dialled)")
	fs.StringSliceVar(&f.ServerSANs, "tls-server-san", f.ServerSANs, "names of which a server's certificate must have one, in the place of the host that is dialled: dns:NAME, uri:spiffe://DOMAIN/PATH or ip:ADDRESS, separated by commas")
}

// own are the flags that servers and clients have both.
func (f *Flags) own(fs *pflag.FlagSet) {
	if fs.Lookup("tls-cert") != nil {
		return
	}
	fs.StringVar(&f.Cert, "tls-cert", f.Cert, "file of this program's certificate and those that lead to its authority, in PEM")
	fs.StringVar(&f.Key, "tls-key", f.Key, "file of its key, in PEM")
	fs.BoolVar(&f.Insecure, "insecure", f.Insecure, "allow plaintext with other machines where no certificate is given: for private networks alone")
}

// CheckListen refuses to serve other machines in plaintext without --insecure.
func (f *Flags) CheckListen(address string) error {
	if f.Cert != "" || f.Key != "" || f.Insecure || StaysHere(address) {
		return nil
	}
	return fmt.Errorf("--listen %q: would serve other machines in plaintext: give --tls-cert and --tls-key (millrace certs makes them for development), listen on 127.0.0.1, or give --insecure if the network is private", address)
}

// CheckDial refuses to dial another machine in plaintext without --insecure; flag is the one that named the address.
func (f *Flags) CheckDial(flag, address string) error {
	if f.CA != "" || f.Insecure || StaysHere(address) {
		return nil
	}
	return fmt.Errorf("%s %q: would be dialled in plaintext, and is another machine: give --tls-ca, or --insecure if the network is private", flag, address)
}

// CheckClient is CheckDial and Check for a program that serves nobody.
func (f *Flags) CheckClient(flag, address string) error {
	if f.Cert != "" && f.CA == "" {
		return errors.New("--tls-cert: needs --tls-ca, since a certificate is shown over TLS alone")
	}
	return errors.Join(f.CheckDial(flag, address), f.Check())
}

// Check refuses flags that contradict each other, and files that cannot be used.
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

// serverFiles are those of a server.
func (f *Flags) serverFiles() files {
	return files{cert: f.Cert, key: f.Key, ca: f.ClientCA, caFlag: "--tls-client-ca"}
}

// clientFiles are those of a client.
func (f *Flags) clientFiles() files {
	return files{cert: f.Cert, key: f.Key, ca: f.CA, caFlag: "--tls-ca"}
}
