// Package certstest writes certificates for tests into folders that go with the test.
//
// Only tests import it. It knows no server.
package certstest
