package cli

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/millrace/internal/render"
	"github.com/millrace/millrace/services/millrace/internal/tty"
)

// loadDisplay shows how far loads are.
type loadDisplay interface {
	// update prints a worker's progress.
	update(worker string, p *pb.LoadProgress)
	// done ends a worker's part.
	done(worker string, ok bool)
	// print writes a line to w without disturbing the progress line.
	print(w io.Writer, line string)
	// close ends the display; more than once is harmless.
	close()
}

// loadDisplay is bars where errors go to a terminal, lines elsewhere.
func (a *app) loadDisplay() loadDisplay {
	if _, ok := tty.Of(a.Err); ok {
		return &bars{container: tty.Bars(a.Err), workers: map[string]*bar{}}
	}
	return &lines{w: a.Err, last: map[string]string{}}
}

// lines prints a line a worker for each new state and each tenth of its bytes.
type lines struct {
	w    io.Writer
	last map[string]string
}

func (l *lines) update(worker string, p *pb.LoadProgress) {
	state := render.Readable(p.GetState().String(), "LOAD_STATE_")
	tenth, text := uint64(0), ""
	if total := p.GetBytesTotal(); total > 0 {
		tenth = min(p.GetBytesDone(), total) * 10 / total
		text = fmt.Sprintf(" [%s] %d%% of %s", render.Bar(tenth, 10, 10), tenth*10, render.Bytes(total))
	}
	if now := fmt.Sprint(state, tenth); now != l.last[worker] {
		l.last[worker] = now
		fmt.Fprintln(l.w, render.Line(fmt.Sprintf("%s: %s%s", worker, state, text)))
	}
}

func (l *lines) done(string, bool)              {}
func (l *lines) print(w io.Writer, line string) { fmt.Fprintln(w, render.Line(line)) }
func (l *lines) close()                         {}

// bars draws one bar a worker.
type bars struct {
	container *mpb.Progress
	workers   map[string]*bar
	after     []func() // lines held until the bars are drawn for the last time
	closed    bool
}

// bar is one worker's bar; its decorators run on the container's goroutine.
type bar struct {
	bar *mpb.Bar

	mu    sync.Mutex
	track track // guarded by mu
}

func (b *bars) update(worker string, p *pb.LoadProgress) {
	one := b.workers[worker]
	if one == nil {
		one = &bar{}
		one.track.update(p, time.Now())
		one.bar = b.container.New(0, tty.BarStyle(), mpb.BarWidth(tty.BarWidth),
			mpb.PrependDecorators(decor.Name(render.Line(worker)+" ", decor.WCSyncSpaceR), decor.Any(one.state, decor.WCSyncSpaceR)),
			mpb.AppendDecorators(decor.Any(one.numbers)))
		b.workers[worker] = one
	}
	one.mu.Lock()
	one.track.update(p, time.Now())
	one.mu.Unlock()
	one.bar.SetTotal(int64(p.GetBytesTotal()), false)
	one.bar.SetCurrent(int64(min(p.GetBytesDone(), p.GetBytesTotal())))
}

func (b *bar) state(decor.Statistics) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return render.Readable(b.track.last.GetState().String(), "LOAD_STATE_")
}

func (b *bar) numbers(decor.Statistics) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.track.String()
}

func (b *bars) done(worker string, ok bool) {
	one := b.workers[worker]
	if one == nil {
		return
	}
	if !ok {
		one.bar.Abort(false)
		return
	}
	one.mu.Lock()
	one.track.update(&pb.LoadProgress{State: pb.LoadState_LOAD_STATE_READY}, time.Now())
	one.mu.Unlock()
	one.bar.SetTotal(1, false)
	one.bar.SetCurrent(1)
	one.bar.SetTotal(1, true)
}

func (b *bars) print(w io.Writer, line string) {
	b.after = append(b.after, func() { fmt.Fprintln(w, render.Line(line)) })
}

func (b *bars) close() {
	if b.closed {
		return
	}
	b.closed = true
	for _, one := range b.workers {
		one.bar.Abort(false) // no effect on one that is complete
	}
	b.container.Wait()
	for _, line := range b.after {
		line()
	}
}

// track follows one worker's load.
type track struct {
	last  *pb.LoadProgress
	since time.Time // the state's begin
	now   time.Time
	begin uint64 // bytes done at the state's begin
	first time.Time
	most  uint64 // bytes of the largest state
}

func (t *track) update(p *pb.LoadProgress, now time.Time) {
	if t.last == nil || t.last.GetState() != p.GetState() {
		t.since, t.begin = now, p.GetBytesDone()
	}
	if t.last == nil {
		t.first = now
	}
	t.last, t.now, t.most = proto.CloneOf(p), now, max(t.most, p.GetBytesTotal())
}

// String is bytes, rate and time left, as far as known; at the end, bytes and time taken.
func (t *track) String() string {
	p := t.last
	if p.GetState() == pb.LoadState_LOAD_STATE_READY && t.most > 0 {
		return fmt.Sprintf("%s in %s", render.Bytes(t.most), render.Duration(t.now.Sub(t.first)))
	}
	if p.GetBytesTotal() == 0 {
		return ""
	}
	text := fmt.Sprintf("%s of %s", render.Bytes(p.GetBytesDone()), render.Bytes(p.GetBytesTotal()))
	if elapsed := t.now.Sub(t.since); elapsed > 0 && p.GetBytesDone() > t.begin {
		text += fmt.Sprintf(", %s/s", render.Bytes(uint64(float64(p.GetBytesDone()-t.begin)/elapsed.Seconds())))
	}
	if p.GetEta() != nil {
		text += fmt.Sprintf(", %s left", render.Duration(p.GetEta().AsDuration()))
	}
	return text
}
