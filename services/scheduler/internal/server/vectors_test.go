package server_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
	"github.com/millrace/millrace/services/scheduler/internal/workertest"
)

func TestCallsOfVectorsAreInFlightOnTheirWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		n := workertest.NewNet()
		w := workertest.New("w1", "i").WithVectors("k")
		w.OnEncode = func(ctx context.Context, _ *pb.EncodeRequest) error {
			<-ctx.Done()
			return ctx.Err()
		}
		w.OnTrain = func(stream grpc.BidiStreamingServer[pb.TrainCodebookRequest, pb.TrainCodebookResponse]) error {
			<-stream.Context().Done()
			return stream.Context().Err()
		}
		n.Start(t, "a:1", w)
		r := newRig(t, n, "a:1")
		r.await(1)
		watch, err := r.operators().WatchFleet(r.within(), &pb.WatchFleetRequest{Interval: durationpb.New(100 * time.Millisecond)})
		require.NoError(t, err)
		await := func(calls uint32) {
			for {
				seen, err := watch.Recv()
				require.NoError(t, err)
				if seen.GetWorkers()[0].GetInFlight() == calls {
					return
				}
			}
		}
		await(0)
		ctx, cancel := context.WithCancel(r.within())
		defer cancel()
		client := pb.NewVectorServiceClient(r.conn)
		ended := make(chan error, 2)
		for range cap(ended) {
			go func() {
				_, err := client.Encode(ctx, &pb.EncodeRequest{Codebook: "k", Rows: []byte{1}})
				ended <- err
			}()
		}
		await(2)
		training, err := client.TrainCodebook(ctx)
		require.NoError(t, err)
		require.NoError(t, training.Send(&pb.TrainCodebookRequest{Event: &pb.TrainCodebookRequest_Config{Config: &pb.TrainingConfig{
			Dimension: 2, Rows: 8, ElementType: pb.ElementType_ELEMENT_TYPE_U8, Kind: pb.CodebookKind_CODEBOOK_KIND_FLAT, Codewords: 2,
		}}}))
		await(3)
		cancel()
		await(0)
		for range cap(ended) {
			require.Error(t, <-ended)
		}
	})
}
