package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/millrace/internal/failure"
	"github.com/millrace/millrace/services/millrace/internal/render"
	"github.com/millrace/millrace/services/millrace/internal/score"
	"github.com/millrace/millrace/services/millrace/internal/session"
	"github.com/millrace/millrace/services/millrace/internal/tty"
)

const (
	// maxScoreBytes keeps the Tokenize request below the 16 MiB that servers take. A longer text is refused: cut
	// anywhere, its tokens at the cut would be others.
	maxScoreBytes = 16<<20 - 64<<10
	// defaultWindow is taken unless the model's context is shorter.
	defaultWindow = 512
)

// scoreFlags are the flags of score.
type scoreFlags struct {
	model    string
	window   int
	class    string
	inFlight int
	json     bool
}

// scored is the result.
type scored struct {
	Perplexity  float64 `json:"perplexity"`
	Tokens      int     `json:"tokens"` // predictions that count
	MeanLogprob float64 `json:"mean_logprob"`
	Windows     int     `json:"windows"`
	Window      int     `json:"window"`
	Class       string  `json:"class"`
	Model       string  `json:"model"`
	ModelDigest string  `json:"model_digest"`
	ClassID     string  `json:"class_id"`
}

// score computes the perplexity of a text.
func (a *app) score() *cobra.Command {
	var f scoreFlags
	cmd := &cobra.Command{
		Use:   "score FILE",
		Short: "Compute mean logprob and perplexity of a text",
		Long: "Computes how well a model predicts a text. The text (\"-\": standard input) is tokenised once, without special\n" +
			"tokens, and cut into windows of N tokens, each scored alone; the first token of each window is replaced by the\n" +
			"model's BOS token. The predictions made at position N/2 and later count, so that each has a context of at least\n" +
			"N/2 tokens. A last window shorter than N/2+2 tokens is left out. Perplexity is exp(-mean logprob).\n" +
			"A text may have 16 MiB less 64 KiB at most.",
		Example: "  millrace score -m stories --window 256 --json story.txt",
		Args:    session.One("FILE, a text, or - for standard input"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.runScore(cmd.Context(), &f, args[0])
		},
	}
	fs := cmd.Flags()
	modelFlag(fs, &f.model)
	fs.IntVar(&f.window, "window", 0, "tokens a window (default: 512, or the model's context if that is shorter)")
	fs.StringVar(&f.class, "class", "prefill", "kernels to measure: prefill, or decode, which computes one token a step")
	fs.IntVar(&f.inFlight, "in-flight", 4, "windows computed at once, [1, 64]")
	fs.BoolVar(&f.json, "json", false, "print one JSON object")
	return cmd
}

func (a *app) runScore(ctx context.Context, f *scoreFlags, file string) error {
	class, err := kernelClass(f.class)
	if err != nil || class == nil {
		return failure.Usagef("--class %q: want prefill or decode", f.class)
	}
	if f.inFlight < 1 || f.inFlight > 64 {
		return failure.Usagef("--in-flight is %d: want 1 to 64", f.inFlight)
	}
	if f.window != 0 && f.window < score.MinWindow {
		return failure.Usagef("--window is %d: want at least %d", f.window, score.MinWindow)
	}
	text, err := a.readText(file)
	if err != nil {
		return err
	}
	conn, hangUp, err := a.dial()
	if err != nil {
		return err
	}
	defer hangUp()
	ctx, cancel := a.deadline(ctx, 0)
	defer cancel()
	model, err := info(ctx, conn, f.model)
	if err != nil {
		return err
	}
	f.model = model.GetName()
	if model.GetCapabilities() != nil && model.GetCapabilities().BosTokenId == nil {
		return fmt.Errorf("%w: model %q has no BOS token, which begins every window: it cannot be scored", failure.ErrState, f.model)
	}
	if f.window == 0 {
		f.window = defaultWindow
		if have := int(model.GetLoaded().GetContextLength()); have > 0 {
			f.window = min(f.window, have)
		}
	}
	out, err := a.scoreText(ctx, conn, f, *class, text, model.GetCapabilities().GetBosTokenId())
	if err != nil {
		return err
	}
	if f.json {
		return json.NewEncoder(a.Out).Encode(out)
	}
	fmt.Fprintf(a.Out, "perplexity %.6g, mean logprob %.6f, over %d tokens in %d windows of %d (%s), model %s, class %s\n",
		out.Perplexity, out.MeanLogprob, out.Tokens, out.Windows, out.Window, out.Class, render.ShortDigest(out.ModelDigest),
		render.Line(out.ClassID))
	return nil
}

// readText reads a file, or standard input for "-".
func (a *app) readText(file string) (string, error) {
	if file == "-" {
		return a.text([]string{"-"}, "text")
	}
	raw, err := os.ReadFile(file)
	switch {
	case err != nil:
		return "", failure.Usagef("%w", err)
	case len(raw) == 0:
		return "", failure.Usagef("%s is empty", file)
	case !utf8.Valid(raw):
		return "", failure.Usagef("%s is not UTF-8: convert it, for example with iconv -t UTF-8", file)
	}
	return string(raw), nil
}

func (a *app) scoreText(ctx context.Context, conn *grpc.ClientConn, f *scoreFlags, class pb.KernelClass, text string, bos uint32) (*scored, error) {
	if len(text) > maxScoreBytes {
		return nil, failure.Usagef("the text has %s, at most %s can be scored in one run: servers take no larger message; cut it, and score the parts",
			render.Bytes(uint64(len(text))), render.Bytes(maxScoreBytes))
	}
	plain := false
	tokens, err := pb.NewInferenceServiceClient(conn).Tokenize(ctx, &pb.TokenizeRequest{
		Model: f.model, Input: &pb.TokenizeRequest_Text{Text: text}, AddSpecial: &plain, ParseSpecial: &plain,
	})
	if err != nil {
		return nil, failure.OfCall(err, f.model, nil)
	}
	windows, err := score.Windows(tokens.GetTokenIds(), f.window, bos)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", failure.ErrUsage, err)
	}
	sums, counts := make([]float64, len(windows)), make([]int, len(windows))
	digests, classes := make([]string, len(windows)), make([]string, len(windows))
	show := tty.NewCounter(a.Err, "windows", len(windows))
	defer show.Close()
	var done atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(f.inFlight)
	for i, window := range windows {
		group.Go(func() error {
			if ctx.Err() != nil { // another window has failed
				return ctx.Err()
			}
			logprobs, started, err := scoreWindow(ctx, conn, f.model, class, window)
			if err != nil {
				return err
			}
			digests[i], classes[i] = started.GetModelDigest(), started.GetClassId()
			sums[i], counts[i], err = score.Sum(logprobs, f.window)
			show.Set(int(done.Add(1)))
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	for i := range windows {
		if digests[i] != digests[0] || classes[i] != classes[0] {
			return nil, fmt.Errorf("%w: windows were computed by different models or classes (%s of class %s, %s of class %s): name one worker with --target",
				failure.ErrState, render.ShortDigest(digests[0]), classes[0], render.ShortDigest(digests[i]), classes[i])
		}
	}
	out := &scored{Windows: len(windows), Window: f.window, Class: f.class, Model: f.model, ModelDigest: digests[0], ClassID: classes[0]}
	out.MeanLogprob, out.Perplexity, out.Tokens, err = score.Mean(sums, counts)
	return out, err
}

// errShort: a server sent fewer logprobs than the window has tokens.
var errShort = errors.New("the server sent too few logprobs")

// scoreWindow gives the logprob of each token of a window but the first, whose place holds 0.
func scoreWindow(ctx context.Context, conn grpc.ClientConnInterface, model string, class pb.KernelClass, window []uint32,
) ([]float32, *pb.Started, error) {
	none, only := int32(0), true
	logprobs := make([]float32, len(window))
	have := 1 // the first token has none
	done, err := stream(ctx, conn, nil, &pb.GenerateRequest{
		Model: model, Input: &pb.GenerateRequest_TokenIds{TokenIds: &pb.TokenIds{Ids: window}},
		Stopping:    &pb.Stopping{MaxTokens: &none},
		Response:    &pb.ResponseOptions{PromptLogprobs: &none, TokenIdsOnly: &only},
		PromptClass: &class,
	}, func(event *pb.GenerateResponse) error {
		for i, d := range event.GetPrompt().GetDetails() {
			at := int(event.GetPrompt().GetTokenIndex()) + i
			if at == 0 {
				continue
			}
			if at >= len(window) || d.Logprob == nil {
				return fmt.Errorf("%w: none for token %d of a window of %d", errShort, at, len(window))
			}
			logprobs[at] = d.GetLogprob()
			have++
		}
		return nil
	})
	if err == nil && have != len(window) {
		err = fmt.Errorf("%w: %d for a window of %d", errShort, have, len(window))
	}
	return logprobs, done.started, err
}
