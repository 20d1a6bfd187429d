package main

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// imports returns the import paths of the product files under a folder, each with a file that has
// it.
func imports(t *testing.T, folder string) map[string]string {
	t.Helper()
	found := map[string]string{}
	require.NoError(t, filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, spec := range file.Imports {
			name, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			found[name] = path
		}
		return nil
	}))
	require.NotEmpty(t, found, folder)
	return found
}

func TestDecisionsArePure(t *testing.T) {
	for _, folder := range []string{"internal/route", "internal/placement"} {
		for name, file := range imports(t, folder) {
			require.NotContains(t, strings.Split(name, "/")[0], ".",
				"%s imports %s: a decision imports the standard library only, so that it can be replayed from a text file", file, name)
			require.NotContains(t, []string{"time", "net", "os", "context", "log", "math/rand", "math/rand/v2"}, name,
				"%s imports %s: a decision has no clock, socket, context, log or dice of its own", file, name)
		}
	}
}

func TestSchedulerImportsNoEngine(t *testing.T) {
	for name, file := range imports(t, ".") {
		require.False(t, strings.HasPrefix(name, "github.com/millrace/millrace/gpuworker"),
			"%s imports %s: the scheduler builds with cgo off and runs where no engine does", file, name)
		require.NotEqual(t, "C", name, file)
	}
}
