package enginetest

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/reference"
	"github.com/millrace/millrace/gpuworker/engine/rules"
)

// open opens a device, and checks that it is empty when the test ends.
func open(t *testing.T, opener func(*testing.T) engine.Device) engine.Device {
	t.Helper()
	dev := opener(t)
	t.Cleanup(func() {
		info, err := dev.Info()
		require.NoError(t, err)
		require.Zero(t, info.LiveBuffers, "buffers are left")
		require.Equal(t, [engine.PurposeCount]uint64{}, info.BytesUsed, "the ledger is back at zero")
		require.NoError(t, dev.Close())
	})
	return dev
}

// upload puts bytes into a new buffer.
func upload(dev engine.Device, data []byte, purpose engine.Purpose) (engine.Buffer, error) {
	b, err := dev.Alloc(uint64(len(data)), purpose)
	if err != nil {
		return nil, err
	}
	if _, err := b.WriteAt(data, 0); err != nil {
		return nil, err
	}
	return b, nil
}

// bind uploads and binds one tensor.
func bind(dev engine.Device, m engine.Model, tensor reference.Tensor) error {
	b, err := upload(dev, tensor.Bytes, engine.Staging)
	if err != nil {
		return fmt.Errorf("upload: %w", err)
	}
	return m.Bind(tensor.TensorDesc, b)
}

// skipUndivided skips the test if a model was refused because its shape cannot be divided among the
// GPUs of a device.
func skipUndivided(t *testing.T, dev engine.Device, refusal error) {
	t.Helper()
	if !errors.Is(refusal, engine.ErrUnsupported) {
		return
	}
	info, err := dev.Info()
	require.NoError(t, err)
	if info.Devices > 1 && strings.Contains(refusal.Error(), fmt.Sprintf("%d GPUs", info.Devices)) {
		t.Skip(refusal)
	}
}

// Load returns a sealed model on a device. The test closes it when it ends.
func Load(t *testing.T, dev engine.Device, w *reference.Weights) engine.Model {
	t.Helper()
	m, err := dev.NewModel(w.Desc)
	skipUndivided(t, dev, err)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	for _, tensor := range w.Tensors {
		require.NoError(t, bind(dev, m, tensor))
	}
	require.NoError(t, m.Seal())
	return m
}

// NewRunner returns a runner. The test closes it when it ends.
func NewRunner(t *testing.T, m engine.Model, cfg engine.RunnerConfig) engine.Runner {
	t.Helper()
	r, err := m.NewRunner(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

// Small is a shape without round numbers: odd widths, grouped heads, a vocabulary that ends inside
// a mask word.
func Small() engine.Uniform {
	return engine.Uniform{
		Layers: 2, Hidden: 72, Heads: 6, KVHeads: 2, HeadDim: 20, FFN: 104, Vocab: 301, Context: 512, RopeDims: 20,
		RopeStyle: engine.RopeNorm, RopeBase: 10000, RopeScale: 1, NormEps: 1e-5,
	}
}

// blockBytes returns the bytes of keys and values in one KV block.
func blockBytes(shape engine.Uniform, cfg engine.RunnerConfig) uint64 {
	d := shape.Model()
	return rules.BlockBytes(&d, cfg, false)
}

// all returns one type for every matrix.
func all(t engine.Type) func(engine.Role) engine.Type {
	return func(engine.Role) engine.Type { return t }
}

// Sizes returns a configuration of a runner that fits most tests.
func Sizes() engine.RunnerConfig {
	return engine.RunnerConfig{
		KVBlocks: 128, BlockSize: 16, MaxSequences: 8, MaxBatchedTokens: 256, MaxSampleRows: 8, MaxScoreRows: 256, MaxTopN: 16,
		KVType: engine.F32,
	}
}

// Plain returns sampling parameters without effect except the seed and the temperature.
func Plain(seed uint64, temperature float32) *engine.SlotParams {
	return &engine.SlotParams{Seed: seed, Temperature: temperature, TopP: 1, TypicalP: 1, RepetitionPenalty: 1}
}
