package vectors_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/sim"
	"github.com/millrace/millrace/gpuworker/vectors"
)

// rig is a manager over its own device.
type rig struct {
	*vectors.Manager
	device *sim.Device
	dir    string
}

func newRig(t *testing.T, change func(*vectors.Config)) *rig {
	t.Helper()
	device, err := sim.Open(sim.Options{}, hclog.NewNullLogger())
	require.NoError(t, err)
	r := &rig{device: device, dir: filepath.Join(t.TempDir(), "codebooks")}
	cfg := vectors.Config{Dir: r.dir, MaxTrainings: 2}
	if change != nil {
		change(&cfg)
	}
	r.Manager = vectors.NewManager(cfg, device, hclog.NewNullLogger())
	t.Cleanup(func() {
		require.NoError(t, r.Close())
		require.Zero(t, r.held(t), "every byte is given back")
		require.NoError(t, device.Close())
	})
	return r
}

// held returns the device memory in use.
func (r *rig) held(t *testing.T) (sum uint64) {
	t.Helper()
	info, err := r.device.Info()
	require.NoError(t, err)
	for _, n := range info.BytesUsed {
		sum += n
	}
	return sum
}

// smallJob trains on rows of two float32.
func smallJob(change func(*vectors.Job)) vectors.Job {
	j := vectors.Job{Rows: 64, Trainer: engine.TrainerConfig{
		Codebook: engine.CodebookDesc{Dimension: 2, Codewords: 4, Subspaces: 1, Type: engine.VectorF16}, Element: engine.VectorF32,
		Seed: 7, MaxIterations: 12, EnergyTolerance: -1, MinChanges: -1, StableRounds: 1000,
	}}
	if change != nil {
		change(&j)
	}
	return j
}

// someRows returns n rows of d float32.
func someRows(n, d int) []byte {
	var out []byte
	x := uint32(1)
	for range n * d {
		x = x*1664525 + 1013904223
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(float32(x>>16)/4096))
	}
	return out
}

// heard records the events of a training.
type heard struct {
	begun       time.Time          // before the training
	progress    []vectors.Progress // of each round
	checkpoints map[int64][]byte
	err         error  // returned at a checkpoint
	stop        func() // called at a checkpoint
}

// Progress implements vectors.Events. After a second of silence a training repeats its progress:
// that is no round.
func (h *heard) Progress(p vectors.Progress) error {
	told := p.Round == nil || len(h.progress) > 0 && h.progress[len(h.progress)-1].Round.Iteration == p.Round.Iteration
	if told && time.Since(h.begun) >= time.Second {
		return nil
	}
	h.progress = append(h.progress, p)
	return nil
}

func (h *heard) Checkpoint(updates int64, state []byte) error {
	if h.checkpoints == nil {
		h.checkpoints = map[int64][]byte{}
	}
	h.checkpoints[updates] = state
	if h.stop != nil {
		h.stop()
	}
	return h.err
}

// trained runs a job on rows in pieces of a size.
func (r *rig) trained(t *testing.T, job vectors.Job, prologue, rows []byte, piece int, h *heard) (vectors.End, error) {
	t.Helper()
	tr, err := r.Begin(job)
	require.NoError(t, err)
	defer tr.Close()
	if len(prologue) > 0 {
		require.NoError(t, tr.Prologue(prologue[:1]))
		require.NoError(t, tr.Prologue(prologue[1:]))
	}
	size := job.Trainer.Codebook.Dimension * job.Trainer.Element.Size() * piece
	for len(rows) > 0 {
		n := min(size, len(rows))
		require.NoError(t, tr.Write(rows[:n]))
		rows = rows[n:]
	}
	require.True(t, tr.Complete())
	h.begun = time.Now()
	end, err := tr.Train(t.Context(), h)
	tr.Fail(err)
	return end, err
}

func TestRoundsAreReportedForAnyChunks(t *testing.T) {
	r := newRig(t, nil)
	rows := someRows(64, 2)
	var want vectors.End
	for i, piece := range []int{64, 1, 7, 63} {
		h := &heard{}
		end, err := r.trained(t, smallJob(nil), nil, rows, piece, h)
		require.NoError(t, err)
		require.Len(t, h.progress, 13, "twelve updates, and a round that measures the last")
		for n, p := range h.progress {
			require.EqualValues(t, n, p.Round.Iteration)
			require.Equal(t, n == 0, p.Delta == nil)
			require.EqualValues(t, 4, p.Codewords)
		}
		require.Equal(t, engine.ReachedMaxIterations, end.Reason)
		require.EqualValues(t, 12, end.Last.Iteration)
		require.Len(t, end.Codewords, 16)
		require.InDelta(t, float64(16+64)/float64(64*8), end.Ratio, 1e-12)
		if i == 0 {
			want = end
		}
		require.Equal(t, want.Codewords, end.Codewords)
		require.Equal(t, want.Digest, end.Digest)
	}
	st := r.Stats()
	require.EqualValues(t, 4, st.Finished)
	require.EqualValues(t, 4*13, st.Rounds)
	require.EqualValues(t, 4*64, st.Rows)
	require.Zero(t, st.Trainings)
	require.Zero(t, st.TrainingBytes)
}

func TestResumeFromEveryCheckpoint(t *testing.T) {
	// A training resumes from every checkpoint to the same bits.
	r := newRig(t, nil)
	rows := someRows(64, 2)
	for name, change := range map[string]func(*vectors.Job){
		"Lloyd":           func(j *vectors.Job) { j.Checkpoint = 5 },
		"every iteration": func(j *vectors.Job) { j.Checkpoint = 1 },
		"annealed": func(j *vectors.Job) {
			j.Checkpoint, j.Trainer.Algorithm = 5, engine.Annealed
			j.Trainer.Annealing = engine.Annealing{Temperature: 1, CoolingRate: 0.05, LearningRate: 0.5, Momentum: 0.3}
		},
		"sampled": func(j *vectors.Job) { j.Checkpoint, j.MaxRows = 5, 20 },
	} {
		t.Run(name, func(t *testing.T) {
			h := &heard{}
			want, err := r.trained(t, smallJob(change), nil, rows, 10, h)
			require.NoError(t, err)
			job := smallJob(change)
			require.Len(t, h.checkpoints, 12/job.Checkpoint)
			for updates, state := range h.checkpoints {
				require.Zero(t, updates%int64(job.Checkpoint))
				again := &heard{}
				job := smallJob(change)
				job.ResumeBytes = uint64(len(state))
				end, err := r.trained(t, job, state, rows, 64, again)
				require.NoError(t, err)
				require.Equal(t, want.Codewords, end.Codewords, "from %d", updates)
				require.Equal(t, want.Digest, end.Digest)
				require.Equal(t, want.Last.Energy, end.Last.Energy)
				require.Equal(t, updates, again.progress[0].Round.Iteration)
				for later, state := range again.checkpoints {
					require.Equal(t, h.checkpoints[later], state, "the checkpoint at %d of the one from %d", later, updates)
				}
			}
		})
	}
}

func TestInterruptGivesAResumableCheckpoint(t *testing.T) {
	// An interrupted training gives a checkpoint from which another training resumes.
	r := newRig(t, nil)
	rows := someRows(64, 2)
	job := smallJob(func(j *vectors.Job) { j.Checkpoint = 3 })
	want, err := r.trained(t, job, nil, rows, 64, &heard{})
	require.NoError(t, err)
	tr, err := r.Begin(job)
	require.NoError(t, err)
	defer tr.Close()
	require.NoError(t, tr.Write(rows))
	h := &heard{}
	h.stop = func() { tr.Interrupt(vectors.ErrStopped) }
	_, err = tr.Train(t.Context(), h)
	require.ErrorIs(t, err, vectors.ErrStopped)
	require.Len(t, h.checkpoints, 1)
	job.ResumeBytes = uint64(len(h.checkpoints[3]))
	end, err := r.trained(t, job, h.checkpoints[3], rows, 1, &heard{})
	require.NoError(t, err)
	require.Equal(t, want.Codewords, end.Codewords)

	tr, err = r.Begin(smallJob(nil))
	require.NoError(t, err)
	defer tr.Close()
	require.NoError(t, tr.Write(rows))
	tr.Interrupt(vectors.ErrStopped)
	_, err = tr.Train(t.Context(), &heard{})
	require.NoError(t, err, "one without checkpoints goes on to its end")
}

func TestASampleIsTheSameInAnyPieces(t *testing.T) {
	r := newRig(t, nil)
	rows := someRows(64, 2)
	job := smallJob(func(j *vectors.Job) { j.MaxRows = 12 })
	want, err := r.trained(t, job, nil, rows, 64, &heard{})
	require.NoError(t, err)
	for _, piece := range []int{1, 5} {
		end, err := r.trained(t, job, nil, rows, piece, &heard{})
		require.NoError(t, err)
		require.Equal(t, want.Codewords, end.Codewords)
	}
	whole, err := r.trained(t, smallJob(nil), nil, rows, 64, &heard{})
	require.NoError(t, err)
	require.NotEqual(t, want.Codewords, whole.Codewords)
	require.Greater(t, smallJob(nil).Sampled(), job.Sampled())
}

func TestWhatATrainingIsGivenIsCheckedAndNamed(t *testing.T) {
	r := newRig(t, nil)
	rows := someRows(64, 2)
	nan := bytes.Clone(rows)
	binary.LittleEndian.PutUint32(nan[17*8+4:], math.Float32bits(float32(math.NaN())))
	given := func(j *vectors.Job) { j.Trainer.Init = engine.Given }
	for name, tc := range map[string]struct {
		change func(*vectors.Job)
		do     func(*vectors.Training) error
		says   string
		is     error
	}{
		"half a row":                    {do: func(tr *vectors.Training) error { return tr.Write(rows[:12]) }, says: "rows: 12 bytes after row 0 are not whole rows"},
		"a row too many":                {do: func(tr *vectors.Training) error { return tr.Write(append(bytes.Clone(rows), rows[:8]...)) }, says: "rows: 65 come after 0, and 64 were declared"},
		"a NaN":                         {do: func(tr *vectors.Training) error { return tr.Write(nan) }, says: "rows: row 17"},
		"a NaN, later":                  {do: func(tr *vectors.Training) error { return errors.Join(tr.Write(rows[:80]), tr.Write(nan[80:])) }, says: "rows: row 17"},
		"a NaN not sampled":             {change: func(j *vectors.Job) { j.MaxRows = 4 }, do: func(tr *vectors.Training) error { return tr.Write(nan) }, says: "rows: row 17 has an element"},
		"a prologue nobody asked for":   {do: func(tr *vectors.Training) error { return tr.Prologue([]byte{1}) }, says: "prologue: 1 bytes came, and only 0 of 0 are missing"},
		"rows before the codewords":     {change: given, do: func(tr *vectors.Training) error { return tr.Write(rows) }, says: "prologue: rows came while 16 of its 16 bytes are missing"},
		"codewords that are not finite": {change: given, do: func(tr *vectors.Training) error { return tr.Prologue(bytes.Repeat([]byte{0xff, 0x7f}, 8)) }, says: "prologue: "},
		"what is no checkpoint":         {change: func(j *vectors.Job) { j.ResumeBytes = 56 }, do: func(tr *vectors.Training) error { return tr.Prologue(make([]byte, 56)) }, is: vectors.ErrCheckpoint},
		"rows beyond the codewords' type": {do: func(tr *vectors.Training) error {
			wide := bytes.Clone(rows)
			binary.LittleEndian.PutUint32(wide, math.Float32bits(1e6))
			if err := tr.Write(wide); err != nil {
				return err
			}
			_, err := tr.Train(context.Background(), &heard{})
			return err
		}, says: "config.codeword_type: "},
	} {
		t.Run(name, func(t *testing.T) {
			tr, err := r.Begin(smallJob(tc.change))
			require.NoError(t, err)
			defer tr.Close()
			err = tc.do(tr)
			if tc.is == nil {
				tc.is = vectors.ErrInput
			}
			require.ErrorIs(t, err, tc.is)
			require.ErrorContains(t, err, tc.says)
		})
	}
	_, err := r.Begin(smallJob(func(j *vectors.Job) { j.ResumeBytes = 55 }))
	require.ErrorIs(t, err, vectors.ErrCheckpoint)
}

func TestBeginRefusesWhatDoesNotFit(t *testing.T) {
	// A training that does not fit is refused with the numbers and holds no memory.
	r := newRig(t, nil)
	_, err := r.Begin(smallJob(func(j *vectors.Job) { j.Rows = 1 << 40; j.MaxRows = 1 << 31; j.Trainer.Codebook.Dimension = 4096 }))
	var fit *vectors.FitError
	require.ErrorAs(t, err, &fit)
	require.Greater(t, fit.Needed, uint64(1)<<43)
	require.Less(t, fit.Free, fit.Needed)
	require.Zero(t, r.held(t))
}

func TestAsManyTrainingsRunAsMay(t *testing.T) {
	r := newRig(t, nil)
	one, err := r.Begin(smallJob(nil))
	require.NoError(t, err)
	two, err := r.Begin(smallJob(nil))
	require.NoError(t, err)
	_, err = r.Begin(smallJob(nil))
	require.ErrorIs(t, err, vectors.ErrTooMany)
	require.Equal(t, 2, r.Stats().Trainings)
	one.Close()
	one.Close()
	three, err := r.Begin(smallJob(nil))
	require.NoError(t, err)
	two.Close()
	three.Close()
	require.EqualValues(t, 3, r.Stats().Failed)

	none := newRig(t, func(c *vectors.Config) { c.MaxTrainings = 0 })
	_, err = none.Begin(smallJob(nil))
	require.ErrorIs(t, err, vectors.ErrNoTrainings)
}

func TestACancelledTrainingEndsAtOnce(t *testing.T) {
	r := newRig(t, nil)
	tr, err := r.Begin(smallJob(nil))
	require.NoError(t, err)
	require.NoError(t, tr.Write(someRows(64, 2)))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = tr.Train(ctx, &heard{})
	require.ErrorIs(t, err, context.Canceled)
	tr.Fail(err)
	tr.Close()
	require.EqualValues(t, 1, r.Stats().Cancelled)
	require.Zero(t, r.held(t))
}

func TestTokensGoFirstAndTheBitsStay(t *testing.T) {
	rows := someRows(64, 2)
	alone := newRig(t, nil)
	want, err := alone.trained(t, smallJob(nil), nil, rows, 64, &heard{})
	require.NoError(t, err)
	var looks uint64
	busy := newRig(t, func(c *vectors.Config) {
		c.Tokens = func() vectors.Tokens {
			looks++
			return vectors.Tokens{Busy: looks < 40, Steps: looks}
		}
	})
	end, err := busy.trained(t, smallJob(nil), nil, rows, 64, &heard{})
	require.NoError(t, err)
	require.Equal(t, want.Codewords, end.Codewords)
	require.Greater(t, looks, uint64(1), "it looked whether there is work")
}

func TestTheDeviceSaysWhetherItHasVectors(t *testing.T) {
	device, err := sim.Open(sim.Options{}, hclog.NewNullLogger())
	require.NoError(t, err)
	m := vectors.NewManager(vectors.Config{Dir: t.TempDir(), MaxTrainings: 1}, plain{device}, hclog.NewNullLogger())
	require.False(t, m.Supported())
	_, err = m.Begin(smallJob(nil))
	require.ErrorIs(t, err, engine.ErrUnsupported)
	_, _, err = m.Acquire("x", nil)
	require.ErrorIs(t, err, engine.ErrUnsupported)
	_, err = m.Put("x", engine.CodebookDesc{}, nil, false)
	require.ErrorIs(t, err, engine.ErrUnsupported)
	require.Empty(t, m.List())
	require.NoError(t, m.Close())
	require.NoError(t, device.Close())
}

// plain is a device without vectors.
type plain struct{ engine.Device }
