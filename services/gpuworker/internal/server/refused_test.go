package server

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/enginetest"
	"github.com/millrace/millrace/gpuworker/engine/sim"
	"github.com/millrace/millrace/gpuworker/model"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

func TestEngineRefusalKeepsTheWorkerReady(t *testing.T) {
	// A request that the engine refuses gets its error.
	const poison = 77
	for name, tc := range map[string]struct {
		why    error
		code   codes.Code
		reason string
	}{
		"an argument": {engine.ErrInvalid, codes.InvalidArgument, reason.RefusedByEngine},
		"memory":      {engine.ErrOutOfMemory, codes.ResourceExhausted, reason.OutOfDeviceMemory},
		"a state":     {engine.ErrPrecondition, codes.Internal, reason.EngineState},
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t, enginetest.Intercept(simDevice(t, sim.Options{StepTime: time.Millisecond}), enginetest.Hooks{
				Submit: func(s *engine.Step) error {
					if slices.ContainsFunc(s.Segments, func(seg engine.Segment) bool { return slices.Contains(seg.Tokens, poison) }) {
						return fmt.Errorf("the engine's own words: %w", tc.why)
					}
					return nil
				},
			}), "stories")
			ctx, cancel := context.WithTimeout(t.Context(), hang)
			defer cancel()
			alone := w.generate(ctx, t, prompted("Once upon a time", 50))
			require.NoError(t, alone.err)
			require.NotContains(t, alone.ids[0], uint32(poison), "choose another seed")

			beside, err := w.infer.Generate(ctx, prompted("Once upon a time", 50))
			require.NoError(t, err)
			bad := prompted("", 5)
			bad.Input = &pb.GenerateRequest_TokenIds{TokenIds: &pb.TokenIds{Ids: []uint32{1, 2, poison, 3}}}
			refused := w.generate(ctx, t, bad)
			require.Equal(t, tc.code, status.Code(refused.err), "%v", refused.err)
			require.Equal(t, tc.reason, rpc.Reason(refused.err))
			require.Contains(t, status.Convert(refused.err).Message(), "the engine's own words")
			require.Equal(t, alone.ids, receive(t, beside).ids, "with other requests in the batch")
			require.Equal(t, model.Ready, w.manager.Loaded()[0].State)
			require.Equal(t, alone.ids, w.generate(ctx, t, prompted("Once upon a time", 50)).ids)
		})
	}
}
