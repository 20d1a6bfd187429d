package vectorbench

import (
	"fmt"

	"github.com/millrace/millrace/services/bench/internal/floor"
	"github.com/millrace/millrace/services/bench/internal/machine"
	"github.com/millrace/millrace/services/bench/internal/stats"
)

// Report is what a run found.
type Report struct {
	Machine   machine.Facts  `json:"machine"`
	Device    Device         `json:"device"`
	Roofs     Roofs          `json:"roofs"` // the best that were seen; shares of operations are of those beside each repeat
	Repeat    int            `json:"repeat"`
	Budget    float64        `json:"budget_seconds"`
	Scale     float64        `json:"scale"`
	Seed      uint64         `json:"seed"`
	Target    string         `json:"target,omitempty"`
	Lines     []Line         `json:"lines"`
	Skipped   []Skipped      `json:"skipped,omitempty"`
	Stolen    float64        `json:"stolen_share"`
	LoadAfter string         `json:"load_1m_after"`
	Floors    *floor.Verdict `json:"floors,omitempty"`
}

// Device is what was run on.
type Device struct {
	Kind    string `json:"kind"`
	Name    string `json:"name"`
	Path    string `json:"path"`
	Build   string `json:"build"`
	Threads int    `json:"threads"` // of a CPU; multiprocessors of a GPU
}

// Line is one row.
type Line struct {
	Part      string `json:"part"`
	Row       string `json:"row"`
	Type      string `json:"type"` // of the rows' elements; codewords are f16
	Rows      int    `json:"rows"`
	Dimension int    `json:"dimension"`
	Codewords int    `json:"codewords"`
	Subspaces int    `json:"subspaces"`
	Rounds    int    `json:"rounds,omitempty"` // in one time

	Seconds          stats.Spread `json:"seconds"`
	Processor        stats.Spread `json:"processor_seconds"`  // of encoding: what the process's threads had
	VectorsPerSecond stats.Spread `json:"vectors_per_second"` // rows, once for each round
	OpsPerSecond     float64      `json:"ops_per_second"`     // of finding codewords alone
	BytesPerSecond   float64      `json:"bytes_per_second"`   // of rows
	Share            stats.Spread `json:"share"`              // of the roof of operations beside each time
	ProcessorShare   stats.Spread `json:"processor_share"`    // likewise, rate and roof by processor time; of encoding on a CPU
	ReadShare        float64      `json:"read_share"`         // of the roof of reading; 0 where a cache holds the rows
	Recomputed       float64      `json:"recomputed"`         // share of the ids that float64 decided
	OfAssign         stats.Spread `json:"of_assign"`          // an iteration over finding codewords alone
	OfBus            float64      `json:"of_bus,omitempty"`   // streamed rows over the best copy to the device
	Energy           float64      `json:"energy,omitempty"`   // of a whole training's last round
	Resident         stats.Spread `json:"resident_seconds"`   // of a whole training: what is left when its rows are on the device
	Served           *Served      `json:"served,omitempty"`
}

// Skipped is a row that was left out.
type Skipped struct {
	Row    string `json:"row"`
	Reason string `json:"reason"`
}

// reads is the bytes of rows that a line reads at once; 0 of rows that come from the host's memory.
func (l *Line) reads() float64 {
	if l.Part == PartStream {
		return 0
	}
	return l.BytesPerSecond * l.Seconds.Median / float64(max(l.Rounds, 1))
}

// finish fills in what follows from the roof of reading. Rows that fit a cache of so many bytes have no share of it.
func (r *Report) finish(read, cached float64) {
	r.Roofs.Read = read
	for i := range r.Lines {
		if l := &r.Lines[i]; l.reads() > cached {
			l.ReadShare = share(l.BytesPerSecond, read)
		}
	}
}

// check is ErrTooFast with a share that cannot be.
func (r *Report) check() error {
	for i := range r.Lines {
		l := &r.Lines[i]
		for _, share := range []struct {
			of    string
			value float64
		}{{"operations", l.Share.Median}, {"operations by processor time", l.ProcessorShare.Median}, {"read", l.ReadShare}, {"bus", l.OfBus}} {
			if share.value > 1 {
				return fmt.Errorf("%w: %s reaches %.1f %% of the roof of %s; the machine was disturbed while the roof was measured "+
					"(raise --roof-time), or work was counted that was not done", ErrTooFast, l.Row, 100*share.value, share.of)
			}
		}
	}
	return nil
}

// Figure is a metric of a row: seconds, resident_seconds, vectors and gbps (a second), share, processor_share, read_share, recomputed,
// of_assign, of_bus, and of calls served_seconds, served_vectors and of_direct.
func (r *Report) Figure(row, metric string) (float64, bool) {
	for i := range r.Lines {
		l := &r.Lines[i]
		if l.Row != row {
			continue
		}
		figures := map[string]float64{
			"seconds": l.Seconds.Median, "vectors": l.VectorsPerSecond.Median, "gbps": l.BytesPerSecond / 1e9, "share": l.Share.Median,
			"processor_share": l.ProcessorShare.Median,
			"read_share":      l.ReadShare, "of_assign": l.OfAssign.Median, "of_bus": l.OfBus, "resident_seconds": l.Resident.Median,
		}
		if s := l.Served; s != nil {
			figures["served_seconds"], figures["served_vectors"], figures["of_direct"] = s.Seconds.Median, s.VectorsPerSecond.Median, s.OfDirect
		}
		if metric == "recomputed" { // none is a figure too
			return l.Recomputed, l.OpsPerSecond > 0
		}
		value := figures[metric]
		return value, value > 0
	}
	return 0, false
}
