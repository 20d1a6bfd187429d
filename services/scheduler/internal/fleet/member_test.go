package fleet

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// script is a stream with messages before its end.
type script struct {
	messages int
	end      error
}

func (s *script) Recv() (*pb.HealthResponse, error) {
	if s.messages--; s.messages < 0 {
		return nil, s.end
	}
	return &pb.HealthResponse{}, nil
}

func TestStreamErrorSkipsMessages(t *testing.T) {
	broken := errors.New("broken")
	for name, tc := range map[string]struct {
		stream script
		want   error
	}{
		"at once":        {script{0, broken}, broken},
		"behind several": {script{3, broken}, broken},
		"a good end":     {script{2, io.EOF}, errEnded},
	} {
		t.Run(name, func(t *testing.T) { require.ErrorIs(t, streamError(&tc.stream), tc.want) })
	}
}

func TestLoadsOfLostWorkersAreForgotten(t *testing.T) {
	f, err := New(Config{Dial: func(string) (*grpc.ClientConn, error) { return nil, io.EOF }}, hclog.NewNullLogger())
	require.NoError(t, err)
	load := func(m *member, id string) *sharedLoad {
		f.assignLoad(m, id, "i")
		return m.mu.load
	}
	present := &member{}
	f.mu.members["a:1"] = present
	kept, busy := load(present, "present"), load(&member{}, "busy")
	require.True(t, busy.Begin(10, 0))
	for i := range 1000 {
		load(&member{}, fmt.Sprintf("container-%d", i))
	}
	require.LessOrEqual(t, len(f.mu.loads), 3, "those of a member and of a request in flight, and the newest")
	require.Same(t, kept, load(present, "present"))
	require.Same(t, busy, load(&member{}, "busy"))
}

func TestDigestOfAnEarlierRunIsIgnored(t *testing.T) {
	full := func(incarnation, digest string) *pb.HealthResponse {
		return &pb.HealthResponse{Sequence: 1, Event: &pb.HealthResponse_Full{Full: &pb.WorkerReport{
			WorkerId: "w", Incarnation: incarnation, Models: []*pb.ModelStatus{
				{Name: "m", ModelDigest: digest, State: pb.ModelState_MODEL_STATE_READY}},
		}}}
	}
	m := &member{}
	m.mu.tracker.apply(full("i2", "d2"))
	old, now := &Link{incarnation: "i1"}, &Link{incarnation: "i2"}
	m.observeDigest(old, "m", "d1")
	require.Empty(t, m.mu.tracker.digests.doubts)
	m.observeDigest(now, "m", "d1")
	require.Len(t, m.mu.tracker.digests.doubts, 1)
}
