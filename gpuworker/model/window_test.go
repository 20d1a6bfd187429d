package model

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/rules"
	"github.com/millrace/millrace/gpuworker/engine/sim"
	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/synth"
)

// layered is a model of attention, in f16 for each token and layer of kvHeads heads, in which every
// period-th layer sees all positions and the others have the window.
func layered(layers, kvHeads, dim, window, period int) engine.ModelDesc {
	d := engine.ModelDesc{Context: 131072}
	for i := range layers {
		m := engine.Mixer{Kind: engine.MixAttention, Heads: 2 * kvHeads, KVHeads: kvHeads, KeyDim: dim, ValueDim: dim}
		if (i+1)%period != 0 {
			m.Window = window
		}
		d.Layers = append(d.Layers, engine.Layer{Mixer: m})
	}
	return d
}

// costOf returns the cost of a runner of a model without its workspace.
func costOf(d engine.ModelDesc) func(engine.RunnerConfig) (engine.RunnerCost, error) {
	return func(r engine.RunnerConfig) (engine.RunnerCost, error) {
		if err := rules.CheckRunner(&d, r); err != nil {
			return engine.RunnerCost{}, err
		}
		block, window := rules.BlockBytes(&d, r, false), rules.BlockBytes(&d, r, true)
		price := engine.RunnerCost{BytesPerBlock: block, BytesPerWindowBlock: window, KVBytes: uint64(r.KVBlocks) * block}
		if r.WindowBlocks > 0 {
			price.KVBytes += uint64(r.WindowBlocks+1) * window
		}
		return price, nil
	}
}

// planOf plans a model on a GPU.
func planOf(d engine.ModelDesc, free uint64, sequences int, o Options, groups bool) (engine.RunnerConfig, int, engine.RunnerCost, error) {
	p := planner{
		cfg: Config{BlockSize: 16, MaxBatchedTokens: 4096}, options: o, maxContext: d.Context, kv: engine.F16, free: free, cost: costOf(d),
	}
	if groups {
		p.window = d.GroupWindow()
	}
	return p.plan(sequences, o.MaxSequences > 0)
}

// gemma27 has the cache of Gemma 3 27B.
func gemma27() engine.ModelDesc { return layered(62, 16, 128, 1024, 6) }

func TestWindowsGiveTheirMemoryBack(t *testing.T) {
	// The table of docs/models.md: a context of 131 072 tokens, in GB.
	for name, tc := range map[string]struct {
		desc                engine.ModelDesc
		masks, one, sixteen float64
	}{
		"Gemma 3 27B":  {gemma27(), 66.6, 11.6, 18.3},
		"Gemma 3 12B":  {layered(48, 8, 256, 1024, 6), 51.5, 9.3, 14.4},
		"gpt-oss 120B": {layered(36, 8, 64, 128, 2), 9.7, 4.9, 5.0},
	} {
		t.Run(name, func(t *testing.T) {
			sized := func(sequences int, groups bool) float64 {
				o := Options{Context: 131072, KVTokens: 131072, MaxSequences: uint32(sequences)}
				r, context, price, err := planOf(tc.desc, 1<<40, sequences, o, groups)
				require.NoError(t, err)
				require.Equal(t, 131072, context)
				require.Equal(t, groups, r.WindowBlocks > 0)
				return float64(price.KVBytes) / 1e9
			}
			require.InDelta(t, tc.masks, sized(1, false), 0.06)
			require.InDelta(t, tc.masks, sized(16, false), 0.06)
			require.InDelta(t, tc.one, sized(1, true), 0.06)
			require.InDelta(t, tc.sixteen, sized(16, true), 0.06)
		})
	}
}

func TestTokensComeBeforeTheWindowGroup(t *testing.T) {
	// 12 GB hold 131 072 tokens of Gemma 3 27B, however many sequences may run.
	for _, sequences := range []int{1, 16, 256} {
		t.Run(fmt.Sprint(sequences, " sequences"), func(t *testing.T) {
			o := Options{Context: 131072, KVTokens: 131072, MaxSequences: uint32(sequences)}
			r, context, price, err := planOf(gemma27(), 12e9, sequences, o, true)
			require.NoError(t, err)
			require.Equal(t, 131072, context)
			require.LessOrEqual(t, price.KVBytes, uint64(12e9))
			require.GreaterOrEqual(t, r.WindowBlocks, 65+64, "a window and a chunk")
			_, _, price, err = planOf(gemma27(), 12e9, sequences, o, false)
			require.NoError(t, err)
			require.Greater(t, price.KVBytes, uint64(66e9), "without groups")
		})
	}
}

func TestDefaultPlansLeaveRoomForWindows(t *testing.T) {
	for _, free := range []uint64{4e9, 12e9, 40e9, 100e9} {
		t.Run(fmt.Sprint(free), func(t *testing.T) {
			r, context, price, err := planOf(gemma27(), free, 256, Options{}, true)
			require.NoError(t, err)
			require.LessOrEqual(t, price.KVBytes, free)
			_, without, _, err := planOf(gemma27(), free, 256, Options{}, false)
			require.NoError(t, err)
			require.GreaterOrEqual(t, context, min(131072, 3*without))
			windows := float64(r.WindowBlocks+1) * float64(price.BytesPerWindowBlock)
			require.Greater(t, windows, 0.2*float64(min(free, 20e9)), "a quarter, while it can use it")
			require.Less(t, r.WindowBlocks, r.KVBlocks)
		})
	}
}

func TestShortCachesHaveOneGroup(t *testing.T) {
	r, _, price, err := planOf(gemma27(), 1e12, 4, Options{KVTokens: 2048, MaxSequences: 4}, true)
	require.NoError(t, err)
	require.Zero(t, r.WindowBlocks, "the window group would be as large")
	require.EqualValues(t, 2048*62*8192, price.KVBytes)
}

func TestAnEngineWithoutTheGroupGetsOnePool(t *testing.T) {
	p := planner{
		cfg: Config{BlockSize: 16, MaxBatchedTokens: 512}, maxContext: 4096, free: 1 << 30, window: 100,
		cost: func(r engine.RunnerConfig) (engine.RunnerCost, error) {
			if r.WindowBlocks > 0 {
				return engine.RunnerCost{}, fmt.Errorf("no such pool: %w", engine.ErrUnsupported)
			}
			return engine.RunnerCost{BytesPerBlock: 16, KVBytes: uint64(r.KVBlocks) * 16}, nil
		},
	}
	r, context, _, err := p.plan(4, true)
	require.NoError(t, err)
	require.Zero(t, r.WindowBlocks)
	require.Equal(t, 4096, context)
}

func TestModelsOfWindowsAloneArePlanned(t *testing.T) {
	// All layers have a window: tokens cost nothing, and the window group everything.
	d := layered(32, 8, 128, 4096, 1000)
	r, context, price, err := planOf(d, 20e9, 64, Options{}, true)
	require.NoError(t, err)
	require.Equal(t, 131072, context)
	require.Zero(t, price.BytesPerBlock)
	require.LessOrEqual(t, price.KVBytes, uint64(20e9))
	require.Equal(t, 8*131072/16, r.KVBlocks, "contexts without bytes")
}

func TestAWindowGroupIsServed(t *testing.T) {
	// The same requests get the same answers from a cache with a window group and from one without.
	dir := t.TempDir()
	shape, _ := synth.Small("gemma3")
	var file bytes.Buffer
	require.NoError(t, synth.Write(&file, shape, synth.Only(gguf.Q8_0), 1))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "gemma3"+extension), file.Bytes(), 0o644))
	device, err := sim.Open(sim.Options{Memory: 1 << 30}, hclog.NewNullLogger())
	require.NoError(t, err)
	m := NewManager(Config{Dir: dir, VerifyInterval: -1, SwapSpace: 1 << 24}, device, hclog.NewNullLogger())
	var answers [2][][]int32
	for i, tokens := range []uint64{512, 4096} {
		inst, _, err := m.Load(t.Context(), "gemma3", Options{KVTokens: tokens}, nil)
		require.NoError(t, err)
		require.Equal(t, i == 1, inst.Runner.WindowBlocks > 0, "512 tokens are no more than a chunk and a window")
		require.Equal(t, inst.Runner.WindowBlocks, inst.Runner.HostWindowBlocks)
		var streams []*batch.Stream
		for k := range 8 {
			prompt := make([]int32, 40+25*k)
			for at := range prompt {
				prompt[at] = int32(1 + at*(1+k/2)%200)
			}
			s, err := submit(inst.Loop, batch.Request{
				Prompt: prompt, MaxTokens: 30, PromptTopN: -1,
				Params: engine.SlotParams{Seed: uint64(k), Temperature: 1, TopP: 1, TypicalP: 1, RepetitionPenalty: 1},
			})
			require.NoError(t, err)
			streams = append(streams, s)
		}
		for _, s := range streams {
			var answer []int32
			for ended := false; !ended; {
				events, err := s.Recv(t.Context(), nil)
				require.NoError(t, err)
				for _, e := range events {
					if e.Token != nil {
						answer = append(answer, e.Token.Token)
					}
					ended = ended || e.Done != nil
				}
			}
			answers[i] = append(answers[i], answer)
		}
		_, err = m.Unload(t.Context(), "gemma3", false)
		require.NoError(t, err)
	}
	require.Equal(t, answers[0], answers[1])
	require.NoError(t, m.Close())
	require.NoError(t, device.Close())
}
