package repotest

import (
	"flag"
	"os"
	"path/filepath"
	"runtime"
)

// Update is the flag -update: write the files that are compared.
var Update = flag.Bool("update", false, "write the files that are compared")

// Path returns the path of a file of the repository. file is slash-separated and relative to the
// root; "" is the root itself.
func Path(file string) string { return filepath.Join(root(), filepath.FromSlash(file)) }

// root returns the repository's root. The path of this source file leads to it, unless the test was
// built with -trimpath. Then the root is the nearest parent of the working directory that has a
// go.mod, because tests run in the folder of their package.
func root() string {
	_, file, _, _ := runtime.Caller(0)
	if !filepath.IsAbs(file) {
		dir, err := os.Getwd()
		for ; err == nil && filepath.Dir(dir) != dir; dir = filepath.Dir(dir) {
			if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
				return dir
			}
		}
	}
	return filepath.Join(filepath.Dir(file), "..", "..")
}
