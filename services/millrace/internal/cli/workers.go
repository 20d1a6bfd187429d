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
	"github.com/millrace/millrace/services/millrace/internal/session"
	"github.com/millrace/millrace/services/millrace/internal/tty"
)

// workersFlags are the flags of workers.
type workersFlags struct {
	once, watch, wide, json bool
	interval                time.Duration
}

// workers shows the fleet as a scheduler sees it.
func (a *app) workers() *cobra.Command {
	var f workersFlags
	cmd := &cobra.Command{
		Use:   "workers",
		Short: "Show the workers that a scheduler follows",
		Long: "Shows a table of the workers that a scheduler follows. On a terminal it is redrawn as it changes, until Ctrl-C;\n" +
			"elsewhere, and as JSON, it is shown once. --once and --watch change that: with --watch each change is a table, or a\n" +
			"line of JSON, of its own.\n\n" +
			"--wide adds a table of each device: temperature and power, memory errors (uncorrected and corrected), memory in use\n" +
			"and free of the whole device and by the worker's own ledger, how often freed memory was used again, freed\n" +
			"memory kept for reuse, buffers leaked and frees refused, when each model's resident bytes were last checked, and how long\n" +
			"it has been without requests, of the time after which its worker unloads it.\n" +
			"Unknown values are \"-\".",
		Example: "  millrace workers --once\n  millrace workers --wide --watch --interval 5s\n  millrace workers --json | jq '.workers[].report.device'",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.once && f.watch {
				return failure.Usagef("--once and --watch exclude each other")
			}
			conn, hangUp, err := a.dial()
			if err != nil {
				return err
			}
			defer hangUp()
			ctx, cancel := a.deadline(cmd.Context(), 0)
			defer cancel()
			err = a.watchFleet(ctx, conn, &f)
			if status.Code(err) == codes.Unimplemented {
				return fmt.Errorf("%w: %s is not a scheduler, so it has no fleet to show: give --target a scheduler "+
					"(millrace-scheduler --workers %s makes one), or see this worker with millrace models and millrace health",
					failure.ErrState, a.target, a.target)
			}
			if errors.Is(context.Cause(cmd.Context()), failure.ErrInterrupted) {
				return nil // the usual end of a table that never ends
			}
			return failure.OfCall(err, "", nil)
		},
	}
	fs := cmd.Flags()
	fs.BoolVar(&f.once, "once", false, "show one table and exit, also on a terminal")
	fs.BoolVarP(&f.watch, "watch", "w", false, "continue until Ctrl-C, also if standard output is no terminal")
	fs.BoolVar(&f.wide, "wide", false, "show temperature, power, memory errors, physical memory, pool and residency checks too")
	fs.BoolVar(&f.json, "json", false, "print one snapshot a line as JSON and nothing else")
	fs.DurationVar(&f.interval, "interval", 500*time.Millisecond, "least time between tables, [100ms, 1h]")
	return cmd
}

func (a *app) watchFleet(ctx context.Context, conn grpc.ClientConnInterface, f *workersFlags) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream where one message is enough
	in, err := pb.NewFleetServiceClient(conn).WatchFleet(ctx, &pb.WatchFleetRequest{Interval: durationpb.New(f.interval)})
	if err != nil {
		return err
	}
	fd, isTerminal := tty.Of(a.Out)
	screen := 0 // columns of the terminal, 0 elsewhere
	if isTerminal {
		screen, _, _ = term.GetSize(fd) // 0 where not known
	}
	live := isTerminal && !f.once && !f.json
	goOn := live || f.watch
	for lines, first := 0, true; ; first = false {
		fleet, err := in.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case f.json:
			err = session.PrintJSON(a.Out, fleet)
		case live:
			width, height, _ := term.GetSize(fd) // 0 where not known: no limit
			var text string
			text, lines = render.Redraw(fleetText(fleet.GetWorkers(), f.wide, width), lines, width, height)
			_, err = io.WriteString(a.Out, text)
		default:
			gap := "\n"
			if first {
				gap = ""
			}
			_, err = io.WriteString(a.Out, gap+fleetText(fleet.GetWorkers(), f.wide, screen))
		}
		if err != nil || !goOn {
			return err
		}
	}
}

// fleetText is a table of one row a worker, with wide a second one about its device, and below why workers are not well and which
// columns do not fit a screen of width columns (0: no limit).
func fleetText(workers []*pb.FleetWorker, wide bool, width int) string {
	if len(workers) == 0 {
		return "no workers: start millrace-scheduler with --workers a,b\n"
	}
	text, hidden := fleetTable(workers, width)
	if wide {
		text += "\n" + deviceTable(workers, width)
	}
	for _, w := range workers {
		for _, problem := range workerProblems(w, wide) {
			text += render.Line(problem) + "\n"
		}
	}
	for _, warning := range unevenContexts(workers) {
		text += render.Line(warning) + "\n"
	}
	if len(hidden) > 0 {
		text += fmt.Sprintf("(not shown at this width: %s)\n", strings.ToLower(strings.Join(hidden, ", ")))
	}
	return text
}

// fleetTable is one row a worker, and the columns that do not fit.
func fleetTable(workers []*pb.FleetWorker, width int) (table string, hidden []string) {
	var rows [][]string
	for _, w := range workers {
		r := w.GetReport()
		if !heard(w) { // its last report is out of date
			rows = append(rows, []string{workerName(w), workerState(w), device(r.GetDevice()), "", "", "", "", "", "", w.GetAddress()})
			continue
		}
		rows = append(rows, []string{
			workerName(w), workerState(w), device(r.GetDevice()),
			memory(r.GetDevice()), fmt.Sprint(r.GetLoad().GetRunning()), fmt.Sprint(r.GetLoad().GetWaiting()),
			render.Rate(r.GetLoad().GetTokensPerSecond()), stepAge(r.GetProgress()), modelList(r.GetModels()), w.GetAddress(),
		})
	}
	return render.Fit([]string{"WORKER", "STATE", "DEVICE", "MEMORY", "RUNNING", "WAITING", "TOKENS/S", "LAST STEP", "MODELS", "ADDRESS"},
		rows, width, "ADDRESS", "LAST STEP", "DEVICE", "TOKENS/S", "MEMORY", "WAITING")
}

// heard reports whether a worker's report is current.
func heard(w *pb.FleetWorker) bool { return w.GetReport() != nil && w.GetConnected() }

// workerName is its id, or its address before it has said its id.
func workerName(w *pb.FleetWorker) string {
	if id := w.GetReport().GetWorkerId(); id != "" {
		return id
	}
	return w.GetAddress()
}

func workerState(w *pb.FleetWorker) string {
	if !w.GetConnected() {
		return "unreachable"
	}
	return render.Readable(w.GetReport().GetState().String(), "WORKER_STATE_")
}

// device returns the device's kind and name, and the number of GPUs that hold models together, cut
// to the width of a table's cell.
func device(d *pb.DeviceStatus) string {
	const most = 40
	text := d.GetName()
	if d.GetDevices() > 1 {
		text = fmt.Sprintf("%d x %s", d.GetDevices(), text)
	}
	if !strings.HasPrefix(strings.ToLower(text), d.GetKind()) {
		text = d.GetKind() + " " + text
	}
	if runes := []rune(strings.TrimSpace(text)); len(runes) > most {
		return string(runes[:most-3]) + "..."
	}
	return strings.TrimSpace(text)
}

// memory returns the used and the total bytes of a device.
func memory(d *pb.DeviceStatus) string {
	used := d.GetBytesTotal() - min(d.GetBytesFree(), d.GetBytesTotal())
	return fmt.Sprintf("%s of %s", render.Bytes(used), render.Bytes(d.GetBytesTotal()))
}

// stepAge is how long ago the last step ended, or how long the one that runs has run.
func stepAge(p *pb.StepProgress) string {
	switch {
	case p.GetRunningStepAge() != nil:
		return "running " + render.Duration(p.GetRunningStepAge().AsDuration())
	case p.GetLastStepAge() != nil:
		return render.Age(p.GetLastStepAge().AsDuration())
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

// workerProblems returns lines about the problems of a worker.
func workerProblems(w *pb.FleetWorker, wide bool) []string {
	id := workerName(w)
	var all []string
	if w.GetProblem() != "" {
		since := ""
		if w.GetAge() != nil && !w.GetConnected() {
			since = fmt.Sprintf(" (last heard %s)", render.Age(w.GetAge().AsDuration()))
		}
		all = append(all, fmt.Sprintf("%s: %s%s", id, w.GetProblem(), since))
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
	if problem := w.GetReport().GetDevice().GetManagementProblem(); wide && problem != "" {
		all = append(all, fmt.Sprintf("%s: device readings: %s", id, problem))
	}
	return all
}
