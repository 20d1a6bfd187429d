package device_test

import (
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/internal/device"
)

func nothing(string) string { return "" }

// parse parses and validates arguments.
func parse(t *testing.T, getenv func(string) string, args ...string) (*device.Flags, error) {
	t.Helper()
	d, f := &device.Flags{}, pflag.NewFlagSet("program", pflag.ContinueOnError)
	d.Register(f)
	require.NoError(t, f.Parse(args))
	err := d.Validate(getenv)
	return d, err
}

func TestBestDeviceIsTheDefault(t *testing.T) {
	d, err := parse(t, nothing)
	require.NoError(t, err)
	require.Equal(t, &device.Flags{Name: "auto"}, d)
}

func TestValidateReturnsAllErrors(t *testing.T) {
	_, err := parse(t, nothing, "--device=sim:x=1", "--threads=-1", "--memory-limit=8GB", "--pool-limit=101%")
	for _, flag := range []string{"--device", "--threads -1", `--memory-limit "8GB"`, `--pool-limit "101%"`} {
		require.ErrorContains(t, err, flag)
	}
}

func TestValidateRefusesUnknownDevices(t *testing.T) {
	for _, good := range [][]string{{"--device=cpu"}, {"--device=gpu"}, {"--device=cuda"}, {"--device=cuda:7"}, {"--device=sim"}, {"--device=sim:step=1ms"},
		{"--device=cpu", "--cpu-path=avx2"}} {
		_, err := parse(t, nothing, good...)
		require.NoError(t, err, good)
	}
	for _, bad := range [][]string{{"--device=cuda:x"}, {"--device=tpu"}, {"--device=simple"}, {"--device=sim:"}, {"--device=sim:step=-1s"},
		{"--device=cuda:0", "--cpu-path=avx2"}} {
		_, err := parse(t, nothing, bad...)
		require.ErrorContains(t, err, "--device", bad)
	}
}

func TestThreadBounds(t *testing.T) {
	for _, good := range []string{"0", "1", "1024"} {
		_, err := parse(t, nothing, "--threads="+good)
		require.NoError(t, err)
	}
	for _, bad := range []string{"-1", "1025"} {
		_, err := parse(t, nothing, "--threads="+bad)
		require.ErrorContains(t, err, "want 0 to 1024")
	}
}

func TestEnginePathOfTheEnvironment(t *testing.T) {
	environment := func(name string) string { return map[string]string{"MILLRACE_ENGINE_PATH": "/a"}[name] }
	d, err := parse(t, environment)
	require.NoError(t, err)
	require.Equal(t, "/a", d.EnginePath)
	d, err = parse(t, environment, "--engine-path=/b")
	require.NoError(t, err)
	require.Equal(t, "/b", d.EnginePath)
}

func TestArgumentsRoundTrip(t *testing.T) {
	for _, want := range []device.Flags{
		{Name: "auto"},
		{Name: "cpu", CPUPath: "avx2", EnginePath: "/a b:/c", AnyBuild: true, Threads: 3, MemoryLimit: "0.5", PoolLimit: "50%"},
	} {
		require.NoError(t, want.Validate(nothing))
		got, err := parse(t, nothing, want.Arguments()...)
		require.NoError(t, err)
		require.Equal(t, want, *got)
	}
}
