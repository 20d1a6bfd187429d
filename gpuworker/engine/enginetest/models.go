package enginetest

import (
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"lukechampine.com/blake3"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/rules"
)

func testModel(t *testing.T, opener func(*testing.T) engine.Device, opts Options) {
	t.Run("digests equal those of the file bytes for every type", func(t *testing.T) {
		dev := open(t, opener)
		for i, weights := range rules.WeightTypes() {
			desc := Small()
			desc.Hidden, desc.FFN, desc.Heads, desc.HeadDim, desc.Layers = 256, 256, 8, 32, 1
			desc.Vocab, desc.RopeDims = 301-i, 32 // rows that end inside a panel
			desc.QKVBias, desc.OBias, desc.QKNorm, desc.RopeFactors = i%2 == 0, i%2 == 0, i%3 == 0, i%2 == 1
			w := Random(desc.Model(), all(weights), uint64(i))
			before, err := dev.Info()
			require.NoError(t, err)
			m, err := dev.NewModel(desc.Model())
			require.NoError(t, err)
			for _, tensor := range w.Tensors {
				size, err := dev.ResidentSize(tensor.TensorDesc)
				require.NoError(t, err)
				require.GreaterOrEqual(t, size, uint64(len(tensor.Bytes)))
				require.NoError(t, bind(dev, m, tensor))
			}
			held, err := dev.Info()
			require.NoError(t, err)
			require.Equal(t, before.LiveBuffers, held.LiveBuffers, "bind consumed the buffers")
			require.Positive(t, held.BytesUsed[engine.Weights])
			require.NoError(t, m.Seal())
			for j, tensor := range w.Tensors {
				digest, err := m.Digest(j)
				require.NoError(t, err)
				require.Equal(t, engine.Digest(blake3.Sum256(tensor.Bytes)), digest, "type %d: %s", tensor.Type, rules.Name(tensor.Role, tensor.Layer))
			}
			require.NoError(t, m.Close())
		}
	})
	t.Run("digests come out right from several goroutines", func(t *testing.T) {
		dev := open(t, opener)
		w := Random(Small().Model(), all(engine.F16), 1)
		m := Load(t, dev, w)
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				for j := range w.Tensors {
					k := (i + j) % len(w.Tensors)
					if digest, err := m.Digest(k); err != nil || digest != blake3.Sum256(w.Tensors[k].Bytes) {
						t.Errorf("tensor %d: %v", k, err)
					}
				}
			})
		}
		wg.Wait()
	})
	t.Run("a missing tensor is named when the model is sealed", func(t *testing.T) {
		dev := open(t, opener)
		desc := Small()
		desc.QKVBias = true
		w := Random(desc.Model(), all(engine.F32), 1)
		for _, missing := range []struct {
			role  engine.Role
			layer int
			words []string
		}{
			{engine.RoleDown, 1, []string{"down", "1"}}, {engine.RoleEmbedding, -1, []string{"embed"}},
			{engine.RoleKBias, 0, []string{"k", "bias", "0"}},
		} {
			m, err := dev.NewModel(desc.Model())
			require.NoError(t, err)
			for _, tensor := range w.Tensors {
				if tensor.Role != missing.role || tensor.Layer != missing.layer {
					require.NoError(t, bind(dev, m, tensor))
				}
			}
			err = m.Seal()
			require.ErrorIs(t, err, engine.ErrPrecondition)
			for _, word := range missing.words {
				require.Contains(t, strings.ToLower(err.Error()), word)
			}
			_, err = m.NewRunner(Sizes())
			require.ErrorIs(t, err, engine.ErrPrecondition, "an unsealed model has no runners")
			require.NoError(t, bind(dev, m, w.Tensors[w.Find(missing.role, missing.layer)]))
			require.NoError(t, m.Seal(), "it is whole after all")
			require.NoError(t, m.Close())
		}
	})
	t.Run("a wrong tensor is refused and its buffer consumed", func(t *testing.T) {
		dev := open(t, opener)
		w := Random(Small().Model(), all(engine.F32), 1)
		q := w.Tensors[w.Find(engine.RoleQ, 0)]
		norm := w.Tensors[w.Find(engine.RoleAttnNorm, 0)]
		m, err := dev.NewModel(w.Desc)
		require.NoError(t, err)
		for name, spoil := range map[string]func(*engine.TensorDesc){
			"another width":            func(d *engine.TensorDesc) { d.Dims = []int64{d.Dims[0] + 1, d.Dims[1]} },
			"dims the other way round": func(d *engine.TensorDesc) { d.Dims = []int64{d.Dims[1], d.Dims[0]} },
			"one dim":                  func(d *engine.TensorDesc) { d.Dims = d.Dims[:1] },
			"no dims":                  func(d *engine.TensorDesc) { d.Dims = nil },
			"a negative dim":           func(d *engine.TensorDesc) { d.Dims = []int64{-d.Dims[0], d.Dims[1]} },
			"a layer too many":         func(d *engine.TensorDesc) { d.Layer = 2 },
			"a layer outside":          func(d *engine.TensorDesc) { d.Layer = -1 },
			"an unknown role":          func(d *engine.TensorDesc) { d.Role = engine.RoleCount },
			"a role it does not have":  func(d *engine.TensorDesc) { d.Role = engine.RoleQBias },
			"an unknown type":          func(d *engine.TensorDesc) { d.Type = 77 },
			"a type of longer bytes":   func(d *engine.TensorDesc) { d.Type = engine.Q8_0 },
		} {
			bad := q
			bad.Dims = append([]int64(nil), q.Dims...)
			spoil(&bad.TensorDesc)
			b, err := upload(dev, q.Bytes, engine.Staging)
			require.NoError(t, err)
			require.Error(t, m.Bind(bad.TensorDesc, b), name)
			require.ErrorIs(t, b.Free(), engine.ErrPrecondition, "%s: the buffer is gone", name)
		}
		small, err := upload(dev, q.Bytes[:len(q.Bytes)-4], engine.Staging)
		require.NoError(t, err)
		require.ErrorIs(t, m.Bind(q.TensorDesc, small), engine.ErrInvalid, "a buffer that is too small")
		halves := norm
		halves.Type, halves.Bytes = engine.F16, norm.Bytes[:len(norm.Bytes)/2]
		require.ErrorIs(t, bind(dev, m, halves), engine.ErrInvalid, "a norm in half precision")
		require.NoError(t, bind(dev, m, q))
		require.Error(t, bind(dev, m, q), "the same tensor twice")
		info, err := dev.Info()
		require.NoError(t, err)
		require.Zero(t, info.LiveBuffers)
		require.NoError(t, m.Close())
	})
	t.Run("a shape that cannot be is refused", func(t *testing.T) {
		dev := open(t, opener)
		for name, spoil := range map[string]func(*engine.Uniform){
			"no layers":                   func(d *engine.Uniform) { d.Layers = 0 },
			"a negative width":            func(d *engine.Uniform) { d.Hidden = -4 },
			"heads that do not divide":    func(d *engine.Uniform) { d.KVHeads = 4 },
			"odd rope dims":               func(d *engine.Uniform) { d.RopeDims = 7 },
			"more rope dims than dims":    func(d *engine.Uniform) { d.RopeDims = 22 },
			"an unknown rope style":       func(d *engine.Uniform) { d.RopeStyle = 9 },
			"a rope base of zero":         func(d *engine.Uniform) { d.RopeBase = 0 },
			"no context":                  func(d *engine.Uniform) { d.Context = 0 },
			"a width beyond 32 bits":      func(d *engine.Uniform) { d.FFN = 1 << 40 },
			"a vocabulary without tokens": func(d *engine.Uniform) { d.Vocab = 0 },
		} {
			desc := Small()
			spoil(&desc)
			_, err := dev.NewModel(desc.Model())
			require.ErrorIs(t, err, engine.ErrInvalid, name)
		}
	})
	t.Run("memory is counted, and refused when there is none", func(t *testing.T) {
		dev := open(t, opener)
		m := Load(t, dev, Random(Small().Model(), all(engine.F16), 1))
		before, err := dev.Info()
		require.NoError(t, err)
		cost, err := m.RunnerCost(Sizes())
		require.NoError(t, err)
		least := Sizes()
		if opts.Cache != engine.F32 {
			least.KVType = opts.Cache
		}
		require.GreaterOrEqual(t, cost.BytesPerBlock, blockBytes(Small(), least))
		require.GreaterOrEqual(t, cost.KVBytes, cost.BytesPerBlock*uint64(Sizes().KVBlocks))
		r, err := m.NewRunner(Sizes())
		require.NoError(t, err)
		during, err := dev.Info()
		require.NoError(t, err)
		require.LessOrEqual(t, during.BytesUsed[engine.KV]-before.BytesUsed[engine.KV], cost.KVBytes+4096)
		require.LessOrEqual(t, during.BytesUsed[engine.Workspace]-before.BytesUsed[engine.Workspace], cost.WorkspaceBytes+4096)
		require.Positive(t, during.BytesUsed[engine.KV])
		require.ErrorIs(t, m.Close(), engine.ErrPrecondition, "a runner lives")
		require.NoError(t, r.Close())
		require.ErrorIs(t, r.Close(), engine.ErrPrecondition)
		after, err := dev.Info()
		require.NoError(t, err)
		require.Equal(t, before.BytesUsed, after.BytesUsed)
		huge := Sizes()
		huge.KVBlocks = 1 << 24
		_, err = m.NewRunner(huge)
		require.ErrorIs(t, err, engine.ErrOutOfMemory)
		after, err = dev.Info()
		require.NoError(t, err)
		require.Equal(t, before.BytesUsed, after.BytesUsed, "a refused runner keeps nothing")
	})
	t.Run("a runner's sizes out of range are refused", func(t *testing.T) {
		m := Load(t, open(t, opener), Random(Small().Model(), all(engine.F16), 1))
		for name, spoil := range map[string]func(*engine.RunnerConfig){
			"no blocks":             func(c *engine.RunnerConfig) { c.KVBlocks = 0 },
			"blocks of 24":          func(c *engine.RunnerConfig) { c.BlockSize = 24 },
			"no sequences":          func(c *engine.RunnerConfig) { c.MaxSequences = 0 },
			"no tokens":             func(c *engine.RunnerConfig) { c.MaxBatchedTokens = 0 },
			"no sample rows":        func(c *engine.RunnerConfig) { c.MaxSampleRows = 0 },
			"negative score rows":   func(c *engine.RunnerConfig) { c.MaxScoreRows = -1 },
			"65 candidates":         func(c *engine.RunnerConfig) { c.MaxTopN = 65 },
			"a cache in q8_0":       func(c *engine.RunnerConfig) { c.KVType = engine.Q8_0 },
			"blocks beyond 32 bits": func(c *engine.RunnerConfig) { c.KVBlocks = 1 << 40 },
		} {
			cfg := Sizes()
			spoil(&cfg)
			_, err := m.NewRunner(cfg)
			require.ErrorIs(t, err, engine.ErrInvalid, name)
			_, err = m.RunnerCost(cfg)
			require.ErrorIs(t, err, engine.ErrInvalid, name)
		}
	})
	t.Run("is an error once closed", func(t *testing.T) {
		dev := open(t, opener)
		w := Random(Small().Model(), all(engine.F16), 1)
		m, err := dev.NewModel(w.Desc)
		require.NoError(t, err)
		require.NoError(t, m.Close())
		require.ErrorIs(t, m.Close(), engine.ErrPrecondition)
		require.ErrorIs(t, m.Seal(), engine.ErrPrecondition)
		require.ErrorIs(t, bind(dev, m, w.Tensors[0]), engine.ErrPrecondition)
		_, err = m.Digest(0)
		require.ErrorIs(t, err, engine.ErrPrecondition)
	})
	t.Run("a flipped bit is found in the tensor it is in", func(t *testing.T) {
		dev := open(t, opener)
		desc := Small()
		desc.Hidden, desc.FFN, desc.Layers = 256, 256, 1
		for _, weights := range []engine.Type{engine.F32, engine.BF16, engine.Q8_0, engine.Q4_0, engine.Q4_K, engine.Q2_K, engine.IQ3XXS, engine.IQ2S} {
			desc.Heads, desc.HeadDim, desc.RopeDims = 8, 32, 32
			w := Random(desc.Model(), all(weights), 1)
			m := Load(t, dev, w)
			for _, at := range []int{w.Find(engine.RoleGate, 0), w.Find(engine.RoleOutputNorm, -1)} {
				size := uint64(len(w.Tensors[at].Bytes))
				for _, bit := range []uint64{0, 77, size*8 - 1} {
					require.NoError(t, m.(engine.BitFlipper).FlipBit(at, bit))
					for i, tensor := range w.Tensors {
						digest, err := m.Digest(i)
						require.NoError(t, err)
						require.Equal(t, i != at, digest == blake3.Sum256(tensor.Bytes), "type %d bit %d tensor %d", weights, bit, i)
					}
					require.NoError(t, m.(engine.BitFlipper).FlipBit(at, bit))
					digest, err := m.Digest(at)
					require.NoError(t, err)
					require.Equal(t, engine.Digest(blake3.Sum256(w.Tensors[at].Bytes)), digest, "flipped back")
				}
			}
			require.ErrorIs(t, m.(engine.BitFlipper).FlipBit(len(w.Tensors), 0), engine.ErrInvalid)
			require.ErrorIs(t, m.(engine.BitFlipper).FlipBit(0, 1<<60), engine.ErrInvalid)
		}
	})
}
