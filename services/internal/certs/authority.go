package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/services/internal/transport"
)

// errNoAuthority: a certificate is not one that vouches for others.
var errNoAuthority = errors.New("not the certificate of an authority")

// Pair is a certificate and its key, each in PEM.
type Pair struct{ Cert, Key []byte }

// Authority vouches for leaves.
type Authority struct {
	// Pair is its own certificate and key.
	Pair
	certificate *x509.Certificate
	key         any
}

// New makes an authority of a name that is valid from one time to another.
func New(name string, from, to time.Time) (*Authority, error) {
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, NotBefore: from, NotAfter: to,
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	pair, err := sign(template, nil)
	if err != nil {
		return nil, err
	}
	return Load(pair)
}

// Load is the authority whose certificate and key these are.
func Load(pair Pair) (*Authority, error) {
	both, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		return nil, err
	}
	if !both.Leaf.IsCA {
		return nil, errNoAuthority
	}
	return &Authority{Pair: pair, certificate: both.Leaf, key: both.PrivateKey}, nil
}

// Issue makes a leaf with these names that is valid from one time to another, but no longer than the authority.
func (a *Authority) Issue(name string, sans []transport.SAN, from, to time.Time) (Pair, error) {
	if to.After(a.certificate.NotAfter) {
		return Pair{}, fmt.Errorf("the authority ends at %s: make another one", a.certificate.NotAfter.UTC().Format(time.RFC3339))
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, NotBefore: from, NotAfter: to, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, san := range sans {
		san.AddTo(template)
	}
	return sign(template, a)
}

// sign makes a key and its certificate; by nil, one that vouches for itself.
func sign(template *x509.Certificate, by *Authority) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, err
	}
	parent, signer := template, any(key)
	if by != nil {
		parent, signer = by.certificate, by.key
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		return Pair{}, fmt.Errorf("make certificate: %w", err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Pair{}, fmt.Errorf("write key: %w", err)
	}
	return Pair{
		Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}),
		Key:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}),
	}, nil
}
