package model

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/sim"
	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/synth"
)

func TestDefaultsFollowTheDevice(t *testing.T) {
	for name, tc := range map[string]struct {
		kind      string
		memory    uint64
		sequences int
		target    time.Duration
		swap      int64
		batched   int
	}{
		"a CPU":                         {"cpu", 1 << 40, 16, 250 * time.Millisecond, -1, 512},
		"a large GPU":                   {"cuda", 40e9, 256, 50 * time.Millisecond, 4 << 30, 4096},
		"a GPU below that":              {"cuda", 40e9 - 1, 64, 50 * time.Millisecond, 4 << 30, 4096},
		"a stand-in for a large GPU":    {"sim", 80 << 30, 256, 50 * time.Millisecond, -1, 512},
		"a stand-in for a smaller one":  {"sim", 16 << 30, 64, 50 * time.Millisecond, -1, 512},
		"a GPU with hardly any memory":  {"cuda", 1, 64, 50 * time.Millisecond, 4 << 30, 4096},
		"a CPU with hardly any memory":  {"cpu", 1, 16, 250 * time.Millisecond, -1, 512},
		"a stand-in for the largest":    {"sim", 1 << 50, 256, 50 * time.Millisecond, -1, 512},
		"a GPU of 80 GB, half of it":    {"cuda", 40 << 30, 256, 50 * time.Millisecond, 4 << 30, 4096},
		"a GPU of 80 GB, a third of it": {"cuda", 26 << 30, 64, 50 * time.Millisecond, 4 << 30, 4096},
	} {
		t.Run(name, func(t *testing.T) {
			info := engine.DeviceInfo{Kind: tc.kind, BytesTotal: tc.memory}
			require.Equal(t, tc.sequences, DefaultSequences(info))
			require.Equal(t, tc.target, DefaultStepTarget(info))
			require.Equal(t, tc.swap, DefaultSwapSpace(info))
			require.Equal(t, tc.batched, DefaultBatchedTokens(info))
		})
	}
}

// priced costs 1 byte per token of cache and this many bytes of workspace per sequence.
func priced(workspace uint64) func(engine.RunnerConfig) (engine.RunnerCost, error) {
	return func(r engine.RunnerConfig) (engine.RunnerCost, error) {
		return engine.RunnerCost{
			BytesPerBlock: uint64(r.BlockSize), KVBytes: uint64(r.KVBlocks * r.BlockSize),
			WorkspaceBytes: workspace * uint64(r.MaxSequences),
		}, nil
	}
}

func TestPlansOfACache(t *testing.T) {
	for name, tc := range map[string]struct {
		options                   Options
		maxContext                int
		free                      uint64
		workspace                 uint64 // a sequence
		sequences                 int
		chosen                    bool
		wantSequences, wantTokens int
	}{
		"a long context: eight of it":                          {maxContext: 8192, free: 1 << 30, sequences: 16, wantSequences: 16, wantTokens: 8 * 8192},
		"many sequences: a share for each":                     {maxContext: 2048, free: 1 << 30, sequences: 256, wantSequences: 256, wantTokens: 256 * 1024},
		"a context below the share: all of it for each":        {maxContext: 300, free: 1 << 30, sequences: 256, wantSequences: 256, wantTokens: 256 * 304},
		"no more than a quarter of what is free":               {maxContext: 8192, free: 1 << 18, sequences: 256, wantSequences: 256, wantTokens: 1 << 16},
		"a quarter that holds half of them":                    {maxContext: 8192, free: 1<<18 - 64, sequences: 256, wantSequences: 128, wantTokens: 1<<16 - 16},
		"hardly any memory: few sequences":                     {maxContext: 8192, free: 4096, sequences: 256, wantSequences: 16, wantTokens: 4096},
		"one that is chosen is not lowered":                    {maxContext: 8192, free: 4096, sequences: 200, chosen: true, wantSequences: 200, wantTokens: 4096},
		"nor one that the load asks for":                       {options: Options{KVTokens: 4096}, maxContext: 4096, free: 1 << 30, sequences: 200, chosen: true, wantSequences: 200, wantTokens: 4096},
		"a cache asked for bounds the sequences":               {options: Options{KVTokens: 4096}, maxContext: 4096, free: 1 << 30, sequences: 256, wantSequences: 16, wantTokens: 4096},
		"one of exactly the needed share does not":             {options: Options{KVTokens: 256 * 256}, maxContext: 4096, free: 1 << 30, sequences: 256, wantSequences: 256, wantTokens: 256 * 256},
		"one block less does":                                  {options: Options{KVTokens: 256*256 - 16}, maxContext: 4096, free: 1 << 30, sequences: 256, wantSequences: 128, wantTokens: 256*256 - 16},
		"sequences whose workspace leaves no room are lowered": {maxContext: 8192, free: 1 << 20, workspace: 1 << 14, sequences: 256, wantSequences: 32, wantTokens: 1 << 16},
		"an odd number is halved down to the least":            {options: Options{KVTokens: 1024}, maxContext: 1024, free: 1 << 30, sequences: 33, wantSequences: 16, wantTokens: 1024},
		"no more sequences than tokens in a step":              {maxContext: 1024, free: 1 << 30, sequences: 1000, wantSequences: 512, wantTokens: 512 * 1024},
		"a context asked for is held":                          {options: Options{Context: 8192}, maxContext: 1 << 17, free: 9000, sequences: 16, wantSequences: 16, wantTokens: 8192},
	} {
		t.Run(name, func(t *testing.T) {
			p := planner{
				cfg: Config{BlockSize: 16, MaxBatchedTokens: 512}, options: tc.options, maxContext: tc.maxContext, kv: engine.F16, free: tc.free,
				cost: priced(tc.workspace),
			}
			r, context, price, err := p.plan(tc.sequences, tc.chosen)
			require.NoError(t, err)
			require.Equal(t, tc.wantSequences, r.MaxSequences)
			require.Equal(t, tc.wantSequences, r.MaxSampleRows)
			require.Equal(t, tc.wantTokens, r.KVBlocks*16)
			require.Equal(t, uint64(tc.wantTokens), price.KVBytes)
			require.LessOrEqual(t, context, tc.wantTokens)
			if !tc.chosen && r.MaxSequences > minSequences {
				require.GreaterOrEqual(t, r.KVBlocks*16, r.MaxSequences*min(context, minShare))
			}
		})
	}
}

func TestDefaultCacheLeavesRoomForAWorkspaceThatGrowsWithIt(t *testing.T) {
	p := planner{
		cfg: Config{BlockSize: 16, MaxBatchedTokens: 512}, maxContext: 8192, free: 6000,
		cost: func(r engine.RunnerConfig) (engine.RunnerCost, error) {
			kv := uint64(r.KVBlocks * r.BlockSize)
			return engine.RunnerCost{BytesPerBlock: uint64(r.BlockSize), KVBytes: kv, WorkspaceBytes: kv / 4}, nil
		},
	}
	_, context, price, err := p.plan(16, false)
	require.NoError(t, err)
	require.LessOrEqual(t, price.KVBytes+price.WorkspaceBytes, p.free)
	require.Positive(t, context)
	require.Greater(t, price.KVBytes, p.free*7/10, "and wastes little")

	p.options.Context = 5600 // a context that a person asks for is held, so the load is refused
	_, context, price, err = p.plan(16, false)
	require.NoError(t, err)
	require.Equal(t, 5600, context)
	require.Greater(t, price.KVBytes+price.WorkspaceBytes, p.free)
}

// statePriced costs 1 byte per token of cache and this many bytes of state per sequence and saved
// state.
func statePriced(state uint64) func(engine.RunnerConfig) (engine.RunnerCost, error) {
	return func(r engine.RunnerConfig) (engine.RunnerCost, error) {
		states := state * uint64(r.MaxSequences+r.SavedStates)
		return engine.RunnerCost{BytesPerBlock: 16, BytesPerState: state, KVBytes: uint64(r.KVBlocks)*16 + states}, nil
	}
}

func TestStatesOfSequencesArePlanned(t *testing.T) {
	for name, tc := range map[string]struct {
		free, state           uint64
		sequences             int
		wantSequences, wanted int
	}{
		"a state for each sequence and saved ones": {1 << 24, 1 << 10, 64, 64, 256},
		"saved ones within an eighth":              {1 << 24, 1 << 15, 64, 64, 64},
		"fewer sequences for large states":         {1 << 24, 1 << 17, 128, 32, 16},
		"no saved ones where all do not fit":       {1 << 24, 1 << 20, 128, 16, 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := planner{
				cfg: Config{BlockSize: 16, MaxBatchedTokens: 512}, maxContext: 4096, free: tc.free, cost: statePriced(tc.state),
			}
			r, _, price, err := p.plan(tc.sequences, false)
			require.NoError(t, err)
			require.Equal(t, []int{tc.wantSequences, tc.wanted}, []int{r.MaxSequences, r.SavedStates})
			if tc.state < 1<<20 {
				require.LessOrEqual(t, price.KVBytes, tc.free)
			}
		})
	}
}

func TestSavedStatesYieldToTheCache(t *testing.T) {
	const free, state = 1 << 24, 1 << 14
	for name, tc := range map[string]struct {
		options           Options
		maxContext        int
		state             uint64
		wantSaved, tokens int
	}{
		"a requested cache that leaves room for a few":  {Options{KVTokens: 15 << 20}, 1 << 20, state, 48, 15 << 20},
		"one that leaves room for all":                  {Options{KVTokens: 1 << 20}, 1 << 20, state, 64, 1 << 20},
		"one that leaves none":                          {Options{KVTokens: 16<<20 - 16*state}, 1 << 20, state, 0, 16<<20 - 16*state},
		"a requested context":                           {Options{Context: 15<<20 + 512<<10}, 1 << 24, state, 16, 15<<20 + 512<<10},
		"a context that need not fit leaves their part": {Options{}, 1 << 24, 1 << 16, 32, 13 << 20},
		"states that nearly fill the memory":            {Options{}, 1 << 20, 1020 << 10, 0, minContext},
	} {
		t.Run(name, func(t *testing.T) {
			p := planner{
				cfg: Config{BlockSize: 16, MaxBatchedTokens: 512}, maxContext: tc.maxContext, free: free, options: tc.options,
				cost: statePriced(tc.state),
			}
			r, _, price, err := p.plan(16, true)
			require.NoError(t, err)
			require.LessOrEqual(t, price.KVBytes, uint64(free))
			require.Equal(t, []int{tc.wantSaved, tc.tokens}, []int{r.SavedStates, r.KVBlocks * 16})
		})
	}
}

func TestFitErrorNamesStates(t *testing.T) {
	e := &FitError{Name: "m", Needed: 100, Free: 60, Weights: 10, KV: 80, States: 70, Workspace: 10}
	require.ErrorContains(t, e, "needs 100 bytes (weights 10, cache 80 with states 70, workspace 10, staging 0) and 60 are free")
	require.ErrorContains(t, e, "fewer max_sequences")
	e.States = 30
	require.NotContains(t, e.Error(), "fewer max_sequences", "without states it does not fit either")
	e.States = 0
	require.NotContains(t, e.Error(), "states")
}

func TestAnObserverIsMadeForEachLoad(t *testing.T) {
	device, err := sim.Open(sim.Options{Memory: 1 << 30}, hclog.NewNullLogger())
	require.NoError(t, err)
	var made []string
	m := NewManager(Config{
		Dir: folder(t), VerifyInterval: -1,
		Observe: func(name string) batch.Observer { made = append(made, name); return nil },
	}, device, hclog.NewNullLogger())
	for _, name := range []string{"small", "family/other", "small"} {
		_, _, err := m.Load(t.Context(), name, Options{}, nil)
		require.NoError(t, err)
	}
	require.Equal(t, []string{"small", "family/other"}, made)
	require.NoError(t, m.Close())
	require.NoError(t, device.Close())
}

// hostless is a device that has no price for states of host memory.
type hostless struct{ engine.Device }

type hostlessModel struct{ engine.Model }

func (d hostless) NewModel(desc engine.ModelDesc) (engine.Model, error) {
	m, err := d.Device.NewModel(desc)
	return hostlessModel{m}, err
}

func (m hostlessModel) RunnerCost(cfg engine.RunnerConfig) (engine.RunnerCost, error) {
	price, err := m.Model.RunnerCost(cfg)
	price.HostBytesPerState = 0
	return price, err
}

func TestStatesAreServedWithoutHostStates(t *testing.T) {
	dir := t.TempDir()
	shape, _ := synth.Small("lfm2")
	var file bytes.Buffer
	require.NoError(t, synth.Write(&file, shape, synth.Only(gguf.Q8_0), 1))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "lfm2"+extension), file.Bytes(), 0o644))
	device, err := sim.Open(sim.Options{Memory: 1 << 30}, hclog.NewNullLogger())
	require.NoError(t, err)
	m := NewManager(Config{Dir: dir, VerifyInterval: -1}, hostless{device}, hclog.NewNullLogger())
	inst, _, err := m.Load(t.Context(), "lfm2", Options{KVTokens: 1024}, nil)
	require.NoError(t, err)
	require.Zero(t, inst.Runner.HostStates)
	params := engine.SlotParams{TopP: 1, TypicalP: 1, RepetitionPenalty: 1}
	for i := range 3 {
		s, err := submit(inst.Loop, batch.Request{Prompt: make([]int32, 200), Params: params, MaxTokens: 4, PromptTopN: -1})
		require.NoError(t, err)
		for ended := false; !ended; {
			events, err := s.Recv(t.Context(), nil)
			require.NoError(t, err)
			ended = events[len(events)-1].Done != nil
		}
		require.Equal(t, min(i, 1)*192, s.Cached(), "a hit ends where a state was saved")
	}
	require.NoError(t, m.Close())
	require.NoError(t, device.Close())
}
