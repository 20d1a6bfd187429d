// Package certs makes certificates for development and tests: an authority, and leaves that it vouches for.
//
// New makes an authority, Load reads one, Issue makes leaves, which serve and call alike. All is ECDSA on P-256 and PEM in
// memory. The package writes no file, reads no clock and knows no program; what it makes is no substitute for the authority of a
// company, which keeps its key elsewhere and can take a certificate back.
package certs
