package sametest_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/enginetest"
	"github.com/millrace/millrace/gpuworker/sametest"
)

// mutants are engines that break the promise, each in one way that only some company or history shows. A step is copied before
// it is changed, because its arrays are the loop's.
var mutants = map[string]func() enginetest.Hooks{
	"splits its sums by the number of rows": func() enginetest.Hooks {
		return enginetest.Hooks{Result: func(shape enginetest.StepShape, result *engine.StepResult) {
			if shape.Segments > 4 {
				changeLastBits(result)
			}
		}}
	},
	"splits its sums by the number of tokens": func() enginetest.Hooks {
		return enginetest.Hooks{Result: func(shape enginetest.StepShape, result *engine.StepResult) {
			if shape.Segments == 1 && shape.Tokens == 33 {
				changeLastBits(result)
			}
		}}
	},
	"draws for the position after the one that it was asked for": func() enginetest.Hooks {
		return enginetest.Hooks{
			Submit: func(step *engine.Step) error {
				if step.Samples = slices.Clone(step.Samples); len(step.Segments) > 1 {
					for i := range step.Samples {
						step.Samples[i].Position++
					}
				}
				return nil
			},
			Result: func(shape enginetest.StepShape, result *engine.StepResult) {
				if shape.Segments > 1 {
					for i := range result.Samples {
						result.Samples[i].Position--
					}
				}
			},
		}
	},
	"reads the first block of a neighbour": func() enginetest.Hooks {
		return enginetest.Hooks{Submit: func(step *engine.Step) error {
			if n := len(step.Segments); n > 2 && step.Segments[n-1].FirstPosition > 16 {
				step.Segments = slices.Clone(step.Segments)
				step.Segments[n-1].Blocks = slices.Clone(step.Segments[n-1].Blocks)
				step.Segments[n-1].Blocks[0] = step.Segments[0].Blocks[0]
			}
			return nil
		}}
	},
	"forgets which tokens a cached prefix had": func() enginetest.Hooks {
		return enginetest.Hooks{Submit: func(step *engine.Step) error {
			step.PreOps = slices.Clone(step.PreOps)
			for i := range step.PreOps {
				if op := &step.PreOps[i]; len(op.History) > 0 {
					op.History = make([]int32, len(op.History))
				}
			}
			return nil
		}}
	},
	"leaves out the first block that comes back from the host": func() enginetest.Hooks {
		return enginetest.Hooks{Submit: func(step *engine.Step) error {
			in := func(op engine.PreOp) bool { return op.Kind == engine.BlockIn }
			step.PreOps = slices.Clone(step.PreOps)
			if i := slices.IndexFunc(step.PreOps, in); i >= 0 {
				step.PreOps = slices.Delete(step.PreOps, i, i+1)
			}
			return nil
		}}
	},
	"copies blocks to the host once more after the step that frees them": func() enginetest.Hooks {
		var late []engine.PreOp
		return enginetest.Hooks{Submit: func(step *engine.Step) error {
			again := slices.DeleteFunc(slices.Clone(step.PreOps), func(op engine.PreOp) bool { return op.Kind != engine.BlockOut })
			step.PreOps = slices.Concat(late, step.PreOps)
			late = again
			return nil
		}}
	},
	"copies no block that is shared": func() enginetest.Hooks {
		return enginetest.Hooks{Submit: func(step *engine.Step) error {
			step.PreOps = slices.DeleteFunc(slices.Clone(step.PreOps), func(op engine.PreOp) bool { return op.Kind == engine.BlockCopy })
			return nil
		}}
	},
	"forgets the generated part of what it computes again": func() enginetest.Hooks {
		return enginetest.Hooks{Submit: func(step *engine.Step) error {
			for i, segment := range step.Segments {
				if segment.Class == engine.Decode && len(segment.Tokens) > 1 {
					step.Segments = slices.Clone(step.Segments)
					tokens := slices.Clone(segment.Tokens)
					tokens[0] = 0
					step.Segments[i].Tokens = tokens
				}
			}
			return nil
		}}
	},
}

// changeLastBits adds the last bit to every logprob.
func changeLastBits(result *engine.StepResult) {
	for _, rows := range [][]engine.RowResult{result.Samples, result.Scores} {
		for i := range rows {
			rows[i].Logprob *= 1 + 1.0/(1<<23)
		}
	}
}

func TestMutantsAreCaughtAndTheirSeedIsNamed(t *testing.T) { catchMutants(t, openCPU, engine.F32) }

// catchMutants runs each mutant of a device until a scenario fails, which one must soon.
func catchMutants(t *testing.T, opener func(*testing.T) engine.Device, cache engine.Type) {
	t.Helper()
	for name, hooks := range mutants {
		t.Run(name, func(t *testing.T) {
			open := func() engine.Device { return enginetest.Intercept(opener(t), hooks()) }
			err := sametest.Check(open, sametest.Options{
				Scenarios: 400, RowsEvery: 9, Cache: cache, Rerun: "-sametest.seed=",
			}, &sametest.Counts{})
			require.ErrorContains(t, err, "run it again with -sametest.seed=")
			require.ErrorContains(t, err, "alone")
			t.Log(err)
		})
	}
}
