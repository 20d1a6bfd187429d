package transport

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"

	"github.com/millrace/millrace/services/internal/filewatch"
)

// files are the paths of certificates; "" means none.
type files struct {
	cert, key, ca string
	caFlag        string // the flag that names ca
}

// contents are the bytes of files. Equal contents hold the same certificates.
type contents struct{ cert, key, ca string }

// material is the parsed content of files.
type material struct {
	// certificate is this program's own, nil if it has none.
	certificate *tls.Certificate
	// authorities verify others; nil: those of the system.
	authorities *x509.CertPool
}

// load reads the files. Its errors name flag and file.
func (f files) load() (contents, material, error) {
	read, err := f.read()
	if err != nil {
		return contents{}, material{}, err
	}
	m, err := f.parse(read)
	return read, m, err
}

// read reads the bytes of the files.
func (f files) read() (c contents, err error) {
	for _, file := range []struct {
		flag, path string
		to         *string
	}{{"--tls-cert", f.cert, &c.cert}, {"--tls-key", f.key, &c.key}, {f.caFlag, f.ca, &c.ca}} {
		if file.path == "" || file.path == System && file.to == &c.ca {
			continue
		}
		text, err := filewatch.File(file.path)
		if err != nil {
			return contents{}, fmt.Errorf("%s: %w", file.flag, err)
		}
		*file.to = text
	}
	return c, nil
}

// parse parses the bytes of the files.
func (f files) parse(c contents) (material, error) {
	var m material
	if f.cert != "" {
		pair, err := tls.X509KeyPair([]byte(c.cert), []byte(c.key))
		if err != nil {
			return material{}, fmt.Errorf("--tls-cert %s with --tls-key %s: %w", f.cert, f.key, err)
		}
		m.certificate = &pair
	}
	if f.ca != "" && f.ca != System {
		pool, err := authorities([]byte(c.ca))
		if err != nil {
			return material{}, fmt.Errorf("%s %s: %w", f.caFlag, f.ca, err)
		}
		m.authorities = pool
	}
	return m, nil
}

// authorities parses every certificate of a PEM file. One that is malformed is an error, because
// without it peers that it verifies would be refused.
func authorities(text []byte) (*x509.CertPool, error) {
	pool, n := x509.NewCertPool(), 0
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("it has a %s: want certificates in PEM and nothing else", block.Type)
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", n+1, err)
		}
		pool.AddCert(c)
		n++
	}
	if n == 0 {
		return nil, errors.New("it has no certificate: want certificates in PEM")
	}
	return pool, nil
}
