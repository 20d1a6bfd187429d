package enginetest

import (
	"encoding/binary"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/sim"
)

// TestAWrongBitFailsTheSuite changes one bit of each result in turn.
func TestAWrongBitFailsTheSuite(t *testing.T) {
	job := smallJob(func(c *engine.TrainerConfig) { c.Algorithm = engine.Annealed })
	for name, tc := range map[string]struct {
		change func(*Outcome)
		said   string
	}{
		"nothing":                    {func(*Outcome) {}, ""},
		"an id":                      {func(o *Outcome) { flip(o.IDs, func(ids []uint32) { ids[49] ^= 1 }) }, "ids differ"},
		"a load":                     {func(o *Outcome) { flip(o.Loads, func(loads []uint64) { loads[2] ^= 1 }) }, "loads differ"},
		"the last bit of a variance": {func(o *Outcome) { flip(o.Variances, func(v []float64) { v[2] *= 1 + 0x1p-52 }) }, "variances differ"},
		"the last bit of a codeword": {func(o *Outcome) { flip(o.Codewords, func(b []byte) { b[44] ^= 1 }) }, "codewords differ"},
		"the last bit of a velocity": {func(o *Outcome) { flip(o.State, func(b []byte) { b[len(b)-8] ^= 1 }) }, "states"},
		"the last bit of an energy": {func(o *Outcome) {
			flip(o.Rounds, func(r []engine.Round) { r[0].Energy *= 1 + 0x1p-52 })
		}, "round 0"},
		"a change": {func(o *Outcome) { flip(o.Rounds, func(r []engine.Round) { r[0].Changes++ }) }, "round 0"},
	} {
		t.Run(name, func(t *testing.T) {
			err := job.Check(simWith(t, Hooks{Trained: tc.change}))
			if tc.said == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, tc.said)
			}
		})
	}
}

// flip flips a bit of the result.
func flip[T any](v []T, change func([]T)) {
	if len(v) > 0 {
		change(v)
	}
}

func TestAWrongCodeOrDistanceFailsTheSuite(t *testing.T) {
	job := RandomJob(1)
	desc := engine.CodebookDesc{Dimension: 2, Codewords: 3, Subspaces: 1}
	e := engine.Encoding{Rows: job.Rows[:80], Neighbours: 2, Distances: true}
	codewords := make([]byte, desc.Bytes())
	binary.LittleEndian.PutUint32(codewords[8:], 0x3f800000)
	require.NoError(t, CheckEncoding(simWith(t, Hooks{}), desc, codewords, e, 1))
	require.ErrorContains(t, CheckEncoding(simWith(t, Hooks{Encoded: func(c *engine.Codes) {
		flip(c.Codes, func(b []byte) { b[0], b[1] = b[1], b[0] })
	}}), desc, codewords, e, 1), "codes differ")
	require.ErrorContains(t, CheckEncoding(simWith(t, Hooks{Encoded: func(c *engine.Codes) {
		flip(c.Distances, func(d []float32) { d[0] += 1e-6 })
	}}), desc, codewords, e, 1), "distances differ")
}

func simWith(t *testing.T, hooks Hooks) engine.Vectors {
	t.Helper()
	dev, err := sim.Open(sim.Options{Memory: 1 << 30}, hclog.NewNullLogger())
	require.NoError(t, err)
	return Intercept(dev, hooks).(engine.Vectors)
}

// TestRandomJobsReachWhatTheyAreFor counts the features that the first jobs of the suite use.
func TestRandomJobsReachWhatTheyAreFor(t *testing.T) {
	seen := map[string]int{}
	count := func(what string, is bool) {
		if is {
			seen[what]++
		} else {
			seen[what] += 0
		}
	}
	for seed := range uint64(200) {
		job := RandomJob(seed)
		out, _, err := job.reference()
		require.NoError(t, err, "seed %d: %v", seed, job)
		c := &job.Config
		for i := range engine.Metric(3) {
			count("metric "+string('0'+rune(i)), c.Codebook.Metric == i)
			count("codeword type "+string('0'+rune(i)), c.Codebook.Type == engine.Element(i))
		}
		for i := range engine.Init(4) {
			count("init "+string('0'+rune(i)), c.Init == i)
		}
		for i := range engine.ElementCount {
			count("element type "+string('0'+rune(i)), c.Element == i)
		}
		count("product", c.Codebook.Subspaces > 1)
		count("annealed", c.Algorithm == engine.Annealed)
		count("more than a block", c.Rows > 4096)
		count("converged", out.Reason == engine.Converged)
		count("max iterations", out.Reason == engine.ReachedMaxIterations)
		for _, s := range rowShapes {
			count(s.name, job.Shape == s.name)
		}
		merged, split, empty, filled := false, false, false, false
		for i, r := range out.Rounds {
			merged, split, empty = merged || r.Merged > 0, split || r.Split > 0, empty || r.Empty > 0
			filled = filled || i > 0 && r.Empty < out.Rounds[i-1].Empty
		}
		count("merged", merged)
		count("split", split)
		count("empty", empty)
		count("filled", filled)
	}
	for what, n := range seen {
		require.Positive(t, n, "no job has %s: %v", what, seen)
	}
}
