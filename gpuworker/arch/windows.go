package arch

import (
	"slices"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/gguf"
)

// windowed reads the sliding window and returns the layers that have it, nil if the model has none.
// preset is the window of files without the key; a window of 0 means no window. Without a pattern in the
// file, every period-th layer sees all positions and the others have the window; period 0 gives it
// to all. A window over the whole context hides nothing, so the description has none.
func (r *reader) windowed(d *engine.ModelDesc, preset, period int) []bool {
	return r.windowedBy(d, r.window(preset), period)
}

// windowedBy is windowed with a window that is read.
func (r *reader) windowedBy(d *engine.ModelDesc, window, period int) []bool {
	local := r.pattern(len(d.Layers), period)
	if window == 0 {
		return nil
	}
	for i := range d.Layers {
		if local[i] && window < d.Context {
			d.Layers[i].Mixer.Window = window
		}
	}
	return local
}

func (r *reader) window(preset int) int {
	key := r.key("attention.sliding_window")
	v, ok, err := r.meta.Uint(key)
	switch {
	case err != nil:
		r.fail(err)
	case ok && v > engine.MaxContext:
		r.fail(invalid("metadata %s is %d, want at most %d", key, v, engine.MaxContext))
	case ok:
		return int(v)
	}
	return preset
}

// pattern returns which of n layers have the window. The file has a bool for each layer, or the
// number of layers after which the pattern repeats, whose last sees all positions.
func (r *reader) pattern(n, period int) []bool {
	key := r.key("attention.sliding_window_pattern")
	if v, ok := r.meta.Value(key); ok && v.Type == gguf.Array {
		each, _, err := r.meta.Bools(key)
		switch {
		case err != nil:
			r.fail(err)
		case r.err == nil && len(each) != n:
			r.fail(invalid("metadata %s has %d values, want one for each of %d layers", key, len(each), n))
		case r.err == nil:
			return each
		}
		return make([]bool, n)
	}
	v, ok, err := r.meta.Uint(key)
	switch {
	case err != nil:
		r.fail(err)
	case ok && v > maxLayers:
		r.fail(invalid("metadata %s is %d, want at most %d", key, v, maxLayers))
	case ok:
		period = int(v)
	}
	each := make([]bool, n)
	for i := range each {
		each[i] = period == 0 || i%period != period-1
	}
	return each
}

// localRope gives the layers with a window a rotation of their own: that of the others, with a base
// of its own and without scaling.
func (r *reader) localRope(d *engine.ModelDesc, local []bool, base float32) {
	rope := engine.Rope{Dims: d.Ropes[0].Dims, Style: d.Ropes[0].Style, Base: r.within("rope.freq_base_swa", base, 1, maxRopeBase), Scale: 1}
	if !slices.Contains(local, true) {
		return
	}
	d.Ropes = append(d.Ropes, rope)
	for i := range d.Layers {
		if local[i] {
			d.Layers[i].Mixer.Rope = len(d.Ropes) - 1
		}
	}
}
