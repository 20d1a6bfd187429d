package server

import (
	"google.golang.org/grpc"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/model"
	"github.com/millrace/millrace/services/internal/loadreport"
)

// ReportLoad makes the server tell balancers of its load. Call it before Options and Register.
func (s *Server) ReportLoad() {
	s.reports = loadreport.New(func() loadreport.Load {
		if l := s.load.Load(); l != nil {
			return *l
		}
		return loadreport.Load{} // it has not looked at itself yet
	})
}

// Options are what the gRPC server of a worker needs besides its services.
func (s *Server) Options() []grpc.ServerOption { return s.reports.Options() }

// loadOf is what there is to do for models on a device. Those that have failed serve nobody.
func loadOf(models []model.Status, device engine.DeviceInfo) loadreport.Load {
	var l loadreport.Load
	for _, m := range models {
		if m.State == model.Failed {
			continue
		}
		l.HeldBlocks += int64(m.Steps.TotalBlocks - m.Steps.FreeBlocks)
		l.KVBlocks += int64(m.Steps.TotalBlocks)
		l.Running += int64(m.Steps.Running)
		l.Waiting += int64(m.Steps.Waiting)
		l.Places += int64(m.Runner.MaxSequences)
	}
	l.MemoryLimit = device.BytesTotal
	l.MemoryUsed = device.BytesTotal - min(device.BytesFree, device.BytesTotal)
	return l
}
