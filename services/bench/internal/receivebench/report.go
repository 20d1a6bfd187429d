package receivebench

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/millrace/millrace/services/bench/internal/machine"
	"github.com/millrace/millrace/services/bench/internal/stats"
)

// ErrBroken says that a promise was broken.
var ErrBroken = errors.New("a promise was broken")

// Report is what a run found.
type Report struct {
	Machine machine.Facts `json:"machine"`
	Config  Config        `json:"config"`
	Rows    []Row         `json:"rows"`
}

// Row is what became of the requests of one kind to one server.
type Row struct {
	To      string         `json:"to"`
	Kind    string         `json:"kind"`
	Seconds float64        `json:"seconds"` // until the last had its status
	Ends    map[string]int `json:"ends"`    // large requests by status
	Hung    int            `json:"hung"`    // of them without one
	Peak    []uint64       `json:"peak_bytes_of_worker_and_scheduler"`
	Alone   stats.Summary  `json:"small_alone"`
	Beside  stats.Summary  `json:"small_beside"`
	Failed  int            `json:"small_failed"`
	Example string         `json:"small_failure,omitempty"` // of one of them
}

// Err is ErrBroken where a request had no status or a small one failed.
func (r *Report) Err() error {
	var wrong []string
	for _, row := range r.Rows {
		if row.Hung > 0 {
			wrong = append(wrong, fmt.Sprintf("%s, %s: %d requests had no status within %v", row.To, row.Kind, row.Hung, r.Config.Timeout))
		}
		if row.Failed > 0 {
			wrong = append(wrong, fmt.Sprintf("%s, %s: %d small requests failed: %s", row.To, row.Kind, row.Failed, row.Example))
		}
		if row.Beside.Count == 0 {
			wrong = append(wrong, fmt.Sprintf("%s, %s: no small request was served beside them", row.To, row.Kind))
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	return fmt.Errorf("%w:\n  %s", ErrBroken, strings.Join(wrong, "\n  "))
}

// Print writes the report as text.
func (r *Report) Print(w io.Writer) {
	c := &r.Config
	fmt.Fprintf(w, "machine  %s\nload     %d requests of %d bytes at once over %d connections", r.Machine, c.Requests, c.Bytes, c.Connections)
	if c.Memory > 0 {
		fmt.Fprintf(w, "; each program may have %d MiB", c.Memory>>20)
	}
	fmt.Fprintln(w)
	for _, row := range r.Rows {
		fmt.Fprintf(w, "\n%s to the %s: all had a status after %.1f s\n", row.Kind, row.To, row.Seconds)
		for _, end := range slices.Sorted(maps.Keys(row.Ends)) {
			fmt.Fprintf(w, "  %6d  %s\n", row.Ends[end], end)
		}
		fmt.Fprintf(w, "  memory  worker at most %.0f MB, scheduler at most %.0f MB\n", float64(row.Peak[0])/1e6, float64(row.Peak[1])/1e6)
		fmt.Fprintf(w, "  small requests, one after another: alone p50 %.1f ms, p99 %.1f ms; beside %d, p50 %.1f ms, p99 %.1f ms, at most %.1f ms; %d failed\n",
			row.Alone.P50, row.Alone.P99, row.Beside.Count, row.Beside.P50, row.Beside.P99, row.Beside.Max, row.Failed)
	}
}
