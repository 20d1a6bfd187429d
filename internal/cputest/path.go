package cputest

import "os"

const variable = "MILLRACE_TEST_CPU_PATH"

// Path returns the path that tests are forced onto, as native.Options.Path takes it; empty = the best. One that is unknown
// or that this processor lacks is refused by the engine, so that no test passes on another.
func Path() string { return os.Getenv(variable) }

// Flags returns what makes a worker or millrace-bench use that path. They do not matter to a device without paths.
func Flags() []string {
	if path := Path(); path != "" {
		return []string{"--cpu-path", path}
	}
	return nil
}
