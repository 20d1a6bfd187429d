package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/internal/device"
)

func parse(t *testing.T, args ...string) (*Config, error) {
	t.Helper()
	c, f := &Config{}, pflag.NewFlagSet("worker", pflag.ContinueOnError)
	c.Register(f)
	require.NoError(t, f.Parse(append([]string{"--models", t.TempDir()}, args...)))
	err := c.Validate()
	return c, err
}

func TestDefaultsAreValid(t *testing.T) {
	c, err := parse(t)
	require.NoError(t, err)
	require.Contains(t, c.WorkerID, ":7071")
}

func TestValidateNamesEveryWrongFlag(t *testing.T) {
	_, err := parse(t, "--threads=-1", "--max-sequences=-1", "--log-level=loud", "--memory-limit=much", "--models=/nowhere",
		"--device=sim:x=1", "--step-target=1us", "--swap-space=0.5", "--host-cache=a", "--listen=a:1", "--metrics-listen=a:1",
		"--metrics-aliases=tgi", "--pprof-listen=0.0.0.0:1", "--sampling-defaults=file")
	for _, flag := range []string{"--threads", "--max-sequences", "--log-level", "--memory-limit", "--models", "--device", "--step-target",
		"--swap-space", "--host-cache", "--metrics-listen", "--metrics-aliases", "--pprof-listen", "--sampling-defaults"} {
		require.ErrorContains(t, err, flag)
	}
}

func TestModelsFolderErrorsSayWhatToGive(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "qwen.gguf"), []byte("x"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "big-00001-of-00002.gguf"), []byte("x"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte("x"), 0o644))
	for path, want := range map[string]string{
		dir:                             "",
		filepath.Join(dir, "nowhere"):   "there is no such folder: make it and put model files NAME.gguf there",
		filepath.Join(dir, "qwen.gguf"): fmt.Sprintf("is a file, want its folder: give --models %q --load \"qwen\"", dir),
		filepath.Join(dir, "big-00001-of-00002.gguf"): fmt.Sprintf("is a file, want its folder: give --models %q --load \"big\"", dir),
		filepath.Join(dir, "config.json"):             "is a file, want a folder with model files NAME.gguf",
	} {
		_, err := parse(t, "--models="+path)
		if want == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, want)
	}
}

func TestOtherMachinesNeedTLSOrInsecure(t *testing.T) {
	_, err := parse(t, "--listen=0.0.0.0:7071")
	require.ErrorContains(t, err, `--listen "0.0.0.0:7071": would serve other machines in plaintext`)
	_, err = parse(t, "--listen=0.0.0.0:7071", "--insecure")
	require.NoError(t, err)
	_, err = parse(t, "--tls-client-ca=ca.pem")
	require.ErrorContains(t, err, "--tls-client-ca: needs --tls-cert")
}

func TestVerifyIntervalDefaultsToAMinute(t *testing.T) {
	for text, want := range map[string]time.Duration{"": time.Minute, "0": 0, "100ms": 100 * time.Millisecond, "24h": 24 * time.Hour} {
		args := []string{}
		if text != "" {
			args = append(args, "--verify-interval="+text)
		}
		c, err := parse(t, args...)
		require.NoError(t, err)
		require.Equal(t, want, c.VerifyInterval)
	}
	for _, bad := range []string{"-1s", "1ns", "99ms"} {
		_, err := parse(t, "--verify-interval="+bad)
		require.ErrorContains(t, err, "--verify-interval", bad)
	}
}

func TestDeviceFlags(t *testing.T) {
	t.Setenv(device.EngineVariable, "/somewhere")
	c, err := parse(t, "--device=sim", "--threads=3", "--vram-limit=8GiB")
	require.NoError(t, err)
	require.Equal(t, device.Flags{Name: "sim", EnginePath: "/somewhere", Threads: 3, MemoryLimit: "8GiB"}, c.Device)
	_, err = parse(t, "--vram-limit=8GB")
	require.ErrorContains(t, err, "--memory-limit")
}

func TestSwapSpace(t *testing.T) {
	for text, want := range map[string]int64{"": 0, "0": -1, "0.0": -1, "4096": 4096, "8GiB": 8 << 30, "1.5MiB": 3 << 19, "2": 2} {
		c, err := parse(t, "--swap-space="+text)
		require.NoError(t, err)
		require.Equal(t, want, c.Swap(), text)
	}
	for _, bad := range []string{"-1", "NaN", "0.5", "1", "inf", "8GB", "1e30", "GiB", "0GiB"} {
		_, err := parse(t, "--swap-space="+bad)
		require.ErrorContains(t, err, "--swap-space", bad)
	}
}

func TestHostCache(t *testing.T) {
	for text, want := range map[string]int64{"": 0, "0": -1, "64GiB": 64 << 30} {
		c, err := parse(t, "--host-cache="+text)
		require.NoError(t, err)
		require.Equal(t, want, c.Cache(), text)
		require.Equal(t, want, c.ModelConfig(nil).HostCache)
	}
	_, err := parse(t, "--host-cache=64GB")
	require.ErrorContains(t, err, "--host-cache")
}

func TestCodebooksDefaultNextToModels(t *testing.T) {
	dir := t.TempDir()
	for models, want := range map[string]string{filepath.Join(dir, "m") + "/": filepath.Join(dir, "codebooks"), ".": "codebooks"} {
		v := Vectors{Patience: time.Second, Share: 1}
		require.Empty(t, v.validate(models))
		require.Equal(t, want, v.Codebooks)
	}
	c, err := parse(t, "--codebooks=/there")
	require.NoError(t, err)
	require.Equal(t, "/there", c.Vectors.Codebooks)
	require.Equal(t, 1, c.Vectors.MaxTrainings)
}

func TestTrainingFlagsHaveBounds(t *testing.T) {
	for _, good := range []string{"--max-trainings=0", "--max-trainings=1024", "--training-timeout=1s", "--training-share=1",
		"--training-share=0.001", "--spool-space=0", "--spool-space=1TiB"} {
		_, err := parse(t, good)
		require.NoError(t, err, good)
	}
	for _, bad := range []string{"--max-trainings=-1", "--max-trainings=1025", "--training-timeout=999ms", "--training-timeout=0",
		"--training-share=0", "--training-share=1.1", "--training-share=NaN", "--spool-space=0.5", "--spool-space=much"} {
		_, err := parse(t, bad)
		require.ErrorContains(t, err, bad[:strings.IndexByte(bad, '=')], bad)
	}
	for text, want := range map[string][2]uint64{"": {0, 4 << 30}, "0": {}, "1MiB": {1 << 20, 1 << 20}} {
		c, err := parse(t, "--spool-space="+text)
		require.NoError(t, err)
		require.Equal(t, want, [2]uint64{c.Vectors.Spool(false), c.Vectors.Spool(true)}, text)
	}
}

func TestStepLoopFlagsHaveBounds(t *testing.T) {
	for _, good := range []string{"--max-sequences=0", "--max-sequences=1", "--max-sequences=1024", "--step-target=0", "--step-target=1ms",
		"--step-target=10s", "--max-queue-time=0", "--max-queue-time=1ms", "--max-queue-time=24h", "--send-stall=1s", "--send-stall=1h"} {
		_, err := parse(t, good)
		require.NoError(t, err, good)
	}
	for _, bad := range []string{"--max-sequences=-1", "--max-sequences=1025", "--step-target=-1ms", "--step-target=999us",
		"--step-target=10001ms", "--max-queue-time=-1s", "--max-queue-time=1us", "--max-queue-time=25h", "--send-stall=999ms", "--send-stall=61m"} {
		_, err := parse(t, bad)
		require.Error(t, err, bad)
	}
}

func TestIdleTimesHaveAMinimum(t *testing.T) {
	// A model is unloaded after a second at the soonest.
	for _, flag := range []string{"--idle-unload", "--evict-idle"} {
		for _, good := range []string{"0", "1s", "1000h"} {
			_, err := parse(t, flag+"="+good)
			require.NoError(t, err)
		}
		for _, bad := range []string{"-1s", "1ns", "999ms"} {
			_, err := parse(t, flag+"="+bad)
			require.ErrorContains(t, err, flag, bad)
		}
	}
	c, err := parse(t)
	require.NoError(t, err)
	require.Zero(t, c.IdleUnload)
	require.Zero(t, c.EvictIdle)
}
