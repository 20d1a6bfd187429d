package model

import (
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/sim"
)

func TestHostSpaceIsSharedByTheModels(t *testing.T) {
	s := &hostSpace{}
	s.mu.free = 1000
	blocks := engine.RunnerCost{HostBytesPerBlock: 100}
	states := engine.RunnerCost{HostBytesPerBlock: 100, HostBytesPerState: 60}
	windows := engine.RunnerCost{HostBytesPerBlock: 20, HostBytesPerWindowBlock: 60}
	for name, tc := range map[string]struct {
		most  hostPlaces
		price engine.RunnerCost
		want  hostPlaces
	}{
		"an engine without it":      {hostPlaces{5, 0, 9}, engine.RunnerCost{}, hostPlaces{}},
		"no more than wanted":       {hostPlaces{5, 0, 9}, blocks, hostPlaces{blocks: 5}},
		"no more than there is":     {hostPlaces{50, 0, 9}, blocks, hostPlaces{blocks: 10}},
		"a state for each sequence": {hostPlaces{50, 0, 4}, states, hostPlaces{blocks: 7, states: 4}},
		"half for states":           {hostPlaces{50, 0, 100}, states, hostPlaces{blocks: 5, states: 8}},
		"half for the window group": {hostPlaces{50, 40, 0}, windows, hostPlaces{blocks: 26, windows: 8}},
		"blocks without bytes":      {hostPlaces{50, 5, 0}, engine.RunnerCost{HostBytesPerWindowBlock: 60}, hostPlaces{blocks: 50, windows: 5}},
		"a block that is too large": {hostPlaces{50, 0, 9}, engine.RunnerCost{HostBytesPerBlock: 1001}, hostPlaces{}},
		"no states wanted":          {hostPlaces{3, 0, 0}, states, hostPlaces{blocks: 3}},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tc.want, s.share(tc.most, tc.price)) })
	}
	require.Equal(t, uint64(4*60), s.reserve(hostPlaces{windows: 4}, windows))
	s.release(4 * 60)
	first := s.reserve(hostPlaces{blocks: 4, states: 5}, states)
	require.Equal(t, uint64(700), first)
	require.Equal(t, 3, s.share(hostPlaces{blocks: 50}, blocks).blocks)
	rest := s.reserve(hostPlaces{blocks: 4}, blocks)
	require.Equal(t, uint64(300), rest, "the price rose")
	s.release(first)
	s.release(rest)
	require.Equal(t, uint64(1000), s.mu.free)
}

func TestTiersNeedWhatTheirPrefixesNeed(t *testing.T) {
	prices := map[string]engine.RunnerCost{
		"blocks":  {HostBytesPerBlock: 100},
		"states":  {HostBytesPerBlock: 100, HostBytesPerState: 300, BytesPerState: 300},
		"windows": {HostBytesPerBlock: 100, HostBytesPerWindowBlock: 300},
	}
	for name, tc := range map[string]struct {
		price string
		cache uint64
		whole bool
		want  hostPlaces // of the tier; the swap space is one block
	}{
		"blocks":             {"blocks", 1000, false, hostPlaces{blocks: 10}},
		"eight caches":       {"blocks", 1 << 20, false, hostPlaces{blocks: 8 * 20}},
		"off":                {"blocks", 0, false, hostPlaces{}},
		"whole texts":        {"blocks", 1000, true, hostPlaces{}},
		"states":             {"states", 1000, false, hostPlaces{blocks: 7, states: 1}},
		"no room for states": {"states", 500, false, hostPlaces{}},
		"windows":            {"windows", 2000, false, hostPlaces{blocks: 11, windows: 3}},
		"none for windows":   {"windows", 500, false, hostPlaces{}},
	} {
		t.Run(name, func(t *testing.T) {
			l := loader{swap: &hostSpace{}, tier: &hostSpace{}, logger: hclog.NewNullLogger(), cfg: Config{HostCache: int64(tc.cache)}}
			l.swap.mu.free, l.tier.mu.free = 100, tc.cache
			inst := &Instance{Runner: engine.RunnerConfig{KVBlocks: 20, MaxSequences: 4}}
			inst.Facts.WholeTexts = tc.whole
			if price := prices[tc.price]; price.BytesPerState > 0 {
				inst.Runner.SavedStates = 4
			} else if price.HostBytesPerWindowBlock > 0 {
				inst.Runner.WindowBlocks = 10
			}
			l.shareHost(inst, prices[tc.price])
			require.Equal(t, tc.want, inst.tier)
			require.Equal(t, 1+tc.want.blocks, inst.Runner.HostBlocks)
			require.Equal(t, tc.want.states, inst.Runner.HostStates)
			require.Equal(t, tc.want.windows, inst.Runner.HostWindowBlocks)
		})
	}
}

func TestHostMemoryComesBackWithItsModel(t *testing.T) {
	device, err := sim.Open(sim.Options{Memory: 1 << 30}, hclog.NewNullLogger())
	require.NoError(t, err)
	m := NewManager(Config{Dir: folder(t), VerifyInterval: -1, SwapSpace: 1 << 20, HostCache: 1 << 22}, device, hclog.NewNullLogger())
	first, _, err := m.Load(t.Context(), "small", Options{KVTokens: 1024}, nil)
	require.NoError(t, err)
	price, err := first.model.RunnerCost(first.Runner)
	require.NoError(t, err)
	require.Equal(t, m.swap.mu.free+first.swap.bytes(price), uint64(1<<20))
	require.Equal(t, m.tier.mu.free+first.tier.bytes(price), uint64(1<<22))
	require.Positive(t, first.swap.blocks)
	require.Positive(t, first.tier.blocks)
	require.LessOrEqual(t, first.tier.blocks, tierTimes*first.Runner.KVBlocks)
	require.Equal(t, first.swap.blocks+first.tier.blocks, first.Runner.HostBlocks)
	require.Equal(t, first.tier.blocks, first.Loop.Stats().TotalTierBlocks)
	require.Equal(t, first.swap.blocks, first.Loop.Stats().TotalHostBlocks)
	_, err = m.Unload(t.Context(), "small", false)
	require.NoError(t, err)
	require.Equal(t, []uint64{1 << 20, 1 << 22}, []uint64{m.swap.mu.free, m.tier.mu.free})
	_, _, err = m.Load(t.Context(), "truncated", Options{}, nil)
	require.Error(t, err)
	require.Equal(t, []uint64{1 << 20, 1 << 22}, []uint64{m.swap.mu.free, m.tier.mu.free})
	require.NoError(t, m.Close())
	require.NoError(t, device.Close())
}
