package load

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/millrace/millrace/services/bench/internal/stats"
)

// Report is the result of a run. Times are in milliseconds.
type Report struct {
	Seconds           float64       `json:"seconds"` // from the start of the first call to the end of the last
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
	SendLag           stats.Summary `json:"send_lag"`    // of the generator itself
	Errors            []ErrorCount  `json:"errors"`
}

// ErrorKey identifies a kind of error.
type ErrorKey struct {
	Code   string `json:"code"`
	Reason string `json:"reason,omitempty"`
}

// ErrorCount counts the errors of one kind.
type ErrorCount struct {
	ErrorKey
	Count   uint64 `json:"count"`
	Example string `json:"example"` // the first message
}

// Report summarises the calls recorded so far. It returns the error of writing the CSV.
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

// Bars returns the distributions of TTFT, ITL and whole calls, in at most n bars each.
func (r *Recorder) Bars(n int) (ttft, gaps, total []stats.Bar) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ttft.Bars(n), r.gaps.Bars(n), r.total.Bars(n)
}

// Print writes the report as text.
func (r *Report) Print(w io.Writer) {
	fmt.Fprintf(w, "%d requests in %.1f s: %d ok, %d failed", r.Requests, r.Seconds, r.OK, r.Failed)
	if r.Cut > 0 {
		fmt.Fprintf(w, ", %d cut off", r.Cut)
	}
	fmt.Fprintf(w, "; at most %d at once\n", r.PeakStreams)
	fmt.Fprintf(w, "%.2f requests/s, %.0f tokens/s, %.0f messages/s (%s tokens a message)\n\n", r.RequestsPerSecond,
		r.TokensPerSecond, r.MessagesPerSecond, quotient(r.Tokens, r.Messages))
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "ms\tp50\tp90\tp99\tmax\tmean\tsamples\t\n")
	for _, row := range []struct {
		name string
		of   stats.Summary
	}{{"first token", r.TTFT}, {"inter-token", r.InterToken}, {"end to end", r.EndToEnd}, {"send lag", r.SendLag}} {
		fmt.Fprintf(table, "%s\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f\t%d\t\n", row.name, row.of.P50, row.of.P90, row.of.P99,
			row.of.Max, row.of.Mean, row.of.Count)
	}
	_ = table.Flush() // the writer is a terminal or a buffer
	for _, e := range r.Errors {
		fmt.Fprintf(w, "\n%d x %s %s: %s\n", e.Count, e.Code, e.Reason, e.Example)
	}
}

func quotient(a, b uint64) string {
	if b == 0 {
		return "0"
	}
	return fmt.Sprintf("%.3f", float64(a)/float64(b))
}

// barWidth is the length of the longest bar in characters.
const barWidth = 50

// PrintBars draws a histogram.
func PrintBars(w io.Writer, title string, bars []stats.Bar) {
	var most uint64
	for _, b := range bars {
		most = max(most, b.Count)
	}
	if most == 0 {
		return
	}
	fmt.Fprintf(w, "\n%s\n", title)
	for _, b := range bars {
		fmt.Fprintf(w, "%12s  %-*s %d\n", "<= "+rounded(b.UpTo), barWidth, strings.Repeat("#", int((b.Count*barWidth+most-1)/most)), b.Count)
	}
}

// rounded returns d with three digits.
func rounded(d time.Duration) string {
	unit := time.Duration(1)
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit).String()
}
