package config

import (
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

func TestBadValuesAreNamedAllAtOnce(t *testing.T) {
	_, err := parse(t, "--threads=-1", "--max-sequences=-1", "--log-level=loud", "--memory-limit=much", "--models=/nowhere",
		"--device=sim:x=1", "--step-target=1us", "--swap-space=0.5", "--listen=a:1", "--metrics-listen=a:1")
	for _, flag := range []string{"--threads", "--max-sequences", "--log-level", "--memory-limit", "--models", "--device", "--step-target",
		"--swap-space", "--metrics-listen"} {
		require.ErrorContains(t, err, flag)
	}
}

func TestResidentWeightsAreCheckedEachMinuteUnlessToldOtherwise(t *testing.T) {
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

func TestTheDeviceIsWhatItsFlagsSay(t *testing.T) {
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

func TestTheEdgesOfWhatTheLoopIsTold(t *testing.T) {
	for _, good := range []string{"--max-sequences=0", "--max-sequences=1", "--max-sequences=1024", "--step-target=0", "--step-target=1ms",
		"--step-target=10s"} {
		_, err := parse(t, good)
		require.NoError(t, err, good)
	}
	for _, bad := range []string{"--max-sequences=-1", "--max-sequences=1025", "--step-target=-1ms", "--step-target=999us",
		"--step-target=10001ms"} {
		_, err := parse(t, bad)
		require.Error(t, err, bad)
	}
}

func TestModelsMayBeUnloadedAfterASecondAtTheSoonest(t *testing.T) {
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
