package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// callRule forbids uses of functions of a package, except in some places.
type callRule struct {
	of      string   // import path
	names   []string // functions or variables of it
	allowed func(p pkg, file string) bool
	because string
}

var callRules = map[string]callRule{
	"only config packages read the environment": {
		of: "os", names: []string{"Getenv", "LookupEnv", "Environ", "ExpandEnv"},
		allowed: func(p pkg, _ string) bool { return p.Name == "config" },
		because: "a process has one Config, filled in one place and printed at start",
	},
	"only main.go exits": {
		of: "os", names: []string{"Exit"},
		allowed: func(p pkg, file string) bool {
			return p.Name == "main" && file == "main.go" ||
				// The template sandbox is a child process: it exits when a limit is exceeded.
				p.ImportPath == module+"/gpuworker/template" ||
				// gRPC's logger must not return from Fatal.
				p.ImportPath == module+"/services/internal/rpc" && file == "log.go"
		},
		because: "anything else returns an error, so that whoever opened something closes it",
	},
	"nothing writes to the global logger": {
		of: "log", names: []string{"Fatal", "Fatalf", "Fatalln", "Panic", "Panicf", "Panicln", "Print", "Printf", "Println", "Default"},
		allowed: func(pkg, string) bool { return false },
		because: "loggers are constructor arguments",
	},
	"routing asks for no time": {
		of: "time", names: []string{"Now", "Since", "Until", "After", "AfterFunc", "Sleep", "NewTimer", "NewTicker", "Tick"},
		allowed: func(p pkg, _ string) bool {
			return !within(p.ImportPath, module+"/services/scheduler/internal/route")
		},
		because: "it is a pure function: time is an argument",
	},
}

// uses returns the forbidden names that a file uses, with their positions.
func (r callRule) uses(fset *token.FileSet, f *ast.File) []string {
	local := ""
	for _, imp := range f.Imports {
		if strings.Trim(imp.Path.Value, `"`) == r.of {
			local = path.Base(r.of)
			if imp.Name != nil {
				local = imp.Name.Name
			}
		}
	}
	if local == "" {
		return nil
	}
	var found []string
	ast.Inspect(f, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok && slices.Contains(r.names, sel.Sel.Name) {
			if x, ok := sel.X.(*ast.Ident); ok && x.Name == local {
				found = append(found, fmt.Sprintf("%s uses %s.%s", fset.Position(sel.Pos()), r.of, sel.Sel.Name))
			}
		}
		return true
	})
	return found
}

func TestForbiddenCalls(t *testing.T) {
	broken := map[string][]string{}
	for _, p := range packages(t).own() {
		if p.generated() || forTests(p.ImportPath) {
			continue
		}
		for _, file := range slices.Concat(p.GoFiles, p.CgoFiles) {
			fset := token.NewFileSet()
			f, err := parser.ParseFile(fset, filepath.Join(p.Dir, file), nil, parser.SkipObjectResolution)
			require.NoError(t, err)
			for name, rule := range callRules {
				if !rule.allowed(p, file) {
					broken[name] = append(broken[name], rule.uses(fset, f)...)
				}
			}
		}
	}
	for name, rule := range callRules {
		t.Run(name, func(t *testing.T) { require.Empty(t, broken[name], "because %s", rule.because) })
	}
}

func TestCallRuleFindsRenamedImports(t *testing.T) {
	const src = `package x
import sys "os"
var home = sys.Getenv("HOME")
func f(os struct{ Getenv func() }) { os.Getenv() }
`
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "x.go", src, parser.SkipObjectResolution)
	require.NoError(t, err)
	require.Equal(t, []string{"x.go:3:12 uses os.Getenv"}, callRules["only config packages read the environment"].uses(fset, f))
}
