package archtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/millrace/millrace"

// pkg is the output of `go list` for a package. Deps is transitive and omits what only tests
// import.
type pkg struct {
	ImportPath   string
	Name         string
	Dir          string
	Standard     bool
	DepOnly      bool
	Imports      []string
	Deps         []string
	GoFiles      []string
	CgoFiles     []string
	TestGoFiles  []string
	XTestGoFiles []string
}

// generated reports whether buf writes the package.
func (p pkg) generated() bool { return within(p.ImportPath, module+"/proto/gen") }

// tree holds the module's packages and all their dependencies.
type tree struct {
	root string // directory of go.mod
	all  map[string]pkg
}

// own returns the packages of the module.
func (t tree) own() []pkg {
	var own []pkg
	for _, p := range t.all {
		if within(p.ImportPath, module) && !p.DepOnly {
			own = append(own, p)
		}
	}
	return own
}

var loadOnce = sync.OnceValues(load)

// packages lists the module once for all tests.
func packages(t *testing.T) tree {
	t.Helper()
	tr, err := loadOnce()
	require.NoError(t, err)
	require.NotEmpty(t, tr.own(), "go list found no package of %s", module)
	return tr
}

func load() (tree, error) {
	root, err := output("go", "list", "-m", "-f", "{{.Dir}}", module)
	if err != nil {
		return tree{}, err
	}
	tr := tree{root: strings.TrimSpace(string(root)), all: map[string]pkg{}}
	// -e: the compiler reports packages that do not compile
	out, err := output("go", "list", "-e", "-deps",
		"-json=ImportPath,Name,Dir,Standard,DepOnly,Imports,Deps,GoFiles,CgoFiles,TestGoFiles,XTestGoFiles", module+"/...")
	if err != nil {
		return tree{}, err
	}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return tr, nil
		} else if err != nil {
			return tree{}, err
		}
		tr.all[p.ImportPath] = p
	}
}

func output(name string, args ...string) ([]byte, error) {
	var stderr bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, errors.Join(err, errors.New(stderr.String()))
	}
	return out, nil
}

// within reports whether an import path is root or below it.
func within(importPath, root string) bool {
	return importPath == root || strings.HasPrefix(importPath, root+"/")
}

// withinAny reports whether an import path is one of the roots or below one.
func withinAny(importPath string, roots []string) bool {
	for _, root := range roots {
		if within(importPath, root) {
			return true
		}
	}
	return false
}

// forTests reports whether a package exists for tests only: its name ends in "test".
func forTests(importPath string) bool {
	for dir := importPath; within(dir, module) && dir != module; dir = path.Dir(dir) {
		if base := path.Base(dir); strings.HasSuffix(base, "test") || base == "e2e" {
			return true
		}
	}
	return false
}
