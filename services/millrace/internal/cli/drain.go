package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/millrace/internal/failure"
	"github.com/millrace/millrace/services/millrace/internal/render"
	"github.com/millrace/millrace/services/millrace/internal/session"
)

// drain has a worker finish what runs and take nothing new.
func (a *app) drain() *cobra.Command {
	var within time.Duration
	var cmd *cobra.Command
	cmd = a.tellWorker(&cobra.Command{
		Use:   "drain WORKER",
		Short: "Let a worker finish its running calls and accept no new ones",
		Long: "Makes a worker accept no new calls. Its running calls end there, or continue at another worker if the scheduler can\n" +
			"hand them over. With --within, calls that still run after that time are ended there and handed over all the same. The\n" +
			"drain holds for every scheduler, until millrace undrain or until the worker restarts. millrace workers shows when\n" +
			"no call runs there any more.",
		Example: "  millrace drain worker-1 && millrace workers",
	}, "drains: it finishes its running calls and accepts no new ones", func(ctx context.Context, fleet pb.FleetServiceClient, id string) (proto.Message, error) {
		in := &pb.DrainWorkerRequest{WorkerId: id}
		if cmd.Flags().Changed("within") {
			in.Timeout = durationpb.New(within)
		}
		return fleet.DrainWorker(ctx, in)
	})
	cmd.Flags().DurationVar(&within, "within", 0, "longest time for running calls to end there, [0s, 24h] (unset: no limit)")
	return cmd
}

// undrain takes a drain back.
func (a *app) undrain() *cobra.Command {
	return a.tellWorker(&cobra.Command{
		Use:     "undrain WORKER",
		Short:   "Let a worker serve again after a drain",
		Long:    "Makes a draining worker accept calls again. A worker whose process is stopping cannot.",
		Example: "  millrace undrain worker-1",
	}, "serves again", func(ctx context.Context, fleet pb.FleetServiceClient, id string) (proto.Message, error) {
		return fleet.UndrainWorker(ctx, &pb.UndrainWorkerRequest{WorkerId: id})
	})
}

// tellWorker completes a command that makes a call about one worker and prints the worker's new state.
func (a *app) tellWorker(cmd *cobra.Command, does string, call func(context.Context, pb.FleetServiceClient, string) (proto.Message, error)) *cobra.Command {
	var asJSON bool
	cmd.Args = session.One("WORKER, the id of a worker as millrace workers lists it")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		conn, hangUp, err := a.dial()
		if err != nil {
			return err
		}
		defer hangUp()
		ctx, cancel := a.deadline(cmd.Context(), unaryTimeout)
		defer cancel()
		out, err := call(ctx, pb.NewFleetServiceClient(conn), args[0])
		switch {
		case status.Code(err) == codes.Unimplemented && rpc.Domain(err) != rpc.SchedulerDomain:
			return fmt.Errorf("%w: %s is not a scheduler, and only a scheduler can drain a worker: give --target a scheduler, "+
				"or stop the worker with SIGTERM, which drains it", failure.ErrState, a.target)
		case err != nil:
			return failure.OfCall(err, "", nil)
		case asJSON:
			return session.PrintJSON(a.Out, out)
		}
		fmt.Fprintln(a.Out, render.Line(args[0]+" "+does))
		return nil
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the answer as JSON")
	return cmd
}
