// Package version names the build.
//
// Release builds set it with -ldflags "-X
// github.com/millrace/millrace/services/internal/version.Version=v1.2.3"; other builds use the
// version that the Go tool recorded. Every program prints String for --version and sends it in its
// user agent.
package version
