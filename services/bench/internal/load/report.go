package load

import (
	"cmp"
	"slices"

	"github.com/millrace/millrace/services/bench/internal/stats"
)

// Report is what a run found. Times are in milliseconds.
type Report struct {
	Seconds           float64       `json:"seconds"` // from the first call's start to the last one's end
	Requests          uint64        `json:"requests"`
	OK                uint64        `json:"ok"`
	Failed            uint64        `json:"failed"`
	Cut               uint64        `json:"cut_off"` // running when the run was interrupted
	PeakStreams       int64         `json:"peak_streams"`
	Tokens            uint64        `json:"tokens"`
	Messages          uint64        `json:"messages"` // with tokens
	RequestsPerSecond float64       `json:"requests_per_second"`
	TokensPerSecond   float64       `json:"tokens_per_second"`
	MessagesPerSecond float64       `json:"messages_per_second"`
	TTFT              stats.Summary `json:"ttft"`
	InterToken        stats.Summary `json:"inter_token"` // a message of k tokens counts k times a k-th of its gap
	EndToEnd          stats.Summary `json:"end_to_end"`  // of calls that ended OK
	SendLag           stats.Summary `json:"send_lag"`    // how late the generator itself was
	Errors            []ErrorCount  `json:"errors"`
}

// ErrorKey tells errors apart.
type ErrorKey struct {
	Code   string `json:"code"`
	Reason string `json:"reason,omitempty"`
}

// ErrorCount counts errors of one kind.
type ErrorCount struct {
	ErrorKey
	Count   uint64 `json:"count"`
	Example string `json:"example"` // the first message
}

// Report sums up what was recorded so far. The error is that of writing the lines of CSV.
func (r *Recorder) Report() (Report, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.each != nil {
		r.each.Flush()
		if r.eachFailure == nil {
			r.eachFailure = r.each.Error()
		}
	}
	out := Report{
		Seconds: r.ended.Sub(r.began).Seconds(), OK: r.ok, Failed: uint64(r.failed.Load()), Cut: r.cut,
		PeakStreams: r.peak.Load(), Tokens: r.okTokens, Messages: r.okMessages,
		TTFT: r.ttft.Summary(), InterToken: r.gaps.Summary(), EndToEnd: r.total.Summary(), SendLag: r.lag.Summary(),
		Errors: []ErrorCount{},
	}
	out.Requests = out.OK + out.Failed + out.Cut
	if out.Seconds > 0 {
		out.RequestsPerSecond = float64(out.OK) / out.Seconds
		out.TokensPerSecond = float64(out.Tokens) / out.Seconds
		out.MessagesPerSecond = float64(out.Messages) / out.Seconds
	}
	for _, e := range r.errors {
		out.Errors = append(out.Errors, *e)
	}
	slices.SortFunc(out.Errors, func(a, b ErrorCount) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Code, b.Code), cmp.Compare(a.Reason, b.Reason))
	})
	return out, r.eachFailure
}

// Bars draws the distribution of first tokens, of gaps between tokens and of whole calls, in at most n bars each.
func (r *Recorder) Bars(n int) (ttft, gaps, total []stats.Bar) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ttft.Bars(n), r.gaps.Bars(n), r.total.Bars(n)
}
