// Package certs makes certificates for development and tests.
//
// New makes an authority, Load reads one, and Issue makes certificates for servers and clients.
// Keys are ECDSA on P-256, and everything is PEM in memory. The package writes no file, reads no
// clock and knows no program. It does not replace a company's authority, which protects its key and
// can revoke certificates.
package certs
