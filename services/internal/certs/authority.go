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

// errNoAuthority reports a certificate that is not an authority's.
var errNoAuthority = errors.New("not the certificate of an authority")

// Pair is a certificate and its key in PEM.
type Pair struct{ Cert, Key []byte }

// Authority issues certificates.
type Authority struct {
	// Pair is its own certificate and key.
	Pair
	certificate *x509.Certificate
	key         any
}

// New returns a new authority with a name and a period of validity.
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

// Load returns the authority of a certificate and its key.
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

// Issue returns a certificate with these names and a period of validity, which ends with the
// authority's at the latest.
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

// sign returns a new key with its certificate. by is the issuer; nil makes it self-signed.
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
