package archtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// importRule forbids packages to import others directly or indirectly.
type importRule struct {
	from    []string // import paths; each binds the package and everything below it
	exactly bool     // binds only the packages of from, not those below
	forbids func(p pkg) bool
	because string
}

func below(roots ...string) func(pkg) bool {
	return func(p pkg) bool { return withinAny(p.ImportPath, roots) }
}

func own(dirs ...string) []string {
	paths := make([]string, len(dirs))
	for i, d := range dirs {
		paths[i] = module + "/" + d
	}
	return paths
}

var importRules = map[string]importRule{
	"the scheduler does not reach the worker": {
		from: own("services/scheduler"), forbids: below(own("gpuworker", "cuda")...),
		because: "it routes calls between machines and is built without cgo; what it knows of a worker is the contract",
	},
	"the gateway does not reach the worker": {
		from: own("services/gateway"), forbids: below(own("gpuworker", "cuda")...),
		because: "it translates HTTP to the contract and is built without cgo",
	},
	"the shared packages of the gateway import no dialect": {
		from: own("services/gateway/internal/httpapi", "services/gateway/internal/target", "services/gateway/internal/strictjson", "services/gateway/internal/translate"),
		forbids: func(p pkg) bool {
			return within(p.ImportPath, module+"/services/gateway/internal") && !withinAny(p.ImportPath, own(
				"services/gateway/internal/httpapi", "services/gateway/internal/target", "services/gateway/internal/strictjson", "services/gateway/internal/translate"))
		},
		because: "a dialect is added or removed as one folder",
	},
	"the worker library does not reach gRPC or the contract": {
		from:    own("gpuworker"),
		forbids: below("google.golang.org/grpc", "google.golang.org/protobuf", module+"/proto"),
		because: "it knows sequences, not calls; services/gpuworker translates",
	},
	"the worker library does not reach the processes": {
		from: own("gpuworker", "cuda"), forbids: below(own("services")...),
		because: "arrows run from the processes to the library",
	},
	"the ground floor imports nothing of ours": {
		from: own("gpuworker/engine"), exactly: true, forbids: below(module),
		because: "the step loop above it and the engines beside it all look down to it",
	},
	"vector files know neither calls nor engines": {
		from:    own("internal/vectorfile", "internal/safetensors", "internal/codebookfile"),
		forbids: below("google.golang.org", module+"/proto", module+"/services", module+"/gpuworker", module+"/cuda"),
		because: "client, benchmarks and worker all read them, and none of these may come along",
	},
	"routing imports the standard library only": {
		from: own("services/scheduler/internal/route"),
		forbids: func(p pkg) bool {
			return !p.Standard && !within(p.ImportPath, module+"/services/scheduler/internal/route")
		},
		because: "it is a pure function of a snapshot and a request",
	},
	"placing imports the standard library only": {
		from: own("services/scheduler/internal/placement"), forbids: func(p pkg) bool { return !p.Standard },
		because: "two schedulers must choose alike from the same input, and nothing else may be one",
	},
	"routing has no clock, socket, file or logger": {
		from:    own("services/scheduler/internal/route", "services/scheduler/internal/placement"),
		forbids: below("net", "os/exec", "log", "testing"),
		because: "it is a pure function of a snapshot and a request, and is tested as one",
	},
	"the native engines know no Go package of ours but their own": {
		from: own("cuda"), forbids: func(p pkg) bool { return within(p.ImportPath, module) && !within(p.ImportPath, module+"/cuda") },
		because: "they are C++ behind one header",
	},
	"the contract depends on nothing of ours": {
		from: own("proto"), forbids: func(p pkg) bool { return within(p.ImportPath, module) && !within(p.ImportPath, module+"/proto") },
		because: "everyone speaks it, so it must not pull anyone in",
	},
	"scheduler, gateway and client link no cgo": {
		from:    own("services/scheduler", "services/gateway", "services/millrace"),
		forbids: func(p pkg) bool { return !p.Standard && len(p.CgoFiles) > 0 },
		because: "they are built with CGO_ENABLED=0: one static file for any Linux",
	},
}

// check returns one line for each package that breaks the rule.
func (r importRule) check(tr tree) []string {
	var broken []string
	for _, p := range tr.own() {
		bound := withinAny(p.ImportPath, r.from) && !forTests(p.ImportPath)
		if r.exactly {
			bound = slices.Contains(r.from, p.ImportPath)
		}
		if !bound {
			continue
		}
		for _, dep := range p.Deps {
			d, known := tr.all[dep]
			if !known {
				d = pkg{ImportPath: dep}
			}
			if r.forbids(d) {
				broken = append(broken, fmt.Sprintf("%s reaches %s", p.ImportPath, dep))
			}
		}
	}
	slices.Sort(broken)
	return broken
}

func TestImportRules(t *testing.T) {
	tr := packages(t)
	for name, rule := range importRules {
		t.Run(name, func(t *testing.T) {
			require.Empty(t, rule.check(tr), "because %s", rule.because)
		})
	}
}

func TestImportRuleReportsViolations(t *testing.T) {
	tr := tree{all: map[string]pkg{}}
	for _, p := range []pkg{
		{ImportPath: module + "/services/scheduler/internal/relay", Deps: []string{"fmt", module + "/gpuworker/batch"}},
		{ImportPath: module + "/gpuworker/batch", Deps: []string{"google.golang.org/grpc/codes"}},
		{ImportPath: module + "/gpuworker/engine", Deps: []string{module + "/gpuworker/batch"}},
		{ImportPath: module + "/gpuworker/engine/sim", Deps: []string{module + "/gpuworker/engine"}},
		{ImportPath: module + "/services/scheduler/internal/route", Deps: []string{"fmt", "example.com/cgo"}},
		{ImportPath: "fmt", Standard: true, DepOnly: true},
		{ImportPath: "example.com/cgo", DepOnly: true, CgoFiles: []string{"c.go"}},
	} {
		tr.all[p.ImportPath] = p
	}
	for name, want := range map[string][]string{
		"the scheduler does not reach the worker":                {module + "/services/scheduler/internal/relay reaches " + module + "/gpuworker/batch"},
		"the worker library does not reach gRPC or the contract": {module + "/gpuworker/batch reaches google.golang.org/grpc/codes"},
		"the ground floor imports nothing of ours":               {module + "/gpuworker/engine reaches " + module + "/gpuworker/batch"},
		"routing imports the standard library only":              {module + "/services/scheduler/internal/route reaches example.com/cgo"},
		"scheduler, gateway and client link no cgo":              {module + "/services/scheduler/internal/route reaches example.com/cgo"},
		"the worker library does not reach the processes":        nil,
	} {
		t.Run(name, func(t *testing.T) {
			rule, ok := importRules[name]
			require.True(t, ok)
			require.Equal(t, want, rule.check(tr))
		})
	}
}

func TestOnlyTheBindingUsesCgo(t *testing.T) {
	allowed := own("gpuworker/engine/native", "cuda")
	for _, p := range packages(t).own() {
		if len(p.CgoFiles) > 0 {
			require.True(t, withinAny(p.ImportPath, allowed),
				"%s uses cgo; only %v may, because one place converts pointers, errors and structs", p.ImportPath, allowed)
		}
	}
}

func TestNoProgramLinksTestCode(t *testing.T) {
	tr := packages(t)
	for _, p := range tr.own() {
		if p.Name != "main" {
			continue
		}
		for _, dep := range p.Deps {
			require.False(t, isTestCode(dep, tr.all[dep].Standard),
				"%s links %s, because of an import outside of _test.go files; test helpers belong in packages named ...test", p.ImportPath, dep)
		}
	}
}

// isTestCode reports whether a package exists for tests: the standard library's testing, testify,
// or a package of any module whose path has an element that is named test or ends so.
func isTestCode(importPath string, standard bool) bool {
	switch {
	case standard:
		return within(importPath, "testing")
	case within(importPath, module):
		return forTests(importPath)
	}
	for element := range strings.SplitSeq(importPath, "/") {
		if element == "testify" || strings.HasSuffix(element, "test") || element == "testing" || element == "testutil" {
			return true
		}
	}
	return false
}

func TestIsTestCodeCoversOtherModules(t *testing.T) {
	for importPath, want := range map[string]bool{
		"google.golang.org/grpc/test/bufconn":     true,
		"github.com/stretchr/testify/require":     true,
		"github.com/example/thing/thingtest":      true,
		module + "/services/internal/rpc/rpctest": true,
		"google.golang.org/grpc/credentials":      false,
		module + "/services/internal/rpc":         false,
	} {
		require.Equal(t, want, isTestCode(importPath, false), importPath)
	}
	require.True(t, isTestCode("testing/fstest", true))
	require.False(t, isTestCode("internal/synctest", true), "the runtime links it into every program")
}
