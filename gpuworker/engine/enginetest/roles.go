package enginetest

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/rules"
)

// roleShapes are models with different tensors. No two of Small's sizes are equal, so that the dims
// of two roles are not equal by chance.
var roleShapes = map[string]func(*engine.Uniform){
	"nothing optional": func(d *engine.Uniform) { d.TiedHead = true },
	"a head":           func(*engine.Uniform) {},
	"qkv biases":       func(d *engine.Uniform) { d.QKVBias = true },
	"an output bias":   func(d *engine.Uniform) { d.OBias = true },
	"head norms":       func(d *engine.Uniform) { d.QKNorm = true },
	"everything": func(d *engine.Uniform) {
		d.QKVBias, d.OBias, d.QKNorm = true, true, true
	},
}

// testRoles compares an engine's table of roles with that of engine.Role: which tensors a model
// has, in the layers and outside, their dims, and which are vectors.
func testRoles(t *testing.T, opener func(*testing.T) engine.Device, _ Options) {
	for name, change := range roleShapes {
		t.Run(name, func(t *testing.T) {
			dev := open(t, opener)
			shape := Small()
			change(&shape)
			testRolesOf(t, dev, shape.Model())
		})
	}
	t.Run("experts", func(t *testing.T) {
		for _, desc := range []engine.ModelDesc{
			mixture(Small().Model(), 7, 2), grouped(mixture(Small().Model(), 6, 2)), apart(grouped(mixture(Small().Model(), 6, 2))), gptOSS(),
		} {
			testRolesOf(t, open(t, opener), desc)
		}
	})
	t.Run("latents", func(t *testing.T) {
		byLatent, direct := Latents(), Latents()
		direct.Layers[0], direct.Layers[2] = direct.Layers[2], direct.Layers[0]
		for _, desc := range []engine.ModelDesc{byLatent, direct} {
			testRolesOf(t, open(t, opener), desc)
		}
	})
	t.Run("states and gates", func(t *testing.T) {
		delta, conv, gated := Hybrid(), Hybrid(), Small().Model()
		conv.Layers[0], conv.Layers[2] = conv.Layers[2], conv.Layers[0]
		gated.Layers[0].Mixer.OutGate, gated.Layers[0].Mixer.QKVBias, gated.Layers[0].Mixer.QKNorm = true, true, true
		for _, desc := range []engine.ModelDesc{delta, conv, gated} {
			testRolesOf(t, open(t, opener), desc)
		}
	})
}

func testRolesOf(t *testing.T, dev engine.Device, desc engine.ModelDesc) {
	t.Helper()
	skipUnbuilt(t, dev, &desc)
	m, err := dev.NewModel(desc)
	require.NoError(t, err)
	for role := range engine.RoleCount {
		refuseOthers(t, dev, m, &desc, role)
	}
	// The refused tensors left no trace: the model is whole with all that the table wants, and with no
	// less.
	tensors := rules.Tensors(&desc)
	for _, want := range tensors {
		require.NoError(t, bindZeros(dev, m, want.Role, want.Layer, engine.F32, want.Dims), "%v of layer %d", want.Role, want.Layer)
	}
	require.NoError(t, m.Seal())
	require.NoError(t, m.Close())
	for _, left := range tensors {
		if left.Layer <= 0 {
			sealsOnlyWith(t, dev, desc, left)
		}
	}
}

// skipUnbuilt skips a test of a model that a device may refuse (mayRefuse), and of experts whose
// shape several GPUs cannot divide. They must refuse it by the name of a layer. The other engines
// compute every block.
func skipUnbuilt(t *testing.T, dev engine.Device, desc *engine.ModelDesc) {
	t.Helper()
	plain := func(l engine.Layer) bool { return l.Mixer.Kind == engine.MixAttention && l.MLP.Kind == engine.MLPDense }
	if !slices.ContainsFunc(desc.Layers, func(l engine.Layer) bool { return !plain(l) }) {
		return
	}
	m, err := dev.NewModel(*desc)
	skipUndivided(t, dev, err)
	if errors.Is(err, engine.ErrUnsupported) {
		requireUnbuilt(t, dev, desc, err)
		require.Regexp(t, `layer \d+ has (a gated delta rule|a short convolution|attention over a latent|a latent of \d+ dims)`, err.Error())
		t.Skip("no kernels for the model, which CPU workers run: ", err)
	}
	require.NoError(t, err)
	require.NoError(t, m.Close())
}

// mostLatent is the widest latent that GPUs have kernels for.
const mostLatent = 512

// requireUnbuilt fails the test, with the refusal, unless the device may refuse the model.
func requireUnbuilt(t *testing.T, dev engine.Device, desc *engine.ModelDesc, refusal error) {
	t.Helper()
	info, err := dev.Info()
	require.NoError(t, err)
	require.True(t, mayRefuse(info, desc), refusal)
}

// mayRefuse reports whether a device may have no kernels for a model: several GPUs, and one GPU if
// the model has a latent that is wider than its kernels, or any latent on a GPU whose blocks have
// less than 163 KiB of shared memory (compute capability 8.6, 8.9 and 12).
func mayRefuse(info engine.DeviceInfo, desc *engine.ModelDesc) bool {
	if info.Kind != "cuda" {
		return false
	}
	small := info.ComputeMajor == 8 && (info.ComputeMinor == 6 || info.ComputeMinor == 9) || info.ComputeMajor == 12
	return info.Devices > 1 || slices.ContainsFunc(desc.Layers, func(l engine.Layer) bool {
		return l.Mixer.Latent > mostLatent || l.Mixer.Kind == engine.MixLatent && small
	})
}

// refuseOthers checks that a role is refused with anything except the entry of the table.
func refuseOthers(t *testing.T, dev engine.Device, m engine.Model, desc *engine.ModelDesc, role engine.Role) {
	t.Helper()
	layer, other := -1, 0
	if role.InLayer() {
		layer, other = 0, -1
	}
	dims := role.Dims(desc, max(layer, 0))
	if !role.Of(desc, max(layer, 0)) {
		require.ErrorIs(t, bindZeros(dev, m, role, layer, engine.F32, dims), engine.ErrInvalid, "%v is not of this model", role)
		return
	}
	require.ErrorIs(t, bindZeros(dev, m, role, other, engine.F32, dims), engine.ErrInvalid, "%v of layer %d", role, other)
	for i := range dims {
		for _, by := range []int64{-1, 1} {
			bad := slices.Clone(dims)
			bad[i] += by
			require.ErrorIs(t, bindZeros(dev, m, role, layer, engine.F32, bad), engine.ErrInvalid, "%v with dims %v", role, bad)
		}
	}
	if role.Vector() {
		require.ErrorIs(t, bindZeros(dev, m, role, layer, engine.F32, []int64{dims[0], 1}), engine.ErrInvalid, "%v with two dims", role)
		require.ErrorIs(t, bindZeros(dev, m, role, layer, engine.F16, dims), engine.ErrInvalid, "%v in half precision", role)
	} else {
		require.ErrorIs(t, bindZeros(dev, m, role, layer, engine.F32, dims[:1]), engine.ErrInvalid, "%v with one dim", role)
	}
}

// sealsOnlyWith checks that Seal fails if one tensor is missing.
func sealsOnlyWith(t *testing.T, dev engine.Device, desc engine.ModelDesc, left rules.Wanted) {
	t.Helper()
	m, err := dev.NewModel(desc)
	require.NoError(t, err)
	for _, w := range rules.Tensors(&desc) {
		if w.Role != left.Role || w.Layer != left.Layer {
			require.NoError(t, bindZeros(dev, m, w.Role, w.Layer, engine.F32, w.Dims))
		}
	}
	require.ErrorIs(t, m.Seal(), engine.ErrPrecondition, "without %v", left.Role)
	require.NoError(t, m.Close())
}

// bindZeros binds a tensor of enough zeros.
func bindZeros(dev engine.Device, m engine.Model, role engine.Role, layer int, typ engine.Type, dims []int64) error {
	n := int64(4)
	for _, d := range dims {
		n *= max(d, 1)
	}
	b, err := upload(dev, make([]byte, n), engine.Staging)
	if err != nil {
		return fmt.Errorf("upload: %w", err)
	}
	return m.Bind(engine.TensorDesc{Role: role, Layer: layer, Type: typ, Dims: dims}, b)
}
