package server_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/loadreport"
	"github.com/millrace/millrace/services/scheduler/internal/admission"
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
	"github.com/millrace/millrace/services/scheduler/internal/server"
)

func TestLoadOfSumsWorkersAndQueues(t *testing.T) {
	report := func(free uint64) *pb.WorkerReport {
		return &pb.WorkerReport{
			Load:   &pb.LoadStatus{TotalBlocks: 100, FreeBlocks: free, Running: 3, Waiting: 1},
			Models: []*pb.ModelStatus{{Loaded: &pb.LoadResult{MaxSequences: 16}}, {}},
			Device: &pb.DeviceStatus{BytesTotal: 1000, BytesFree: 400},
		}
	}
	s := &fleet.Snapshot{Members: []fleet.Member{
		{Connected: true, Report: report(40)}, {Connected: true, Report: report(101)}, // more free blocks than there are
		{Report: report(0)}, {}, // not connected
	}}
	require.Equal(t, loadreport.Load{
		HeldBlocks: 60, KVBlocks: 200, Running: 6, Waiting: 2 + 5 + 2, Places: 32, MemoryUsed: 1200, MemoryLimit: 2000,
	}, server.LoadOf(s, []admission.Stats{{Waiting: 5}, {Resuming: 2}}))
	require.Equal(t, loadreport.Load{}, server.LoadOf(&fleet.Snapshot{}, nil))
}
