package vectorserver

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/internal/repotest"
	"github.com/millrace/millrace/services/internal/rpc"
)

func TestEverySentinelHasItsStatus(t *testing.T) {
	for _, r := range statuses.Rows {
		for _, err := range []error{r.Sentinel, fmt.Errorf("layer: %w", r.Sentinel)} {
			st := statusOf(err)
			require.Equal(t, r.Code, status.Code(st), err)
			require.Equal(t, r.Reason, rpc.Reason(st), err)
			require.Equal(t, rpc.WorkerDomain, rpc.Domain(st), err)
		}
	}
}

// Every exported sentinel of package vectors must have a row: the table is compared with the source.
func TestTableHasEverySentinelOfVectors(t *testing.T) {
	rows := map[string]bool{}
	table, err := parser.ParseFile(token.NewFileSet(), "status.go", nil, 0)
	require.NoError(t, err)
	ast.Inspect(table, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			rows[s.Sel.Name] = true
		}
		return true
	})
	files, err := filepath.Glob(filepath.Join(repotest.Path("gpuworker"), "vectors", "*.go"))
	require.NoError(t, err)
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		require.NoError(t, err)
		for name, object := range f.Scope.Objects {
			if object.Kind == ast.Var && strings.HasPrefix(name, "Err") {
				require.True(t, rows[name], "vectors.%s has no status", name)
			}
		}
	}
}
