package vectorbench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/services/bench/internal/machine"
	"github.com/millrace/millrace/services/bench/internal/stats"
)

// Open opens the device that is measured with so many bytes of memory; 0: as many as it has by itself.
type Open func(limit uint64) (engine.Device, error)

// run is a run in progress.
type run struct {
	ctx    context.Context
	cfg    Config
	open   Open
	dev    engine.Device
	vec    engine.Vectors
	kind   string
	served *served // nil: no target
	tell   func(format string, args ...any)
	report Report
}

// Run measures what open opens. tell gets lines about what is going on. When the error is ErrTooFast or ErrWrong the report is
// complete and void; otherwise it is nil with an error. A device whose engine has no vector codebooks is engine.ErrUnsupported.
func Run(ctx context.Context, open Open, cfg Config, tell func(format string, args ...any)) (_ *Report, err error) {
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
	r := &run{ctx: ctx, cfg: cfg, open: open, dev: dev, vec: vec, kind: info.Kind, tell: tell, report: Report{
		Machine: machine.Look(), Repeat: cfg.Repeat, Budget: cfg.Budget.Seconds(), Scale: cfg.Scale, Seed: cfg.Seed, Target: cfg.Target,
		Device: Device{Kind: info.Kind, Name: info.Name, Path: info.Path, Build: info.Build, Threads: info.SMCount},
	}}
	stolen := machine.WatchStolen()
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
	r.report.Stolen, r.report.LoadAfter = stolen.Share(), machine.Look().Load
	return &r.report, errors.Join(wrong, r.report.check())
}

// vectorsOf is the device's ability, or says by name that there is none: asking for a cost allocates nothing.
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

// parts measures every part. wrong is of results, err of what kept the run from its end.
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
	// measure fills the line in, or says why the row was left out.
	measure func(*job, *Line) (skipped string, err error)
}

// line is the job's, to be filled in.
func (j *job) line(part string) *Line {
	return &Line{
		Part: part, Row: j.row, Type: typeNames[j.element], Rows: j.rows, Dimension: j.desc.Dimension, Codewords: j.desc.Codewords,
		Subspaces: j.desc.Subspaces,
	}
}

// DefaultRows are the rows that a run on a CPU has whose flags but these are left alone.
func DefaultRows(dimension int, codewords []int, subspaces int) (rows []string) {
	r := &run{kind: "cpu", cfg: Config{
		Dimension: dimension, Codewords: codewords, Subspaces: subspaces, Types: []engine.Element{engine.VectorF32, engine.VectorF16},
	}}
	r.cfg.complete(r.kind)
	for _, part := range Parts() {
		for _, j := range r.jobs(part) {
			rows = append(rows, j.row)
		}
	}
	return rows
}

// leastPerCodeword is how many rows of a codeword a training is measured with at least: with few of them moving codewords is most
// of a round.
const leastPerCodeword = 16

// jobs are the rows of a part.
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
					continue // rows for one codeword each are no training, and more are minutes
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

// paired measures something as often as the configuration allows, with the roof of operations beside each time, and sums it up.
// One time before is not counted, unless it uses the budget up.
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
		r.tell("%s: %d of %d", line.Row, len(seconds)+1, r.cfg.Repeat)
		used := machine.OwnCPU()
		took, err := once()
		if err != nil {
			return err
		}
		used = machine.OwnCPU() - used
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
	if line.Part == PartEncode || line.Part == PartProduct { // what others do beside it is not encoding
		line.Processor, line.ProcessorShare = stats.SpreadOf(processor), stats.SpreadOf(processorShares)
	}
	line.OpsPerSecond, line.BytesPerSecond = w.ops/line.Seconds.Median, w.bytes/line.Seconds.Median
	return nil
}

// work is what one time does.
type work struct{ vectors, ops, bytes float64 }

// assign is the work of finding so many rows' codewords: a multiply-add is two operations.
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

// secondsOf is never 0: a clock that did not move is no infinite rate.
func secondsOf(d time.Duration) float64 { return max(d, time.Nanosecond).Seconds() }

// shareOf is the share of the roof beside a time, or of the best of the row where that was disturbed so much that it is less than
// the time's own rate.
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
