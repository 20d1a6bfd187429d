package vectors_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/scheduler/internal/vectors"
)

// The worker has answered, and the caller does not read: the answer is in memory, and counts.
func TestUnreadAnswersHoldVectorBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const bytes = 3 << 20
		r := newRig(t, vectors.Config{}, []string{"w1"}, serving)
		stream, err := r.conn.NewStream(r.within(), &grpc.StreamDesc{ServerStreams: true}, pb.VectorService_Encode_FullMethodName)
		require.NoError(t, err)
		require.NoError(t, stream.SendMsg(&pb.EncodeRequest{Codebook: "k", Rows: make([]byte, bytes)}))
		require.NoError(t, stream.CloseSend())
		time.Sleep(10 * time.Second)
		calls, held := r.vectors.UnderWay()
		require.EqualValues(t, 1, calls)
		require.Greater(t, held, int64(bytes), "request and answer")
		require.NoError(t, stream.RecvMsg(&pb.EncodeResponse{}))
		synctest.Wait()
		calls, held = r.vectors.UnderWay()
		require.Zero(t, calls+held)
	})
}
