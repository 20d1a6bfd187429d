package server

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/internal/modeltest"
	"github.com/millrace/millrace/services/internal/rpc"
)

func TestEverySentinelHasAStatusBareAndWrapped(t *testing.T) {
	for _, r := range table {
		for name, err := range map[string]error{
			"bare": r.sentinel, "wrapped": fmt.Errorf("layer: %w", r.sentinel),
			"wrapped twice": fmt.Errorf("top: %w", fmt.Errorf("layer: %w", r.sentinel)),
		} {
			st := statusOf(err)
			require.Equal(t, r.code, status.Code(st), "%s %v", name, r.sentinel)
			require.Equal(t, r.reason, rpc.Reason(st), "%s %v", name, r.sentinel)
			require.Equal(t, rpc.WorkerDomain, rpc.Domain(st))
			require.NotEqual(t, codes.Unknown, status.Code(st))
		}
	}
}

// Every exported sentinel of the worker's packages must stand in the table: it is compared with the source.
func TestNoSentinelOfTheCoreIsForgotten(t *testing.T) {
	root := modeltest.Path("gpuworker")
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
	for _, pkg := range []string{"engine", "batch", "model", "gguf", "arch", "tokenizer", "template", "prompt", "generate", "vectors"} {
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
