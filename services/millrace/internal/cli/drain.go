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
)

// drain has a worker finish what runs and take nothing new.
func (a *app) drain() *cobra.Command {
	var within time.Duration
	var cmd *cobra.Command
	cmd = a.tellWorker(&cobra.Command{
		Use:   "drain WORKER",
		Short: "Let a worker finish what runs and take nothing new",
		Long: "Has a worker take nothing new. What runs there ends there, or goes on at another worker where the scheduler can hand\n" +
			"it over; with --within, what is left after that time is ended there and handed over all the same. It stays so, for every scheduler, until millrace undrain or until the worker starts again. millrace workers\n" +
			"shows when nothing runs there any more.",
		Example: "  millrace drain worker-1 && millrace workers",
	}, "drains: it finishes what runs and takes nothing new", func(ctx context.Context, fleet pb.FleetServiceClient, id string) (proto.Message, error) {
		in := &pb.DrainWorkerRequest{WorkerId: id}
		if cmd.Flags().Changed("within") {
			in.Timeout = durationpb.New(within)
		}
		return fleet.DrainWorker(ctx, in)
	})
	cmd.Flags().DurationVar(&within, "within", 0, "how long what runs may take to end there, [0s, 24h] (unset: as long as it takes)")
	return cmd
}

// undrain takes a drain back.
func (a *app) undrain() *cobra.Command {
	return a.tellWorker(&cobra.Command{
		Use:     "undrain WORKER",
		Short:   "Let a worker serve again after a drain",
		Long:    "Has a worker that drains take requests again. One whose process is stopping cannot.",
		Example: "  millrace undrain worker-1",
	}, "serves again", func(ctx context.Context, fleet pb.FleetServiceClient, id string) (proto.Message, error) {
		return fleet.UndrainWorker(ctx, &pb.UndrainWorkerRequest{WorkerId: id})
	})
}

// tellWorker completes a command that makes a call about one worker and says what the worker does then.
func (a *app) tellWorker(cmd *cobra.Command, does string, call func(context.Context, pb.FleetServiceClient, string) (proto.Message, error)) *cobra.Command {
	var asJSON bool
	cmd.Args = one("WORKER, the id of a worker as millrace workers lists it")
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
			return fmt.Errorf("%w: %s is no scheduler, and a worker is told by one to drain: give --target a scheduler, "+
				"or stop the worker with SIGTERM, which drains it", failure.ErrState, a.target)
		case err != nil:
			return failed(err, "", nil)
		case asJSON:
			return printJSON(a.Out, out)
		}
		fmt.Fprintln(a.Out, render.Line(args[0]+" "+does))
		return nil
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the answer as JSON")
	return cmd
}
