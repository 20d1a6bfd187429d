package enginetest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

func TestGPUsMayRefuseSomeModels(t *testing.T) {
	latents, wide, plain := Latents(), Latents(), Small().Model()
	wide.Layers[0].Mixer.Latent = mostLatent + 1
	gpu := func(major, minor, devices int) engine.DeviceInfo {
		return engine.DeviceInfo{Kind: "cuda", ComputeMajor: major, ComputeMinor: minor, Devices: devices}
	}
	for name, tc := range map[string]struct {
		info engine.DeviceInfo
		desc engine.ModelDesc
		want bool
	}{
		"a CPU":                           {engine.DeviceInfo{Kind: "cpu", Devices: 1}, wide, false},
		"a latent on 8.0":                 {gpu(8, 0, 1), latents, false},
		"a latent on 8.6":                 {gpu(8, 6, 1), latents, true},
		"a latent on 8.9":                 {gpu(8, 9, 1), latents, true},
		"a latent on 9.0":                 {gpu(9, 0, 1), latents, false},
		"a latent on 10.0":                {gpu(10, 0, 1), latents, false},
		"a latent on 12.0":                {gpu(12, 0, 1), latents, true},
		"a wide latent on 9.0":            {gpu(9, 0, 1), wide, true},
		"a model without a latent on 8.6": {gpu(8, 6, 1), plain, false},
		"a model without a latent on two": {gpu(9, 0, 2), plain, true},
		"a latent on two GPUs":            {gpu(9, 0, 2), latents, true},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tc.want, mayRefuse(tc.info, &tc.desc)) })
	}
}
