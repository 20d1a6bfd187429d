package sametest_test

import (
	"flag"
	"runtime"
	"slices"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/native"
	"github.com/millrace/millrace/gpuworker/engine/sim"
	"github.com/millrace/millrace/gpuworker/sametest"
	"github.com/millrace/millrace/internal/cputest"
)

var (
	seed  = flag.Int64("sametest.seed", -1, "run the scenario of this seed alone")
	first = flag.Uint64("sametest.first", 0, "first seed")
	count = flag.Int("sametest.count", 0, "how many seeds; 0: as many as each test has")
)

// chosen returns the options with the values of the flags.
func chosen(t *testing.T, o sametest.Options) sametest.Options {
	t.Helper()
	o.Rerun = "go test ./gpuworker/sametest -run '^" + t.Name() + "$' -sametest.seed="
	o.First = *first
	if *count > 0 {
		o.Scenarios = *count
	}
	if *seed >= 0 {
		o.First, o.Scenarios, o.Demanded = uint64(*seed), 1, nil
	}
	return o
}

func openCPU(t *testing.T) engine.Device {
	t.Helper()
	dev, err := native.Open(native.Options{Device: "cpu", Path: cputest.Path(), Threads: 1, BytesLimit: 2 << 30}, hclog.NewNullLogger())
	require.NoError(t, err)
	return dev
}

func TestTheCPUEngineAndTheLoopKeepTheirBits(t *testing.T) {
	sametest.Run(t, openCPU, chosen(t, sametest.Options{
		Scenarios: 2000, Workers: runtime.GOMAXPROCS(0), RowsEvery: 60, WideEvery: 75, LongEvery: 2000,
		Demanded: slices.Concat(sametest.Everywhere(), sametest.States(), sametest.Windows(),
			[]string{sametest.SawDecodeClass, sametest.SawLong, sametest.SawDescribed}),
	}))
}

func openSim(t *testing.T) engine.Device {
	t.Helper()
	dev, err := sim.Open(sim.Options{Memory: 1 << 30}, hclog.NewNullLogger())
	require.NoError(t, err)
	return dev
}

func TestTheSimEngineAndTheLoopKeepTheirTokens(t *testing.T) {
	sametest.Run(t, openSim, chosen(t, sametest.Options{
		Scenarios: 300, Workers: runtime.GOMAXPROCS(0),
		Demanded: []string{sametest.SawPreempted, sametest.SawCut, sametest.SawRested, sametest.SawStateRead, sametest.SawWindowLeft},
	}))
}

// No engine has a cache of f8 for latents, so scenarios of such a cache draw no model with them.
func TestScenariosOfAnF8CacheDrawNoLatents(t *testing.T) {
	sametest.Run(t, openSim, chosen(t, sametest.Options{Scenarios: 60, Workers: runtime.GOMAXPROCS(0), Cache: engine.F8}))
}
