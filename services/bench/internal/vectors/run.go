package vectors

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/services/bench/internal/proc"
	"github.com/millrace/millrace/services/bench/internal/stats"
)

// Open opens the device with a memory limit in bytes; 0: without one.
type Open func(limit uint64) (engine.Device, error)

// run is a run in progress.
type run struct {
	ctx      context.Context
	cfg      Config
	open     Open
	dev      engine.Device
	vec      engine.Vectors
	kind     string
	served   *served // nil: no target
	progress func(format string, args ...any)
	report   Report
}

// Run measures the device that open returns. progress gets lines for a user. If the error is
// ErrTooFast or ErrWrong, the report is complete and void; with any other error it is nil. If the
// engine has no vector codebooks, the error is engine.ErrUnsupported.
func Run(ctx context.Context, open Open, cfg Config, progress func(format string, args ...any)) (_ *Report, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	dev, err := open(0)
	if err != nil {
		return nil, fmt.Errorf("open device: %w", err)
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	info, err := dev.Info()
	if err != nil {
		return nil, err
	}
	vec, err := vectorsOf(dev, info)
	if err != nil {
		return nil, err
	}
	cfg.complete(info.Kind)
	r := &run{ctx: ctx, cfg: cfg, open: open, dev: dev, vec: vec, kind: info.Kind, progress: progress, report: Report{
		Machine: proc.ThisMachine(), Repeat: cfg.Repeat, Budget: cfg.Budget.Seconds(), Scale: cfg.Scale, Seed: cfg.Seed, Target: cfg.Target,
		Device: Device{Kind: info.Kind, Name: info.Name, Path: info.Path, Build: info.Build, Threads: info.SMCount},
	}}
	stolen := proc.WatchStolen()
	if cfg.Target != "" {
		if r.served, err = dial(ctx, &cfg); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, r.served.close()) }()
	}
	wrong, err := r.parts()
	if err != nil {
		return nil, err
	}
	if err := r.reading(); err != nil {
		return nil, err
	}
	r.report.Stolen, r.report.LoadAfter = stolen.Share(), proc.ThisMachine().Load
	return &r.report, errors.Join(wrong, r.report.check())
}

// vectorsOf returns the vector interface of the device. It requests a cost, which allocates
// nothing, to find out whether the engine supports vectors.
func vectorsOf(dev engine.Device, info engine.DeviceInfo) (engine.Vectors, error) {
	vec, ok := dev.(engine.Vectors)
	if !ok {
		return nil, fmt.Errorf("device %s has no vector codebooks: %w", info.Name, engine.ErrUnsupported)
	}
	desc := engine.CodebookDesc{Dimension: 1, Codewords: 1, Subspaces: 1}
	if _, err := vec.TrainerCost(lloyd(desc, 1, engine.VectorF32, 0)); err != nil {
		return nil, fmt.Errorf("device %s: %w", info.Name, err)
	}
	return vec, nil
}

// parts measures every part. wrong is about results; err ended the run.
func (r *run) parts() (wrong, err error) {
	for _, part := range Parts() {
		if !slices.Contains(r.cfg.Parts, part) {
			continue
		}
		for _, job := range r.jobs(part) {
			if err := r.ctx.Err(); err != nil {
				return nil, err
			}
			line := job.line(part)
			skipped, err := job.measure(&job, line)
			switch {
			case errors.Is(err, ErrWrong):
				wrong = errors.Join(wrong, fmt.Errorf("%s: %w", job.row, err))
			case err != nil:
				return nil, fmt.Errorf("%s: %w", job.row, err)
			case skipped != "":
				r.report.Skipped = append(r.report.Skipped, Skipped{job.row, skipped})
				continue
			}
			r.report.Lines = append(r.report.Lines, *line)
		}
	}
	return wrong, nil
}

// job is one row of the table.
type job struct {
	row     string
	desc    engine.CodebookDesc
	element engine.Element
	rows    int
	train   engine.TrainerConfig // of parts that train
	// measure fills in the line, or returns the reason why the row is skipped.
	measure func(*job, *Line) (skipped string, err error)
}

// line returns the job's line without figures.
func (j *job) line(part string) *Line {
	return &Line{
		Part: part, Row: j.row, Type: typeNames[j.element], Rows: j.rows, Dimension: j.desc.Dimension, Codewords: j.desc.Codewords,
		Subspaces: j.desc.Subspaces,
	}
}

// leastPerCodeword is the minimum of rows for each codeword of a training. With fewer rows, most of
// a round is the update of the codewords.
const leastPerCodeword = 16

// jobs returns the rows of a part.
func (r *run) jobs(part string) (all []job) {
	flat := func(k int) engine.CodebookDesc {
		return engine.CodebookDesc{Dimension: r.cfg.Dimension, Codewords: k, Subspaces: 1, Type: engine.VectorF16}
	}
	product := engine.CodebookDesc{
		Kind: engine.Product, Dimension: r.cfg.Dimension, Codewords: 256, Subspaces: r.cfg.Subspaces, Type: engine.VectorF16,
	}
	if part == PartTrain {
		return r.trainings()
	}
	for _, e := range r.cfg.Types {
		name := typeNames[e]
		switch part {
		case PartEncode:
			for _, k := range r.cfg.Codewords {
				row := fmt.Sprintf("encode/%s/%d/%d", name, r.cfg.Dimension, k)
				all = append(all, job{row: row, desc: flat(k), element: e, rows: r.cfg.rows(r.kind, k), measure: r.encode})
			}
		case PartProduct:
			row := fmt.Sprintf("encode/%s/%d/%dx256", name, r.cfg.Dimension, r.cfg.Subspaces)
			all = append(all, job{row: row, desc: product, element: e, rows: r.cfg.rows(r.kind, 256), measure: r.encode})
		case PartIteration:
			for _, k := range r.cfg.Codewords {
				if k > engine.MaxSequential && r.kind != "cuda" && r.cfg.Rows == 0 {
					continue // fewer rows would be no training, and enough would take minutes
				}
				rows := max(r.cfg.rows(r.kind, k), leastPerCodeword*k)
				row := fmt.Sprintf("iteration/%s/%d/%d", name, r.cfg.Dimension, k)
				all = append(all, job{row: row, desc: flat(k), element: e, rows: rows, measure: r.iteration})
			}
		case PartWrite:
			row := fmt.Sprintf("write/%s/%d", name, r.cfg.Dimension)
			all = append(all, job{row: row, desc: flat(2), element: e, rows: r.cfg.rows(r.kind, 256), measure: r.write})
		case PartStream:
			row := fmt.Sprintf("stream/%s/%d/%d", name, r.cfg.Dimension, r.cfg.Codewords[0])
			rows := max(r.cfg.rows(r.kind, r.cfg.Codewords[0]), leastPerCodeword*r.cfg.Codewords[0])
			all = append(all, job{row: row, desc: flat(r.cfg.Codewords[0]), element: e, rows: rows, measure: r.stream})
		}
	}
	return all
}

// paired measures once as often as the configuration allows, with the roof of operations around
// each time, and sets the figures of the line. The first time is dropped, unless it uses up the
// budget.
func (r *run) paired(line *Line, w work, once func() (time.Duration, error)) error {
	first := time.Now()
	before, err := r.opsRoof()
	if err != nil {
		return err
	}
	var seconds, processor, rates []float64
	var roofs []pace
	best := before
	for warm := false; len(seconds) == 0 || len(seconds) < r.cfg.Repeat && time.Since(first) < r.cfg.Budget; {
		if err := r.ctx.Err(); err != nil {
			return err
		}
		r.progress("%s: %d of %d", line.Row, len(seconds)+1, r.cfg.Repeat)
		used := proc.OwnCPU()
		took, err := once()
		if err != nil {
			return err
		}
		used = proc.OwnCPU() - used
		after, err := r.opsRoof()
		if err != nil {
			return err
		}
		beside := before.larger(after)
		before, best = after, best.larger(after)
		if !warm && time.Since(first) < r.cfg.Budget {
			warm = true
			continue
		}
		s := secondsOf(took)
		seconds, processor = append(seconds, s), append(processor, secondsOf(used))
		rates, roofs = append(rates, w.vectors/s), append(roofs, beside)
	}
	r.report.Roofs.Ops = max(r.report.Roofs.Ops, best.wall)
	var shares, processorShares []float64
	for i, roof := range roofs {
		shares = append(shares, shareOf(w.ops/seconds[i], roof.wall, best.wall))
		processorShares = append(processorShares, shareOf(w.ops/processor[i], roof.processor, best.processor))
	}
	line.Seconds, line.VectorsPerSecond, line.Share = stats.SpreadOf(seconds), stats.SpreadOf(rates), stats.SpreadOf(shares)
	if line.Part == PartEncode || line.Part == PartProduct { // in the other parts, other threads do more than the measured work
		line.Processor, line.ProcessorShare = stats.SpreadOf(processor), stats.SpreadOf(processorShares)
	}
	line.OpsPerSecond, line.BytesPerSecond = w.ops/line.Seconds.Median, w.bytes/line.Seconds.Median
	return nil
}

// work is what one measured time does.
type work struct{ vectors, ops, bytes float64 }

// assign returns the work of assigning all rows to codewords. A multiply-add counts two
// operations.
func (j *job) assign() work {
	n := float64(j.rows)
	return work{
		vectors: n, ops: n * 2 * float64(j.desc.Codewords) * float64(j.desc.Dimension),
		bytes: n * float64(j.desc.Dimension*j.element.Size()),
	}
}

func (w work) times(n int) work {
	return work{w.vectors * float64(n), w.ops * float64(n), w.bytes * float64(n)}
}

// secondsOf returns at least a nanosecond, because a clock that did not advance must not give an
// infinite rate.
func secondsOf(d time.Duration) float64 { return max(d, time.Nanosecond).Seconds() }

// shareOf returns the share of the roof around a time, or of the best roof of the row if the
// former is below the rate, because then other load disturbed it.
func shareOf(rate, beside, best float64) float64 {
	if s := share(rate, beside); s <= 1 {
		return s
	}
	return share(rate, best)
}

func share(rate, roof float64) float64 {
	if roof <= 0 {
		return 0
	}
	return rate / roof
}
