package e2e

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

func TestEmbedOutlivesItsWorker(t *testing.T) {
	// A worker is killed under calls. They are computed again elsewhere, and no caller sees it.
	t.Parallel()
	steps := []string{"--device", "sim:step=10ms,prefill=0s,decode=0s", "--load", stories}
	dies, lives := startWorker(t, "dies", steps...), startWorker(t, "lives", steps...)
	s := startScheduler(t, []*server{dies, lives})
	s.untilServed(t, stories, 2)
	in := &pb.EmbedRequest{Model: stories, Pooling: pb.Pooling_POOLING_MEAN.Enum()}
	for i := range 200 {
		in.Texts = append(in.GetTexts(), fmt.Sprintf("Text %d.", i)+strings.Repeat(" Once upon a time", i%9))
	}
	want, err := s.infer.Embed(within(t), in)
	require.NoError(t, err)
	require.Len(t, want.GetEmbeddings(), 200)
	var calls sync.WaitGroup
	for range 8 {
		calls.Go(func() {
			for range 3 {
				got, err := s.infer.Embed(within(t), in)
				if err == nil && !proto.Equal(want, got) {
					err = fmt.Errorf("another answer")
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	dies.untilLoad(t, "the worker computes", func(l *pb.LoadStatus) bool { return l.GetRunning() > 4 })
	dies.kill()
	calls.Wait()
}
