package server

import (
	"github.com/millrace/millrace/gpuworker/model"
	"github.com/millrace/millrace/gpuworker/vectors"
)

// TokensOf says what the models of a device do, for the trainings beside them, which give way.
func TokensOf(m *model.Manager) func() vectors.Tokens {
	return func() (t vectors.Tokens) {
		for _, inst := range m.Instances() {
			if inst.Loop == nil {
				continue // its load failed, and the device keeps its memory
			}
			t.Steps += inst.Loop.Stats().Steps
			t.Busy = t.Busy || !inst.Loop.Idle()
		}
		return t
	}
}
