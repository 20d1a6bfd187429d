package relaybench

import (
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"github.com/millrace/millrace/services/bench/internal/machine"
	"github.com/millrace/millrace/services/bench/internal/process"
)

// Bars of 10 000 open streams, in bytes.
const (
	barStreams = 10000
	barIdle    = 400e6
	barStalled = 2e9
)

// OpenReport is what Streams found.
type OpenReport struct {
	Machine machine.Facts `json:"machine"`
	Streams int           `json:"streams"`
	States  []OpenState   `json:"states"`
}

// OpenState is the memory while every stream is in one state. Idle: it waits for its first or its next token. Stalled: its reader
// stopped after its first tokens, and flow control has stopped its worker.
type OpenState struct {
	State   string  `json:"state"`
	Empty   uint64  `json:"rss_without_streams_bytes"` // of the scheduler
	RSS     uint64  `json:"rss_bytes"`                 // of the scheduler
	Workers uint64  `json:"rss_workers_bytes"`         // of all together
	Client  uint64  `json:"rss_client_bytes"`
	Tokens  float64 `json:"tokens_each"` // that a worker had computed for a stream, in the mean
}

// take takes the memory.
func (s *OpenState) take(f *fleet) (err error) {
	if s.RSS, err = f.scheduler.program.Memory(); err != nil {
		return err
	}
	for i := range f.direct {
		rss, err := f.direct[i].program.Memory()
		if err != nil {
			return err
		}
		s.Workers += rss
	}
	s.Client, err = process.MemoryOf(os.Getpid())
	return err
}

// bar is what the scheduler may take in the state.
func (s *OpenState) bar() float64 {
	if s.State == stateIdle {
		return barIdle
	}
	return barStalled
}

// Print writes the report as text, each bar beside its figure.
func (r *OpenReport) Print(w io.Writer) {
	fmt.Fprintf(w, "machine  %s\n\n", r.Machine)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "%d streams\tscheduler RSS\twithout them\tfor each\tbar at %d\ttokens each\tworkers RSS\tclient RSS\n",
		r.Streams, barStreams)
	for i := range r.States {
		s := &r.States[i]
		each := (float64(s.RSS) - float64(s.Empty)) / float64(r.Streams)
		verdict := held(float64(s.RSS) <= s.bar())
		if r.Streams != barStreams {
			verdict = fmt.Sprintf("%s if each takes as much at %d", held(float64(s.Empty)+barStreams*each <= s.bar()), barStreams)
		}
		what := s.State
		if what == stateStalled {
			what = "every reader stalled"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%.1f kB\t<= %s: %s\t%.0f\t%s\t%s\n", what, megabytes(s.RSS), megabytes(s.Empty), each/1e3,
			megabytes(uint64(s.bar())), verdict, s.Tokens, megabytes(s.Workers), megabytes(s.Client))
	}
	_ = table.Flush() // to a terminal or a buffer: nobody is left to tell
}

// Figure is a metric of the row streams, idle_mb or stalled_mb, of as many streams as the bars are for, or more.
func (r *OpenReport) Figure(row, metric string) (float64, bool) {
	for i := range r.States {
		if s := &r.States[i]; r.Streams >= barStreams && row == "streams" && metric == s.State+"_mb" {
			return float64(s.RSS) / 1e6, true
		}
	}
	return 0, false
}
