package vectorcli

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/internal/vectorfile"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/millrace/internal/failure"
	"github.com/millrace/millrace/services/millrace/internal/protoflags"
	"github.com/millrace/millrace/services/millrace/internal/retry"
	"github.com/millrace/millrace/services/millrace/internal/session"
)

// trainFlags are the flags of train that are not fields of the config.
type trainFlags struct {
	out, from, checkpoint, resume, plot string
	json                                bool
}

// defaultCheckpointInterval is the interval if --checkpoint is given without one.
const defaultCheckpointInterval = 10

// configUsage has the help of the flags for the config's fields.
var configUsage = map[string]string{
	"kind":                  "one codeword for a row, or one for each of its subspaces (unset: flat, with --subspaces product)",
	"subspaces":             "subspaces of a product codebook; they divide the dimension",
	"metric":                "which codeword is the nearest (unset: l2); inner-product and cosine are for flat codebooks",
	"algorithm":             "codewords go to the mean of their rows, or some way there, less from round to round (unset: lloyd)",
	"init":                  "where codewords begin (unset: kmeans-plus-plus up to 4096 codewords where the metric has it, else random)",
	"seed":                  "decides every draw (unset: one is drawn, and printed)",
	"max_iterations":        "updates of the codebook, [0, 1000000] (unset: 25)",
	"energy_tolerance":      "a round is stable whose energy differs from the last by at most this share of it (unset: energy does not matter)",
	"min_changes":           "a round is stable if at most this number of ids changes (unset: ids do not matter, but lloyd ends when none does)",
	"stable_iterations":     "stable rounds in a row that end the training, [1, 1000000] (unset: 1)",
	"max_rows_per_codeword": "train on at most this number of rows a codeword, drawn evenly (unset: every row)",
	"checkpoint_interval":   "iterations from one checkpoint to the next, [1, 1000000] (unset: 10); needs --checkpoint",
	"save_as":               "keep the codebook on the worker under this name, too, and load it there",
}

// annealingUsage has the help of the flags of --algorithm annealed.
var annealingUsage = map[string]string{
	"temperature":          "annealed: T of the first update, (0, 1] (unset: 1)",
	"cooling_rate":         "annealed: share of T that each update takes off it, [0, 1) (unset: 0.05)",
	"learning_rate":        "annealed: share of the way to the mean at T = 1, (0, 1] (unset: 0.5)",
	"momentum":             "annealed: share of the last step added to the next, [0, 1) (unset: 0)",
	"trim":                 "annealed: share of a codeword's rows, the farthest, left out of its mean, [0, 0.5] (unset: 0)",
	"step_limit":           "annealed: longest step of a codeword, in the rows' unit (unset: none)",
	"maintenance_interval": "annealed: updates from one merge and split to the next, [1, 1000000] (unset: none)",
	"merge_distance":       "annealed: codewords nearer than this become one (unset: none do)",
	"split_load":           "annealed: a codeword with more than this multiple of its share of rows is split, above 1 (unset: none is)",
}

// train trains a codebook.
func (a *app) train() *cobra.Command {
	var f trainFlags
	cfg := &pb.TrainingConfig{Annealing: &pb.Annealing{}}
	cmd := &cobra.Command{
		Use:   "train ROWS",
		Short: "Train a codebook and show how far it is",
		Long: "Trains a codebook on the rows of a file, which are streamed to a worker. The codebook's file says which rows, seed and\n" +
			"flags made it, and has the same bytes whatever worker trained it. Ctrl-C cancels the training; with --checkpoint it\n" +
			"continues from there, on any worker, to the same bytes: at once if a worker is lost and another is available, else with\n" +
			"--resume FILE and the same rows. That takes the other flags from the checkpoint; of these only --max-iterations,\n" +
			"--energy-tolerance, --min-changes and --stable-iterations may differ.\n\n" +
			"Energy is the mean distance of the rows from their codewords: of the metric l2 the mean squared error of a row. Imbalance\n" +
			"says how evenly rows are spread over codewords: codewords x sum of squared rows of each / square of all rows; 1 is even.",
		Example: "  millrace vectors train base.fvecs -k 4096 -o cb.safetensors\n" +
			"  millrace vectors train base.fvecs -k 256 --subspaces 16 -o pq.safetensors --checkpoint pq.checkpoint --plot pq.svg\n" +
			"  millrace vectors train base.fvecs --resume pq.checkpoint -o pq.safetensors",
		Args: session.One("ROWS, a file of vectors"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.runTrain(cmd, cfg, &f, args[0])
		},
	}
	fs := cmd.Flags()
	fs.Uint32VarP(&cfg.Codewords, "codewords", "k", 0, "codewords, of each subspace, [2, 65536]")
	fs.StringVarP(&f.out, "output", "o", "", "file of the codebook, .safetensors")
	protoflags.RegisterAs(fs, cfg, "codeword_type", "type", "type of the codewords: f32, f16 or bf16 (unset: f16)")
	protoflags.Register(fs, cfg, configUsage)
	protoflags.Register(fs, cfg.GetAnnealing(), annealingUsage)
	fs.StringVar(&f.from, "from", "", "begin with the codewords of this codebook's file, and take its shape")
	fs.StringVar(&f.checkpoint, "checkpoint", "", "keep the last checkpoint in this file")
	fs.StringVar(&f.resume, "resume", "", "continue from this checkpoint's file")
	fs.StringVar(&f.plot, "plot", "", "draw energy over iterations, rows and variance of each codeword, and rows of dimension 2, into this file, .svg")
	fs.BoolVar(&f.json, "json", false, "print one event a line as JSON and nothing else, the codebook's and checkpoints' bytes left out")
	return cmd
}

func (a *app) runTrain(cmd *cobra.Command, cfg *pb.TrainingConfig, f *trainFlags, path string) error {
	rows, err := vectorfile.OpenRows(path)
	if err != nil {
		return failure.Usagef("%w", err)
	}
	defer func() { _ = rows.Close() }() // it was only read
	cfg.Dimension, cfg.Rows, cfg.ElementType = uint32(rows.Dimension()), uint64(rows.Rows()), key(rowTypes, rows.ElementType())
	t := &training{config: cfg, rows: rows}
	if err := t.complete(cmd.Flags(), f, path); err != nil {
		return err
	}
	defer t.close()
	out, err := createUnlessEmpty(f.out)
	if err != nil {
		return err
	}
	defer out.discard()
	drawing, err := createUnlessEmpty(f.plot)
	if err != nil {
		return err
	}
	defer drawing.discard()
	if out != nil || drawing != nil {
		t.askForStatistics()
	}
	client, hangUp, err := a.client("")
	if err != nil {
		return err
	}
	defer hangUp()
	ctx, cancel := a.Deadline(cmd.Context(), 0)
	defer cancel()
	began := time.Now()
	done, err := a.follow(ctx, client, t, f)
	if err != nil {
		return err
	}
	if out != nil {
		if err := done.write(out.File, t); err != nil {
			return err
		}
		if err := out.keep(); err != nil {
			return err
		}
	}
	if drawing != nil {
		figure, err := done.figure(path, t)
		if err != nil {
			return err
		}
		if _, err := drawing.Write(figure.SVG()); err != nil {
			return err
		}
		if err := drawing.keep(); err != nil {
			return err
		}
	}
	if !f.json {
		fmt.Fprintln(a.Out, done.line(f.out, cfg, time.Since(began)))
	}
	if done.unsaved != nil {
		fmt.Fprintln(a.Err, "the training has finished, and its worker could not save the codebook; --output FILE keeps one here, "+
			"and vectors put brings it to a worker")
	}
	return done.unsaved
}

// follow runs a training, shows it, and writes its checkpoints. If it ends early, follow prints how
// to resume it.
func (a *app) follow(ctx context.Context, client pb.VectorServiceClient, t *training, f *trainFlags) (*trained, error) {
	var show trainDisplay = silent{}
	if !f.json {
		show = a.trainDisplay(maxIterations(t.config))
	}
	defer show.close()
	kept, last := int64(-1), (*checkpoint)(nil)
	t.checkpoint = func(c *checkpoint) error {
		if f.checkpoint == "" { // a worker that stops sends one without being asked
			return nil
		}
		last = c
		err := writeWhole(f.checkpoint, func(w *os.File) error { return c.write(w) })
		if err != nil { // the training is worth more than its checkpoint
			show.print(a.Err, fmt.Sprintf("checkpoint of iteration %d not kept: %v", c.iteration, err))
			return nil
		}
		kept = c.iteration
		return nil
	}
	t.event = func(event *pb.TrainCodebookResponse) error {
		if f.json {
			return printEvent(a.Out, event)
		}
		if p := event.GetProgress(); p != nil {
			show.update(event.GetWorkerId(), p)
		}
		return nil
	}
	done, err := t.run(ctx, client)
	tries := retry.Attempts{}
	for from := int64(-1); err != nil && last != nil && retry.Transient(err); {
		if last.iteration > from { // it progressed since the last attempt
			tries, from = retry.Attempts{}, last.iteration
		}
		if !tries.Wait(ctx, err) {
			break
		}
		show.print(a.Err, fmt.Sprintf("the worker %s is lost; the training continues from iteration %d elsewhere", t.worker, from))
		t.resumeFrom(last)
		done, err = t.run(ctx, client)
	}
	show.close()
	if err != nil && (t.accepted != nil || last != nil) {
		switch {
		case kept >= 0:
			fmt.Fprintf(a.Err, "the training has ended; it continues from iteration %d with --resume %s\n", kept, f.checkpoint)
		case f.resume != "":
			fmt.Fprintf(a.Err, "the training has ended; it continues as before with --resume %s\n", f.resume)
		case f.checkpoint != "":
			fmt.Fprintln(a.Err, "the training has ended before its first checkpoint")
		case status.Code(err) != codes.InvalidArgument: // an error about the rows or the flags is complete
			fmt.Fprintln(a.Err, "the training has ended and left nothing; --checkpoint FILE keeps how far one has come")
		}
	}
	return done, err
}
