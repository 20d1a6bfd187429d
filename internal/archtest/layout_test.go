package archtest

import (
	"bytes"
	"fmt"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// maxLines bounds a file.
const maxLines = 500

func TestEveryPackageHasADoc(t *testing.T) {
	for _, p := range packages(t).own() {
		if p.generated() {
			continue
		}
		file := filepath.Join(p.Dir, "doc.go")
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.PackageClauseOnly)
		require.NoError(t, err, "%s has no doc.go: what it is, how it is used, what it refuses to know", p.ImportPath)
		want := "Package " + p.Name + " "
		if p.Name == "main" {
			want = "Command "
		}
		synopsis := new(doc.Package).Synopsis(f.Doc.Text())
		require.True(t, strings.HasPrefix(synopsis, want), "%s begins with %q; its first sentence begins with %q", file, synopsis, want)
		for _, other := range slices.Concat(p.GoFiles, p.CgoFiles) {
			if other == "doc.go" {
				continue
			}
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, other), nil, parser.ParseComments|parser.PackageClauseOnly)
			require.NoError(t, err)
			require.Empty(t, f.Doc.Text(), "%s/%s has a package comment too: it belongs in doc.go", p.Dir, other)
		}
	}
}

func TestFilesAreShort(t *testing.T) {
	source := []string{".go", ".c", ".h", ".cc", ".cpp", ".cu", ".cuh", ".proto", ".sh", ".py", ".java"}
	skip := []string{".git", "build", "testdata", filepath.Join("proto", "gen")}
	root := packages(t).root
	seen, long := 0, []string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			if slices.Contains(skip, rel) || d.Name() == "testdata" {
				return filepath.SkipDir
			}
			return nil
		}
		if !slices.Contains(source, filepath.Ext(path)) {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		seen++
		if lines := bytes.Count(text, []byte("\n")); lines > maxLines {
			long = append(long, fmt.Sprintf("%s has %d lines", rel, lines))
		}
		return nil
	})
	require.NoError(t, err)
	require.Positive(t, seen)
	require.Empty(t, long, "more than %d lines carry more than one noun: split them", maxLines)
}
