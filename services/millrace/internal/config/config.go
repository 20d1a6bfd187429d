package config

import (
	"cmp"
	"os"

	"github.com/millrace/millrace/services/internal/auth"
	"github.com/millrace/millrace/services/internal/telemetry"
	"github.com/millrace/millrace/services/internal/transport"
)

// DefaultTarget is where a scheduler listens by default.
const DefaultTarget = "localhost:7070"

// Config has the settings from the environment.
type Config struct {
	// Target is the server's address: host:port, dns:///name:port or unix:PATH. MILLRACE_TARGET; DefaultTarget.
	Target string
	// Transport is how the server is spoken to: CA, Cert, Key and ServerName. MILLRACE_TLS_CA, MILLRACE_TLS_CERT, MILLRACE_TLS_KEY,
	// MILLRACE_TLS_SERVER_NAME; plaintext.
	Transport transport.Flags
	// Auth is the token that the server is shown. MILLRACE_TOKEN is the token itself, MILLRACE_TOKEN_FILE a file of it; none.
	Auth auth.Flags
	// Plain means that terminals get no colours: NO_COLOR is set and not empty, or TERM is dumb.
	Plain bool
	// Telemetry is whether traces are sent: the OTEL_ variables.
	Telemetry telemetry.Settings
}

// Load reads the environment.
func Load() Config {
	return Config{
		Target: cmp.Or(os.Getenv("MILLRACE_TARGET"), DefaultTarget),
		Transport: transport.Flags{
			CA: os.Getenv("MILLRACE_TLS_CA"), Cert: os.Getenv("MILLRACE_TLS_CERT"), Key: os.Getenv("MILLRACE_TLS_KEY"),
			ServerName: os.Getenv("MILLRACE_TLS_SERVER_NAME"),
		},
		Plain:     os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb",
		Telemetry: telemetry.FromEnvironment(os.Getenv),
		Auth:      auth.Flags{Token: os.Getenv("MILLRACE_TOKEN"), TokenFile: os.Getenv("MILLRACE_TOKEN_FILE")},
	}
}
