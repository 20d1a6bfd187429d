// Package certstest writes certificates for tests into temporary folders.
//
// Only tests import it. It knows no server.
package certstest
