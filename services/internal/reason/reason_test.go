package reason_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/internal/reason"
)

// defined returns the constants of this package by name.
func defined(t *testing.T) map[string]string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "reason.go", nil, 0)
	require.NoError(t, err)
	all := map[string]string{}
	ast.Inspect(f, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok {
			value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			require.NoError(t, err)
			all[spec.Names[0].Name] = value
		}
		return true
	})
	return all
}

// described returns the comments of the reasons by value.
func described(t *testing.T) map[string]string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "reason.go", nil, parser.ParseComments)
	require.NoError(t, err)
	all := map[string]string{}
	ast.Inspect(f, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok {
			value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			require.NoError(t, err)
			_, all[value], _ = strings.Cut(spec.Doc.Text(), ":")
		}
		return true
	})
	return all
}

func TestAllHasEveryReasonOnce(t *testing.T) {
	var values []string
	for name, value := range defined(t) {
		require.Regexp(t, `^[A-Z]+(_[A-Z]+)*$`, value)
		require.Equal(t, strings.ReplaceAll(value, "_", ""), strings.ToUpper(name))
		values = append(values, value)
	}
	require.ElementsMatch(t, values, reason.All())
	seen := map[string]bool{}
	for _, r := range reason.All() {
		require.False(t, seen[r], "%s stands twice", r)
		seen[r] = true
	}
}

// TestReasonsAreUsedAsConstants checks that reasons are not written as literals, and that each is
// used.
func TestReasonsAreUsedAsConstants(t *testing.T) {
	isReason, used := map[string]bool{}, map[string]bool{}
	for _, r := range reason.All() {
		isReason[r] = true
	}
	root := filepath.Join("..", "..")
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		if filepath.Base(filepath.Dir(path)) == "reason" {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		require.NoError(t, err)
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BasicLit:
				if text, err := strconv.Unquote(n.Value); n.Kind == token.STRING && err == nil {
					require.False(t, isReason[text], "%s writes %s: use the constant", path, n.Value)
				}
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name == "reason" && !strings.Contains(path, "failure") {
					used[n.Sel.Name] = true // the client, which advises on all, uses none
				}
			}
			return true
		})
		return nil
	}))
	for name := range defined(t) {
		require.True(t, used[name], "nobody gives %s", name)
	}
}

// codesIn returns the names of gRPC codes in a text, sorted.
func codesIn(text string) []string {
	found := map[string]bool{}
	for _, word := range regexp.MustCompile(`[A-Z]+(_[A-Z]+)*`).FindAllString(text, -1) {
		if isCode[word] {
			found[word] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

var isCode = map[string]bool{
	"CANCELLED": true, "INVALID_ARGUMENT": true, "DEADLINE_EXCEEDED": true, "NOT_FOUND": true, "ALREADY_EXISTS": true,
	"PERMISSION_DENIED": true, "RESOURCE_EXHAUSTED": true, "FAILED_PRECONDITION": true, "UNIMPLEMENTED": true, "INTERNAL": true,
	"UNAVAILABLE": true, "DATA_LOSS": true, "UNAUTHENTICATED": true,
}

// TestDocumentHasEveryReason checks that docs/troubleshooting.md has one row for each reason, with
// the codes of its definition.
func TestDocumentHasEveryReason(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "troubleshooting.md"))
	require.NoError(t, err)
	codes := map[string][]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([A-Z_]+)` \\| ([^|]+) \\|[^|]+\\|[^|]+\\|$").FindAllStringSubmatch(string(page), -1) {
		require.NotContains(t, codes, row[1], "it has two rows")
		codes[row[1]] = codesIn(row[2])
	}
	for name, about := range described(t) {
		require.Contains(t, codes, name, "it has no row")
		require.Equal(t, codesIn(about), codes[name], "codes of %s", name)
		delete(codes, name)
	}
	require.Empty(t, codes, "rows of no reason")
}
