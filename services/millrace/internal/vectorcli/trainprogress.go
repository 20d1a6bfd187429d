package vectorcli

import (
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/millrace/internal/render"
	"github.com/millrace/millrace/services/millrace/internal/tty"
)

// trainDisplay shows how far a training is.
type trainDisplay interface {
	update(worker string, p *pb.TrainingProgress)
	// print writes a line to w without disturbing the display.
	print(w io.Writer, line string)
	// close ends the display. It may be called again.
	close()
}

// trainDisplay returns a bar if errors go to a terminal, else lines. Of many iterations only some
// have a line.
func (a *app) trainDisplay(iterations uint32) trainDisplay {
	if _, ok := tty.Of(a.Err); ok {
		return &trainBar{container: tty.Bars(a.Err), iterations: iterations}
	}
	return &trainLines{w: a.Err, iterations: iterations, stride: max(1, uint64(iterations)/100), last: -1}
}

// silent shows nothing.
type silent struct{}

func (silent) update(string, *pb.TrainingProgress) {}
func (silent) print(w io.Writer, line string)      { fmt.Fprintln(w, render.Line(line)) }
func (silent) close()                              {}

// trainLines prints a line for each round, or each hundredth of them, and for each tenth of the
// phases before the rounds.
type trainLines struct {
	w          io.Writer
	iterations uint32
	stride     uint64
	last       int64  // the round of the last line
	phase      string // the last line before the rounds
}

func (l *trainLines) update(worker string, p *pb.TrainingProgress) {
	if p.Iteration == nil {
		if text := phaseText(p, 10); text != l.phase {
			l.phase = text
			fmt.Fprintln(l.w, render.Line(worker+": "+text))
		}
		return
	}
	if i := p.GetIteration(); int64(i) > l.last && (i%l.stride == 0 || i == uint64(l.iterations)) {
		l.last = int64(i)
		fmt.Fprintln(l.w, render.Line(fmt.Sprintf("%s: %s", worker, roundText(p, l.iterations))))
	}
}

func (l *trainLines) print(w io.Writer, line string) { fmt.Fprintln(w, render.Line(line)) }
func (l *trainLines) close()                         {}

// trainBar is one bar: over the phases before the rounds, then over the rounds.
type trainBar struct {
	container  *mpb.Progress
	iterations uint32
	bar        *mpb.Bar
	after      []func() // lines held until the bar is drawn for the last time
	closed     bool

	mu     sync.Mutex
	worker string               // guarded by mu, as is last: decorators run on the container's goroutine
	last   *pb.TrainingProgress //
}

func (b *trainBar) update(worker string, p *pb.TrainingProgress) {
	b.mu.Lock()
	b.worker, b.last = worker, proto.CloneOf(p)
	b.mu.Unlock()
	if b.bar == nil {
		b.bar = b.container.New(0, tty.BarStyle(), mpb.BarWidth(tty.BarWidth), mpb.PrependDecorators(decor.Any(b.head)),
			mpb.AppendDecorators(decor.Any(b.numbers)))
	}
	done, total := p.GetRowsDone(), p.GetRowsTotal()
	if p.Iteration != nil {
		done, total = p.GetIteration(), uint64(b.iterations)
	}
	b.bar.SetTotal(int64(total), false)
	b.bar.SetCurrent(int64(min(done, total)))
}

func (b *trainBar) head(decor.Statistics) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return render.Line(b.worker) + " "
}

func (b *trainBar) numbers(decor.Statistics) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.last.Iteration == nil {
		return " " + phaseText(b.last, 100)
	}
	return " " + roundText(b.last, b.iterations)
}

func (b *trainBar) print(w io.Writer, line string) {
	b.after = append(b.after, func() { fmt.Fprintln(w, render.Line(line)) })
}

func (b *trainBar) close() {
	if b.closed {
		return
	}
	b.closed = true
	if b.bar != nil {
		b.bar.Abort(false) // no effect on a complete one
	}
	b.container.Wait()
	for _, line := range b.after {
		line()
	}
}

// phaseText describes the progress of a phase in a number of steps: writing 40% of 1000 rows.
func phaseText(p *pb.TrainingProgress, steps uint64) string {
	text := render.Readable(p.GetPhase().String(), "TRAINING_PHASE_")
	if total := p.GetRowsTotal(); total > 0 {
		done := uint64(float64(min(p.GetRowsDone(), total)) / float64(total) * float64(steps))
		text += fmt.Sprintf(" %d%% of %s rows", done*100/steps, render.Count(total))
	}
	return text
}

// roundText describes a round: iteration 3 of 25, energy 12.5 (-1.20 %), 340 changes, 2.0 s left.
func roundText(p *pb.TrainingProgress, iterations uint32) string {
	parts := []string{fmt.Sprintf("iteration %d of %d", p.GetIteration(), iterations)}
	if p.Energy != nil {
		text := fmt.Sprintf("energy %.6g", p.GetEnergy())
		if before := p.GetEnergy() - p.GetEnergyDelta(); p.EnergyDelta != nil && before != 0 {
			text += fmt.Sprintf(" (%+.3g %%)", 100*p.GetEnergyDelta()/max(before, -before))
		}
		parts = append(parts, text)
	}
	if p.Temperature != nil {
		parts = append(parts, fmt.Sprintf("T %.3g", p.GetTemperature()))
	}
	if p.Changes != nil {
		parts = append(parts, changes(p.GetChanges()))
	}
	if p.GetEmpty() > 0 {
		parts = append(parts, fmt.Sprintf("%d without rows", p.GetEmpty()))
	}
	if p.GetMerged()+p.GetSplit() > 0 {
		parts = append(parts, fmt.Sprintf("%d merged, %d split", p.GetMerged(), p.GetSplit()))
	}
	if p.GetEta() != nil {
		parts = append(parts, render.Duration(p.GetEta().AsDuration())+" left")
	}
	return strings.Join(parts, ", ")
}

// changes writes a count of ids that changed.
func changes(n uint64) string {
	if n == 1 {
		return "1 change"
	}
	return render.Count(n) + " changes"
}
