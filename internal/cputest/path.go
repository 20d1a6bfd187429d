package cputest

import "os"

const variable = "MILLRACE_TEST_CPU_PATH"

// Path returns the forced path for native.Options.Path, or "" for the best. The engine refuses a
// path that is unknown or that this processor lacks, so no test passes on another one by accident.
func Path() string { return os.Getenv(variable) }

// Flags returns the flags with which a worker or millrace-bench uses that path. Devices without
// paths ignore them.
func Flags() []string {
	if path := Path(); path != "" {
		return []string{"--cpu-path", path}
	}
	return nil
}
