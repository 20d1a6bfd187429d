package vectors

import (
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/services/bench/internal/stats"
)

// never is a number of updates and of stable rounds that no training here reaches.
const never = engine.MaxIterations

// lloyd configures a training by Lloyd's algorithm with a number of updates.
func lloyd(desc engine.CodebookDesc, rows int, e engine.Element, updates int) engine.TrainerConfig {
	return engine.TrainerConfig{
		Codebook: desc, Rows: uint64(rows), Element: e, Algorithm: engine.Lloyd, Init: engine.Random, MaxIterations: updates,
		EnergyTolerance: -1, MinChanges: -1, StableRounds: never,
	}
}

// sliceTimeout bounds the time of a slice; a device that exceeds it hangs.
const sliceTimeout = 10 * time.Minute

// slice submits one slice and waits for it.
func slice(t engine.Trainer, rounds int) (engine.Training, error) {
	if err := t.Submit(engine.Slice{Rounds: rounds}); err != nil {
		return engine.Training{}, err
	}
	return t.Wait(sliceTimeout)
}

// measuredRounds is the number of rounds in one measured time.
const measuredRounds = 3

// iteration measures rounds of a training whose rows are on the device. The time of an assignment
// alone is the smaller of two times, measured in turn with it: encoding the same rows with the
// training's codebook, and on a GPU a round without an update.
func (r *run) iteration(j *job, line *Line) (_ string, err error) {
	rows := j.data(r.cfg.Seed)
	cfg := lloyd(j.desc, j.rows, j.element, never)
	cfg.Seed = r.cfg.Seed
	trainer, err := r.written(r.vec, cfg, rows)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, trainer.Close()) }()
	if _, err := slice(trainer, 1); err != nil { // seeds
		return "", err
	}
	codewords, err := trainer.Codewords()
	if err != nil {
		return "", err
	}
	book, err := r.vec.NewCodebook(j.desc, codewords)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, book.Close()) }()
	var training engine.Training
	var ratios []float64
	warm := true
	err = r.paired(line, j.assign().times(measuredRounds), func() (time.Duration, error) {
		encoding := time.Now()
		if _, err := book.Encode(engine.Encoding{Element: j.element, Rows: rows, Neighbours: 1}); err != nil {
			return 0, err
		}
		alone := time.Since(encoding)
		if r.kind == "cuda" { // encoding copies the rows to the device first
			round, err := r.round(cfg, codewords, rows)
			if err != nil {
				return 0, err
			}
			alone = min(alone, round)
		}
		begin := time.Now()
		training, err = slice(trainer, measuredRounds)
		took := time.Since(begin)
		if !warm {
			ratios = append(ratios, secondsOf(took)/measuredRounds/secondsOf(alone))
		}
		warm = false
		return took, err
	})
	if err != nil {
		return "", err
	}
	line.Rounds, line.OfAssign = measuredRounds, stats.SpreadOf(ratios)
	line.Recomputed = float64(training.Recomputed) / float64(max(training.Computed, 1))
	return "", nil
}

// round returns the time of one round without an update.
func (r *run) round(cfg engine.TrainerConfig, codewords, rows []byte) (_ time.Duration, err error) {
	cfg.Init, cfg.MaxIterations = engine.Given, 0
	trainer, err := r.vec.NewTrainer(cfg)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, trainer.Close()) }()
	if err := errors.Join(trainer.Give(codewords), trainer.Write(0, rows)); err != nil {
		return 0, err
	}
	begin := time.Now()
	_, err = slice(trainer, 1)
	return time.Since(begin), err
}

// writtenBytes is the size of one Write, that of a message of a call.
const writtenBytes = 4 << 20

// written creates a trainer and writes its rows, in pieces as calls do.
func (r *run) written(vec engine.Vectors, cfg engine.TrainerConfig, rows []byte) (engine.Trainer, error) {
	trainer, err := vec.NewTrainer(cfg)
	if err != nil {
		return nil, err
	}
	if err := r.fill(trainer, cfg, rows); err != nil {
		return nil, errors.Join(err, trainer.Close())
	}
	return trainer, nil
}

func (r *run) fill(trainer engine.Trainer, cfg engine.TrainerConfig, rows []byte) error {
	row := cfg.Codebook.Dimension * cfg.Element.Size()
	each := max(1, writtenBytes/row) * row
	for offset := 0; offset < len(rows); offset += each {
		if err := r.ctx.Err(); err != nil {
			return err
		}
		if err := trainer.Write(uint64(offset/row), rows[offset:min(offset+each, len(rows))]); err != nil {
			return err
		}
	}
	return nil
}

// write measures the way of the rows to a trainer.
func (r *run) write(j *job, line *Line) (string, error) {
	rows := j.data(r.cfg.Seed)
	cfg := lloyd(j.desc, j.rows, j.element, 0)
	w := j.assign()
	w.ops = 0
	return "", r.paired(line, w, func() (took time.Duration, err error) {
		trainer, err := r.vec.NewTrainer(cfg)
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, trainer.Close()) }()
		begin := time.Now()
		err = r.fill(trainer, cfg, rows)
		return time.Since(begin), err
	})
}

// trainings returns the jobs of whole trainings: large, the four sizes by Lloyd's algorithm, and
// annealed f32 trainings of the first two sizes.
func (r *run) trainings() (all []job) {
	annealed := engine.Annealing{
		Temperature: 1, CoolingRate: 0.05, LearningRate: 0.2, Trim: 0.1, MaintenanceInterval: 10, MergeDistance: 0.01, SplitLoad: 3,
	}
	add := func(row string, element engine.Element, rows, dimension, codewords, updates int) *job {
		desc := engine.CodebookDesc{Dimension: dimension, Codewords: codewords, Subspaces: 1, Type: engine.VectorF16}
		cfg := lloyd(desc, rows, element, updates)
		cfg.Seed = r.cfg.Seed
		all = append(all, job{row: row, desc: desc, element: cfg.Element, rows: rows, train: cfg, measure: r.train})
		return &all[len(all)-1]
	}
	large := &add("train/large", engine.VectorF32, 10_000, 128, 256, 31).train
	large.Algorithm, large.Init, large.Annealing = engine.Annealed, engine.Farthest, annealed
	sizes := []struct{ rows, dimension, codewords, updates int }{
		{100_000, 384, 1024, 25}, {1_000_000, 128, 2048, 31}, {1_000_000, 256, 20_000, 25}, {1_000_000, 128, 256, 25},
	}
	const annealedToo = 2 // the first two sizes
	for _, element := range r.cfg.Types {
		for i, size := range sizes {
			rows := max(int(float64(size.rows)*r.cfg.Scale), 2*size.codewords)
			updates := min(size.updates, r.cfg.Iterations)
			row := fmt.Sprintf("%s/%dx%dx%d/%d", typeNames[element], rows, size.dimension, size.codewords, updates)
			add("train/"+row, element, rows, size.dimension, size.codewords, updates)
			if i < annealedToo && element == engine.VectorF32 {
				t := &add("train/annealed/"+row, element, rows, size.dimension, size.codewords, updates).train
				t.Algorithm, t.Annealing = engine.Annealed, annealed
			}
		}
	}
	return all
}

// train measures a whole training, from the creation of the trainer to the codebook, with rows in
// the caller's memory, and the part of it after the rows are on the device.
func (r *run) train(j *job, line *Line) (string, error) {
	rows := j.data(r.cfg.Seed)
	var training engine.Training
	var codewords []byte
	var resident []float64
	rounds := j.train.MaxIterations + 1
	err := r.paired(line, j.assign().times(rounds), func() (time.Duration, error) {
		begin := time.Now()
		var after time.Duration
		var err error
		codewords, training, after, err = r.whole(j.train, rows)
		resident = append(resident, after.Seconds())
		return time.Since(begin), err
	})
	if err != nil {
		return "", err
	}
	line.Resident = stats.SpreadOf(resident[min(1, len(resident)-1):]) // the first of several is the warm-up
	line.Rounds, line.Energy = rounds, training.Rounds[len(training.Rounds)-1].Energy
	line.Recomputed = float64(training.Recomputed) / float64(max(training.Computed, 1))
	if r.served == nil {
		return "", nil
	}
	line.Served, err = r.servedTrain(j, line, rows, codewords)
	return "", err
}

// whole trains. It returns the rounds of the last slice, and the time since the rows were written.
func (r *run) whole(cfg engine.TrainerConfig, rows []byte) (codewords []byte, training engine.Training, resident time.Duration, err error) {
	trainer, err := r.written(r.vec, cfg, rows)
	if err != nil {
		return nil, training, 0, err
	}
	defer func() { err = errors.Join(err, trainer.Close()) }()
	begin := time.Now()
	for training.Phase != engine.Done {
		if training, err = slice(trainer, cfg.MaxIterations+1); err != nil {
			return nil, training, 0, err
		}
	}
	codewords, err = trainer.Codewords()
	return codewords, training, time.Since(begin), err
}

// stream measures rounds of a training whose rows do not fit the device, which is opened with
// memory for half of them. The row is skipped if the engine cannot keep rows in the host's memory.
func (r *run) stream(j *job, line *Line) (skipped string, err error) {
	cfg := lloyd(j.desc, j.rows, j.element, never)
	cfg.Seed = r.cfg.Seed
	resident, err := r.vec.TrainerCost(cfg)
	if err != nil {
		return "", err
	}
	size := uint64(j.rows * j.desc.Dimension * j.element.Size())
	dev, err := r.open(resident.DeviceBytes - min(size/2, resident.DeviceBytes/2))
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	vec, ok := dev.(engine.Vectors)
	if !ok {
		return "", engine.ErrUnsupported
	}
	cfg.SpoolBytes = size
	trainer, err := r.written(vec, cfg, j.data(r.cfg.Seed))
	if errors.Is(err, engine.ErrOutOfMemory) {
		return "the engine keeps all rows on the device: " + err.Error(), nil
	}
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, trainer.Close()) }()
	before, err := r.bus()
	if err != nil {
		return "", err
	}
	err = r.paired(line, j.assign().times(measuredRounds), func() (time.Duration, error) {
		begin := time.Now()
		_, err := slice(trainer, measuredRounds)
		return time.Since(begin), err
	})
	if err != nil {
		return "", err
	}
	after, err := r.bus()
	line.Rounds, line.OfBus = measuredRounds, share(line.BytesPerSecond, max(before, after))
	return "", err
}
