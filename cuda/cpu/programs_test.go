package cpu_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

// paths are the instruction-set paths of the engine.
var paths = []string{"portable", "avx2", "avx512vnni", "avx512bf16", "amx"}

// cannotRun is the exit status of a program on a processor without the path.
const cannotRun = 3

// sanitizerVariable names sanitizers of the compiler that programs and engine are built with: address (which finds leaks too)
// and undefined together, divided by a comma, or thread. Empty: none. `make test-sanitized` sets one after the other.
const sanitizerVariable = "MILLRACE_TEST_SANITIZER"

// valgrindVariable, if set, has every program run under Valgrind's memcheck. `make test-valgrind` sets it. Valgrind has no AVX-512 and
// no AMX, and shows its programs a processor without them: the paths that need them are skipped.
const valgrindVariable = "MILLRACE_TEST_VALGRIND"

// checkedRun is the command that runs a program, and how long it may take: a hang guard. A sanitizer makes it about 5 times
// as slow, Valgrind 30 times.
func checkedRun(program string, arguments []string) (command []string, limit time.Duration) {
	command = append([]string{program}, arguments...)
	if os.Getenv(sanitizerVariable) != "" {
		return command, 20 * time.Minute
	}
	if os.Getenv(valgrindVariable) == "" {
		return command, 5 * time.Minute
	}
	return append([]string{
		"valgrind", "--quiet", "--error-exitcode=99", "--leak-check=full", "--show-leak-kinds=definite,possible",
		"--errors-for-leak-kinds=definite,possible", "--track-fds=no", "--suppressions=valgrind.supp",
	}, command...), time.Hour
}

// checkedBuild returns the compiler's flags for the sanitizer, if one is set; the first finding ends
// a program. The check for null pointers is left out: a null access ends the program anyway, and the
// check takes a third of the compiler's time.
func checkedBuild() []string {
	sanitizer := os.Getenv(sanitizerVariable)
	if sanitizer == "" {
		return nil
	}
	// Kernels are functions of thousands of accesses. With a check inside the function for each
	// access, the AVX2 kernels take a minute to compile, and with calls a third of that.
	return []string{
		"-fsanitize=" + sanitizer, "-fno-sanitize=null", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g1", "-O1",
		"--param=asan-instrumentation-with-call-threshold=200",
	}
}

// archive gives the engine's objects as a static library, made once a test run.
var archive = sync.OnceValues(func() (file string, err error) {
	if archiveDir, err = os.MkdirTemp("", "millrace-archive-"); err != nil {
		return "", err
	}
	if flags := checkedBuild(); flags != nil {
		err = compileEngine(archiveDir, flags)
	} else {
		err = extractEngine(archiveDir)
	}
	if err != nil {
		return "", err
	}
	objects, err := filepath.Glob(filepath.Join(archiveDir, "*.o"))
	if err != nil {
		return "", err
	}
	file = filepath.Join(archiveDir, "libmillrace_cpu.a")
	return file, command(context.Background(), "ar", append([]string{"rcs", file}, objects...)...)
})

// extractEngine puts the objects that cgo compiled for the Go build into dir, from its cache, so that nothing is compiled
// twice. What only Go programs need is left out by the linker.
func extractEngine(dir string) error {
	exported, err := exec.Command("go", "list", "-export", "-f", "{{.Export}}", ".").Output()
	if err != nil {
		return &toolError{name: "go list -export", err: err}
	}
	extract := exec.Command("ar", "x", strings.TrimSpace(string(exported)))
	extract.Dir = dir
	if out, err := extract.CombinedOutput(); err != nil {
		return &toolError{name: "ar x", output: string(out), err: err}
	}
	own, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return err
	}
	for _, file := range own {
		if !strings.HasPrefix(filepath.Base(file), "_x") { // cgo's name for the objects of C and C++ sources
			if err := os.Remove(file); err != nil {
				return err
			}
		}
	}
	return nil
}

// compileEngine compiles every source of the engine into dir, as many at once as there are processors.
func compileEngine(dir string, flags []string) error {
	sources, err := filepath.Glob("*.cpp")
	if err != nil {
		return err
	}
	var all errgroup.Group
	all.SetLimit(runtime.NumCPU())
	for _, source := range sources {
		all.Go(func() error {
			arguments := []string{"-std=c++17", "-w", "-I.", "-I../include", "-c", "-o",
				filepath.Join(dir, source+".o"), source}
			return command(context.Background(), "g++", append(arguments, flags...)...)
		})
	}
	return all.Wait()
}

var archiveDir string // what TestMain removes

func TestMain(m *testing.M) {
	code := m.Run()
	if archiveDir != "" {
		_ = os.RemoveAll(archiveDir)
	}
	os.Exit(code)
}

// TestAC99ProgramDrivesTheWholeTable compiles the header and its client as strict C99 and runs it on every path.
func TestAC99ProgramDrivesTheWholeTable(t *testing.T) {
	program := buildC(t)
	for _, path := range paths {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			out := run(t, program, path)
			require.Equal(t, "ok", strings.TrimSpace(out))
		})
	}
}

// TestTheHeaderCompilesAsCPlusPlus includes it in a C++ program, as an engine does.
func TestTheHeaderCompilesAsCPlusPlus(t *testing.T) {
	source := filepath.Join(t.TempDir(), "header.cpp")
	require.NoError(t, os.WriteFile(source, []byte("#include \"millrace/engine.h\"\n"), 0o600))
	require.NoError(t, command(t.Context(), "g++", "-std=c++17", "-pedantic", "-Wall", "-Wextra", "-Werror",
		"-I../include", "-fsyntax-only", source))
}

// TestUnitProgramsPass builds each C++ program of cpptest against the engine's inside and runs it.
func TestUnitProgramsPass(t *testing.T) {
	sources, err := filepath.Glob("cpptest/*_test.cpp")
	require.NoError(t, err)
	require.NotEmpty(t, sources)
	library, err := archive()
	require.NoError(t, err)
	for _, source := range sources {
		name := strings.TrimSuffix(filepath.Base(source), "_test.cpp")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			program := filepath.Join(t.TempDir(), name)
			arguments := []string{"-std=c++17", "-O1", "-Wall", "-Wextra", "-I.", "-I../include", "-o", program, source, library,
				"-lpthread"}
			require.NoError(t, command(t.Context(), "g++", append(arguments, checkedBuild()...)...))
			run(t, program)
		})
	}
}

// buildC compiles capitest with a plain C compiler, warnings being errors, and links it with the engine.
func buildC(t *testing.T) string {
	t.Helper()
	library, err := archive()
	require.NoError(t, err)
	sources, err := filepath.Glob("capitest/*.c")
	require.NoError(t, err)
	require.NotEmpty(t, sources)
	dir := t.TempDir()
	program := filepath.Join(dir, "capitest")
	link := []string{"-o", program}
	for _, source := range sources {
		object := filepath.Join(dir, filepath.Base(source)+".o")
		arguments := []string{"-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-O1", "-I../include", "-c", "-o", object,
			source}
		require.NoError(t, command(t.Context(), "gcc", append(arguments, checkedBuild()...)...))
		link = append(link, object)
	}
	link = append(link, library, "-lpthread", "-lm")
	require.NoError(t, command(t.Context(), "g++", append(link, checkedBuild()...)...))
	return program
}

// run returns the program's output; on a processor without the path it skips the test.
func run(t *testing.T, program string, arguments ...string) string {
	t.Helper()
	command, limit := checkedRun(program, arguments)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	c := exec.CommandContext(ctx, command[0], command[1:]...)
	var stderr strings.Builder
	c.Stderr = &stderr
	out, err := c.Output()
	if c.ProcessState != nil && c.ProcessState.ExitCode() == cannotRun {
		t.Skipf("this processor cannot run the path %v; a newer amd64 processor can", arguments)
	}
	require.NoError(t, err, "%s%s", out, stderr.String())
	return string(out)
}

// command runs a tool of the build; its error contains the tool's output.
func command(ctx context.Context, name string, arguments ...string) error {
	c := exec.CommandContext(ctx, name, arguments...)
	out, err := c.CombinedOutput()
	if err != nil {
		return &toolError{name: name, output: string(out), err: err}
	}
	return nil
}

type toolError struct {
	name, output string
	err          error
}

func (e *toolError) Error() string { return e.name + ": " + e.err.Error() + "\n" + e.output }
func (e *toolError) Unwrap() error { return e.err }
