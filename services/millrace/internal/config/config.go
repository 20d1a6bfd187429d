package config

import (
	"cmp"
	"os"
)

// DefaultTarget is where a scheduler listens unless told otherwise.
const DefaultTarget = "localhost:7070"

// Config is what the environment sets.
type Config struct {
	// Target is the server's address: host:port, dns:///name:port or unix:PATH. MILLRACE_TARGET; DefaultTarget.
	Target string
}

// Load reads the environment.
func Load() Config {
	return Config{Target: cmp.Or(os.Getenv("MILLRACE_TARGET"), DefaultTarget)}
}
