package relaybench

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// Bars of 10 000 open streams, in bytes.
const (
	barStreams = 10000
	barIdle    = 400e6
	barStalled = 2e9
)

// Print writes the report as text, each bar beside its figure.
func (r *OpenReport) Print(w io.Writer) {
	fmt.Fprintf(w, "machine  %s\n\n", r.Machine)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "open streams\tscheduler RSS\tfor each stream\tbar at %d\n", barStreams)
	fmt.Fprintf(table, "0\t%s\t\t\n", megabytes(r.Empty))
	for _, line := range []struct {
		what string
		rss  uint64
		bar  float64
	}{{"idle", r.Idle, barIdle}, {"every reader stalled", r.Stalled, barStalled}} {
		if line.rss == 0 {
			continue // not asked for
		}
		each := (float64(line.rss) - float64(r.Empty)) / float64(r.Streams)
		verdict := held(float64(line.rss) <= line.bar)
		if r.Streams != barStreams {
			verdict = fmt.Sprintf("%s if each takes as much at %d", held(float64(r.Empty)+barStreams*each <= line.bar), barStreams)
		}
		fmt.Fprintf(table, "%d %s\t%s\t%.1f kB\t<= %s: %s\n", r.Streams, line.what, megabytes(line.rss), each/1e3, megabytes(uint64(line.bar)), verdict)
	}
	_ = table.Flush() // to a terminal or a buffer: nobody is left to tell
}

// Figure is a metric of the row streams: idle_mb, stalled_mb.
func (r *OpenReport) Figure(row, metric string) (float64, bool) {
	switch {
	case row == "streams" && metric == "idle_mb":
		return float64(r.Idle) / 1e6, r.Idle > 0
	case row == "streams" && metric == "stalled_mb":
		return float64(r.Stalled) / 1e6, r.Stalled > 0
	}
	return 0, false
}
