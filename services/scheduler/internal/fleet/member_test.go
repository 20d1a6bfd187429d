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
	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// script is a stream with messages that lie before its end.
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

func TestTheEndOfAStreamIsFoundBehindTheMessagesBeforeIt(t *testing.T) {
	broken := errors.New("broken")
	for name, tc := range map[string]struct {
		stream script
		want   error
	}{
		"at once":        {script{0, broken}, broken},
		"behind several": {script{3, broken}, broken},
		"a good end":     {script{2, io.EOF}, errEnded},
	} {
		t.Run(name, func(t *testing.T) { require.ErrorIs(t, ending(&tc.stream), tc.want) })
	}
}

func TestLoadsOfWorkersThatAreGoneAreForgotten(t *testing.T) {
	f, err := New(Config{Dial: func(string) (*grpc.ClientConn, error) { return nil, io.EOF }}, hclog.NewNullLogger())
	require.NoError(t, err)
	load := func(m *member, id string) *route.Load {
		f.giveLoad(m, id, "i")
		return m.load
	}
	present := &member{}
	f.members["a:1"] = present
	kept, busy := load(present, "present"), load(&member{}, "busy")
	require.True(t, busy.Begin(10, 0))
	for i := range 1000 {
		load(&member{}, fmt.Sprintf("container-%d", i))
	}
	require.LessOrEqual(t, len(f.loads), 3, "those of a member and of a request under way, and the newest")
	require.Same(t, kept, load(present, "present"))
	require.Same(t, busy, load(&member{}, "busy"))
}
