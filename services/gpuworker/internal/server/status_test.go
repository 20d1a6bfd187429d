package server

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/internal/repotest"
	"github.com/millrace/millrace/services/internal/rpc"
)

func TestEverySentinelHasAStatus(t *testing.T) {
	// Bare and wrapped.
	for _, r := range slices.Concat(endings, table) {
		for name, err := range map[string]error{
			"bare": r.Sentinel, "wrapped": fmt.Errorf("layer: %w", r.Sentinel),
			"wrapped twice": fmt.Errorf("top: %w", fmt.Errorf("layer: %w", r.Sentinel)),
		} {
			st := statusOf(err)
			require.Equal(t, r.Code, status.Code(st), "%s %v", name, r.Sentinel)
			require.Equal(t, r.Reason, rpc.Reason(st), "%s %v", name, r.Sentinel)
			require.Equal(t, rpc.WorkerDomain, rpc.Domain(st))
			require.NotEqual(t, codes.Unknown, status.Code(st))
		}
	}
}

func TestTableHasEverySentinel(t *testing.T) {
	// Every exported sentinel of the library must have a row in the table: the table is compared
	// with the source.
	root := repotest.Path("gpuworker")
	tabled := map[string]bool{}
	here, err := parser.ParseFile(token.NewFileSet(), "status.go", nil, 0)
	require.NoError(t, err)
	ast.Inspect(here, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if pkg, ok := s.X.(*ast.Ident); ok {
				tabled[pkg.Name+"."+s.Sel.Name] = true
			}
		}
		return true
	})
	for _, pkg := range []string{"engine", "batch", "model", "gguf", "arch", "tokenizer", "template", "prompt", "generate"} {
		files, err := filepath.Glob(filepath.Join(root, pkg, "*.go"))
		require.NoError(t, err)
		for _, path := range files {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			require.NoError(t, err)
			for name, object := range f.Scope.Objects {
				if object.Kind == ast.Var && strings.HasPrefix(name, "Err") && name != "ErrWriter" {
					require.True(t, tabled[pkg+"."+name], "%s.%s has no status", pkg, name)
				}
			}
		}
	}
}
