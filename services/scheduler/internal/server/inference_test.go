package server_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/scheduler/internal/server"
)

func TestFinishedOutputsNeedNoSlot(t *testing.T) {
	done := func(o uint32) *pb.Resume { return &pb.Resume{OutputIndex: o, Finished: true} }
	for name, tc := range map[string]struct {
		resume []*pb.Resume
		of     int64
		want   int64
	}{
		"nothing is resumed":                      {nil, 4, 0},
		"none has ended":                          {[]*pb.Resume{{OutputIndex: 1, TokenIds: []uint32{1}}}, 4, 0},
		"some have":                               {[]*pb.Resume{done(3), {OutputIndex: 1}, done(0)}, 4, 2},
		"all have":                                {[]*pb.Resume{done(0)}, 1, 1},
		"one is named twice, which is refused":    {[]*pb.Resume{done(2), done(2)}, 4, 1},
		"one is beyond the last, which is too":    {[]*pb.Resume{done(4), done(1<<32 - 1)}, 4, 0},
		"as many as there may be, and one beyond": {[]*pb.Resume{done(15), done(16)}, 16, 1},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tc.want, server.FinishedOutputs(tc.resume, tc.of)) })
	}
}
