package server

import (
	"github.com/millrace/millrace/services/internal/loadreport"
	"github.com/millrace/millrace/services/scheduler/internal/admission"
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
)

// LoadOf is what there is to do behind a scheduler: that of the workers that it hears, whoever gave it to them, and what waits here. A
// balancer before several schedulers of one fleet tells them apart by what waits.
func LoadOf(s *fleet.Snapshot, queues []admission.Stats) (l loadreport.Load) {
	for i := range s.Members {
		m := &s.Members[i]
		if !m.Connected {
			continue
		}
		is := m.Report.GetLoad()
		l.HeldBlocks += int64(is.GetTotalBlocks()) - int64(min(is.GetFreeBlocks(), is.GetTotalBlocks()))
		l.KVBlocks += int64(is.GetTotalBlocks())
		l.Running += int64(is.GetRunning())
		l.Waiting += int64(is.GetWaiting())
		for _, model := range m.Report.GetModels() {
			l.Places += int64(model.GetLoaded().GetMaxSequences())
		}
		d := m.Report.GetDevice()
		l.MemoryLimit += d.GetBytesTotal()
		l.MemoryUsed += d.GetBytesTotal() - min(d.GetBytesFree(), d.GetBytesTotal())
	}
	for _, q := range queues {
		l.Waiting += int64(q.Waiting + q.Resuming)
	}
	return l
}
