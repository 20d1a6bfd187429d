package load

import (
	"encoding/csv"
	"fmt"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/millrace/millrace/services/bench/internal/stats"
)

// Recorder collects outcomes. It is safe for concurrent use.
type Recorder struct {
	running, finished, failed, messages, tokens, peak atomic.Int64
	see                                               Observer

	mu          sync.Mutex
	began       time.Time // of the first call
	ended       time.Time // of the last call's end
	ttft        stats.Histogram
	gaps        stats.Histogram
	total       stats.Histogram
	lag         stats.Histogram
	cut         uint64
	ok          uint64
	okTokens    uint64
	okMessages  uint64
	errors      map[ErrorKey]*ErrorCount
	each        *csv.Writer
	eachFailure error
}

// NewRecorder returns an empty recorder. It writes a line of CSV for each call to each, unless
// that is nil.
func NewRecorder(each io.Writer) *Recorder {
	r := &Recorder{errors: map[ErrorKey]*ErrorCount{}}
	r.see = Observer{Tokens: func(n int) {
		r.messages.Add(1)
		r.tokens.Add(int64(n))
	}}
	if each != nil {
		r.each = csv.NewWriter(each)
		r.eachFailure = r.each.Write([]string{
			"index", "due_s", "sent_s", "ttft_ms", "total_ms", "prompt_tokens", "tokens", "messages", "code", "reason",
		})
	}
	return r
}

// Live is the state of a run in progress.
type Live struct {
	Running, Finished, Failed, Messages, Tokens int64
}

// Live returns the current state.
func (r *Recorder) Live() Live {
	return Live{
		Running: r.running.Load(), Finished: r.finished.Load(), Failed: r.failed.Load(), Messages: r.messages.Load(),
		Tokens: r.tokens.Load(),
	}
}

func (r *Recorder) observer() Observer { return r.see }

func (r *Recorder) begin() {
	running := r.running.Add(1)
	for peak := r.peak.Load(); running > peak && !r.peak.CompareAndSwap(peak, running); peak = r.peak.Load() {
	}
}

func (r *Recorder) end(o *Outcome) {
	r.running.Add(-1)
	r.finished.Add(1)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.began.IsZero() || o.Due.Before(r.began) {
		r.began = o.Due
	}
	if end := o.Due.Add(o.Total); end.After(r.ended) {
		r.ended = end
	}
	r.lag.Add(o.Sent.Sub(o.Due))
	if o.Messages > 0 {
		r.ttft.Add(o.FirstToken)
	}
	for _, g := range o.Gaps {
		r.gaps.AddN(g.After/time.Duration(g.Tokens), uint64(g.Tokens))
	}
	r.okTokens += uint64(o.Tokens)
	r.okMessages += uint64(o.Messages)
	switch {
	case o.Cut:
		r.cut++
	case o.Code == codes.OK:
		r.ok++
		r.total.Add(o.Total)
	default:
		r.failed.Add(1)
		key := ErrorKey{o.Code.String(), o.Reason}
		if r.errors[key] == nil {
			r.errors[key] = &ErrorCount{ErrorKey: key, Example: o.Message}
		}
		r.errors[key].Count++
	}
	r.line(o)
}

func (r *Recorder) line(o *Outcome) {
	if r.each == nil || r.eachFailure != nil {
		return
	}
	ms := func(d time.Duration) string { return fmt.Sprintf("%.3f", float64(d)/1e6) }
	seconds := func(t time.Time) string { return fmt.Sprintf("%.6f", t.Sub(r.began).Seconds()) }
	r.eachFailure = r.each.Write([]string{
		strconv.FormatUint(o.Index, 10), seconds(o.Due), seconds(o.Sent), ms(o.FirstToken), ms(o.Total),
		strconv.Itoa(o.Prompt), strconv.Itoa(o.Tokens), strconv.Itoa(o.Messages), o.Code.String(), o.Reason,
	})
}
