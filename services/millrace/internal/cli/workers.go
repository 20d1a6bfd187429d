package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/millrace/internal/failure"
	"github.com/millrace/millrace/services/millrace/internal/render"
)

// workers shows the fleet as a scheduler sees it.
func (a *app) workers() *cobra.Command {
	var once, asJSON bool
	var interval time.Duration
	cmd := &cobra.Command{
		Use:   "workers",
		Short: "Show the workers that a scheduler follows, live",
		Long: "Shows a table of the workers that a scheduler follows, redrawn as it changes, until Ctrl-C. Where standard output\n" +
			"is no terminal, each change is a table of its own.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			conn, hangUp, err := a.dial()
			if err != nil {
				return err
			}
			defer hangUp()
			ctx, cancel := a.deadline(cmd.Context(), 0)
			defer cancel()
			err = a.watchFleet(ctx, conn, interval, once, asJSON)
			if status.Code(err) == codes.Unimplemented {
				return fmt.Errorf("%w: %s is no scheduler, so it has no fleet to show: give --target a scheduler "+
					"(millrace-scheduler --workers %s makes one), or see this worker with millrace models and millrace health",
					failure.ErrState, a.target, a.target)
			}
			if errors.Is(context.Cause(cmd.Context()), failure.ErrInterrupted) {
				return nil // the usual end of a table that never ends
			}
			return failed(err, "", nil)
		},
	}
	cmd.Flags().BoolVar(&once, "once", false, "show one table and exit")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one snapshot a line as JSON")
	cmd.Flags().DurationVar(&interval, "interval", time.Second, "least time between tables, [100ms, 1h]")
	return cmd
}

func (a *app) watchFleet(ctx context.Context, conn grpc.ClientConnInterface, interval time.Duration, once, asJSON bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream where one message is enough
	in, err := pb.NewFleetServiceClient(conn).WatchFleet(ctx, &pb.WatchFleetRequest{Interval: durationpb.New(interval)})
	if err != nil {
		return err
	}
	fd, live := terminal(a.Out)
	live = live && !once
	for lines, first := 0, true; ; first = false {
		fleet, err := in.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case asJSON:
			err = printJSON(a.Out, fleet)
		case live:
			width, height, _ := term.GetSize(fd) // 0 where not known: no limit
			var text string
			text, lines = render.Redraw(fleetTable(fleet.GetWorkers()), lines, width, height)
			_, err = io.WriteString(a.Out, text)
		default:
			gap := "\n"
			if first {
				gap = ""
			}
			_, err = io.WriteString(a.Out, gap+fleetTable(fleet.GetWorkers()))
		}
		if err != nil || once {
			return err
		}
	}
}

// fleetTable is one row a worker, and below it why workers are not well.
func fleetTable(workers []*pb.FleetWorker) string {
	if len(workers) == 0 {
		return "no workers: start millrace-scheduler with --workers a,b\n"
	}
	var rows [][]string
	problems := ""
	for _, w := range workers {
		r := w.GetReport()
		if r == nil || !w.GetConnected() { // what it said last is not so any more
			name := r.GetWorkerId()
			if name == "" {
				name = w.GetAddress()
			}
			rows = append(rows, []string{name, workerState(w), device(r.GetDevice()), "", "", "", "", "", ""})
		} else {
			rows = append(rows, []string{
				r.GetWorkerId(), workerState(w), device(r.GetDevice()),
				memory(r.GetDevice()), fmt.Sprint(r.GetLoad().GetRunning()), fmt.Sprint(r.GetLoad().GetWaiting()),
				render.Rate(r.GetLoad().GetTokensPerSecond()), stepAge(r.GetProgress()), modelList(r.GetModels()),
			})
		}
		for _, problem := range workerProblems(w) {
			problems += render.Line(problem) + "\n"
		}
	}
	return render.Table([]string{"WORKER", "STATE", "DEVICE", "MEMORY", "RUNNING", "WAITING", "TOKENS/S", "LAST STEP", "MODELS"}, rows) + problems
}

func workerState(w *pb.FleetWorker) string {
	if !w.GetConnected() {
		return "unreachable"
	}
	return readable(w.GetReport().GetState().String(), "WORKER_STATE_")
}

// device is its kind and name, cut to what a table takes.
func device(d *pb.DeviceStatus) string {
	const most = 40
	text := d.GetName()
	if !strings.HasPrefix(strings.ToLower(text), d.GetKind()) {
		text = d.GetKind() + " " + text
	}
	if runes := []rune(strings.TrimSpace(text)); len(runes) > most {
		return string(runes[:most-3]) + "..."
	}
	return strings.TrimSpace(text)
}

// memory is a bar of what is used and the numbers.
func memory(d *pb.DeviceStatus) string {
	used := d.GetBytesTotal() - min(d.GetBytesFree(), d.GetBytesTotal())
	return fmt.Sprintf("[%s] %s of %s", render.Bar(used, d.GetBytesTotal(), 10), render.Bytes(used), render.Bytes(d.GetBytesTotal()))
}

// stepAge is how long ago the last step ended, or how long the one that runs has run.
func stepAge(p *pb.StepProgress) string {
	switch {
	case p.GetRunningStepAge() != nil:
		return "running " + render.Duration(p.GetRunningStepAge().AsDuration())
	case p.GetLastStepAge() != nil:
		return render.Duration(p.GetLastStepAge().AsDuration()) + " ago"
	}
	return "none yet"
}

// modelList names the models, with their state where it is not ready.
func modelList(models []*pb.ModelStatus) string {
	var names []string
	for _, m := range models {
		name := m.GetName()
		if m.GetState() != pb.ModelState_MODEL_STATE_READY {
			name += " (" + modelState(m.GetState()) + ")"
		}
		names = append(names, name)
	}
	return strings.Join(names, ", ")
}

// workerProblems are lines about what is wrong with a worker.
func workerProblems(w *pb.FleetWorker) []string {
	id := w.GetReport().GetWorkerId()
	if id == "" {
		id = w.GetAddress()
	}
	var all []string
	if w.GetProblem() != "" {
		heard := ""
		if w.GetAge() != nil && !w.GetConnected() {
			heard = fmt.Sprintf(" (last heard %s ago)", render.Duration(w.GetAge().AsDuration()))
		}
		all = append(all, fmt.Sprintf("%s: %s%s", id, w.GetProblem(), heard))
	}
	if !w.GetConnected() {
		return all
	}
	for _, c := range w.GetReport().GetChecks() {
		if !c.GetOk() {
			all = append(all, fmt.Sprintf("%s: %s: %s", id, c.GetName(), c.GetMessage()))
		}
	}
	for _, m := range w.GetReport().GetModels() {
		if m.GetProblem() != "" {
			all = append(all, fmt.Sprintf("%s: model %s: %s", id, m.GetName(), m.GetProblem()))
		}
	}
	return all
}
