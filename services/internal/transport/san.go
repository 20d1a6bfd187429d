package transport

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
)

// Kinds of names: the text before the colon.
const (
	kindDNS = "dns"
	kindURI = "uri"
	kindIP  = "ip"
)

// errSAN reports a text that is not a subject alternative name.
var errSAN = errors.New("want dns:NAME, uri:URI or ip:ADDRESS")

// SAN is a subject alternative name of a certificate. Equal values are the same name.
type SAN struct{ kind, value string }

// ParseSAN parses "dns:NAME", "uri:URI", for example a SPIFFE id, or "ip:ADDRESS".
func ParseSAN(text string) (SAN, error) {
	kind, value, _ := strings.Cut(text, ":")
	switch kind {
	case kindDNS:
		if value == "" || strings.ContainsAny(value, " :/@") {
			return SAN{}, fmt.Errorf("%q: %w", text, errSAN)
		}
		return dnsSAN(value), nil
	case kindURI:
		if u, err := url.Parse(value); err != nil || u.Scheme == "" || u.Host == "" {
			return SAN{}, fmt.Errorf("%q: %w, where a URI has a scheme and a host, such as spiffe://example.org/scheduler", text, errSAN)
		}
		return SAN{kindURI, value}, nil
	case kindIP:
		ip := net.ParseIP(value)
		if ip == nil {
			return SAN{}, fmt.Errorf("%q: %w", text, errSAN)
		}
		return SAN{kindIP, ip.String()}, nil
	}
	return SAN{}, fmt.Errorf("%q: %w", text, errSAN)
}

// dnsSAN returns the SAN of a DNS name, whose case does not matter.
func dnsSAN(name string) SAN { return SAN{kindDNS, strings.ToLower(name)} }

// ParseSANs parses several names. Its error has each text that is not one.
func ParseSANs(texts []string) ([]SAN, error) {
	sans, wrong := make([]SAN, 0, len(texts)), []error(nil)
	for _, text := range texts {
		san, err := ParseSAN(text)
		if err != nil {
			wrong = append(wrong, err)
		}
		sans = append(sans, san)
	}
	return sans, errors.Join(wrong...)
}

// String returns the text that ParseSAN parses.
func (s SAN) String() string { return s.kind + ":" + s.value }

// AddTo adds the name to a certificate template.
func (s SAN) AddTo(template *x509.Certificate) {
	switch s.kind {
	case kindDNS:
		template.DNSNames = append(template.DNSNames, s.value)
	case kindURI:
		if u, err := url.Parse(s.value); err == nil { // never fails, because ParseSAN has parsed it
			template.URIs = append(template.URIs, u)
		}
	case kindIP:
		template.IPAddresses = append(template.IPAddresses, net.ParseIP(s.value))
	}
}

// sansOf returns the names of a certificate.
func sansOf(c *x509.Certificate) []SAN {
	var all []SAN
	for _, name := range c.DNSNames {
		all = append(all, dnsSAN(name))
	}
	for _, u := range c.URIs {
		all = append(all, SAN{kindURI, u.String()})
	}
	for _, ip := range c.IPAddresses {
		all = append(all, SAN{kindIP, ip.String()})
	}
	return all
}

// hasOne reports whether a certificate has one of the names literally. Wildcards are not expanded.
func hasOne(c *x509.Certificate, allowed []SAN) bool {
	for _, have := range sansOf(c) {
		for _, want := range allowed {
			if have == want {
				return true
			}
		}
	}
	return false
}

// namesOf returns the names of a certificate for people.
func namesOf(c *x509.Certificate) string {
	names := make([]string, 0, 4)
	for _, s := range sansOf(c) {
		names = append(names, s.String())
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}
