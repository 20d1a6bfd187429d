package server

import (
	"context"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/gpuworker/engine/sim"
	"github.com/millrace/millrace/gpuworker/model"
	"github.com/millrace/millrace/gpuworker/tokenizer"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

func TestPanicInTokenizerReleasesItsSlot(t *testing.T) {
	w := start(t, simDevice(t, sim.Options{}))
	inst, _, err := w.manager.Load(t.Context(), "stories", model.Options{}, nil)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	working := inst.Tokenizer
	inst.Tokenizer = &tokenizer.Tokenizer{} // knows no vocabulary
	text := &pb.TokenizeRequest{Model: "stories", Input: &pb.TokenizeRequest_Text{Text: "Once upon a time"}}
	for range runtime.GOMAXPROCS(0) + 1 {
		_, err := w.infer.Tokenize(ctx, text)
		require.Equal(t, reason.Panic, rpc.Reason(err), "%v", err)
	}
	inst.Tokenizer = working
	_, err = w.infer.Tokenize(ctx, text)
	require.NoError(t, err)
}

func TestWaitingTextsAreBoundedByTheirBytes(t *testing.T) {
	w := start(t, simDevice(t, sim.Options{}), "stories")
	free := w.fillSlots(t)
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	large := &pb.TokenizeRequest{Model: "stories", Input: &pb.TokenizeRequest_Text{Text: strings.Repeat("x", 3<<20)}}
	waiting, leave := context.WithCancel(ctx)
	const calls, fit = 8, 5 // of 3 MiB, in the 16 MiB of this worker
	outcomes := make(chan error, calls)
	for range calls {
		go func() {
			_, err := w.infer.Tokenize(waiting, large)
			outcomes <- err
		}()
	}
	for range calls - fit {
		err := <-outcomes
		require.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)
		require.Equal(t, reason.TooManyBytesWaiting, rpc.Reason(err))
	}
	leave()
	for range fit {
		require.Equal(t, codes.Canceled, status.Code(<-outcomes))
	}
	free()
	_, err := w.infer.Tokenize(ctx, &pb.TokenizeRequest{Model: "stories", Input: &pb.TokenizeRequest_Text{Text: "Once"}})
	require.NoError(t, err)
}

// fillSlots acquires every slot of the encoder. free releases one.
func (w *worker) fillSlots(t *testing.T) (free func()) {
	t.Helper()
	slots := max(runtime.GOMAXPROCS(0)/2, 1) + runtime.GOMAXPROCS(0)
	for i := range slots {
		size := 1
		if i < max(runtime.GOMAXPROCS(0)/2, 1) {
			size = 64 << 10
		}
		release, err := w.server.encoder.Acquire(t.Context(), "", size)
		require.NoError(t, err)
		free = release
	}
	return free
}

func TestPromptsThatNeverFitAreNotTokenised(t *testing.T) {
	// A prompt that has more bytes than any sequence of the model is refused before it waits for a
	// slot. So what waits is at most the bytes of one context for each call, within the budget of
	// the test above.
	w := start(t, simDevice(t, sim.Options{}), "stories")
	w.fillSlots(t)
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	for range 40 { // of 1 MiB, where 16 MiB may wait
		out := w.generate(ctx, t, prompted(strings.Repeat("x", 1<<20), 1))
		require.Equal(t, codes.InvalidArgument, status.Code(out.err), "%v", out.err)
	}
}
