package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/millrace/internal/failure"
	"github.com/millrace/millrace/services/millrace/internal/protoflags"
	"github.com/millrace/millrace/services/millrace/internal/render"
	"github.com/millrace/millrace/services/millrace/internal/session"
	"github.com/millrace/millrace/services/millrace/internal/tty"
)

// generateFlags are the flags of generate that are not fields of the request as they stand.
type generateFlags struct {
	json     bool
	quiet    bool
	tokenIDs string
	class    string
	resume   string
	inexact  bool
	expect   pb.GenerateRequest // the expect_ fields and request_id
	asChat   bool
	chat     pb.Chat // how --chat renders; it has no messages
	guided   guidedFlags
}

// generate continues a prompt.
func (a *app) generate() *cobra.Command {
	var f generateFlags
	req := &pb.GenerateRequest{}
	cmd := &cobra.Command{
		Use:   "generate [PROMPT]",
		Short: "Continue a prompt and stream the text",
		Long: "Continues a prompt, given as arguments or on standard input (whose last line end is dropped), and streams the\n" +
			"text to standard output as it is made. One line of statistics follows on standard error, with the seed: the same\n" +
			"seed gives the same text. Unset knobs have the contract's defaults, which take every token as often as the model\n" +
			"would: small models read better with --temperature 0.7 --top-p 0.9, and --temperature 0 always takes the best token.",
		Example: "  millrace generate -m stories \"Once upon a time\" --temperature 0.7 --top-p 0.9\n" +
			"  millrace generate -m stories \"Once upon a time\" --max-tokens 100 --seed 7\n" +
			"  millrace generate -m qwen3 --chat --template-arg enable_thinking=false \"Name three rivers\"\n" +
			"  echo \"Tom had a big red\" | millrace generate -m stories --json\n" +
			"  millrace generate -m stories \"Once\" --json-schema person.json\n" +
			"  millrace generate -m synthetic --token-ids 1,2,3 --max-tokens 8\n" +
			"  millrace generate -m stories \"Once\" --json --resume cut.jsonl > rest.jsonl",
		RunE: func(cmd *cobra.Command, args []string) error {
			err := a.generateRequest(cmd, req, &f, args)
			if errors.Is(err, errNothingLeft) {
				fmt.Fprintf(a.Err, "the stream in %s is finished: there is nothing to continue\n", render.Line(f.resume))
				return nil
			}
			if err != nil {
				return err
			}
			return a.runGenerate(cmd.Context(), req, &f)
		},
	}
	fs := cmd.Flags()
	modelFlag(fs, &req.Model)
	fs.BoolVar(&f.json, "json", false, "print one event a line as JSON and nothing else; finished events hold the statistics")
	fs.BoolVarP(&f.quiet, "quiet", "q", false, "print no statistics")
	fs.StringVar(&f.tokenIDs, "token-ids", "", "prompt as token ids, such as 1,2,3; the output is token ids too unless --token-ids-only=false")
	fs.StringVar(&f.class, "prompt-class", "", "kernels that compute the prompt, for measuring: prefill or decode (unset: prefill)")
	protoflags.Register(fs, &f.expect, map[string]string{
		"request_id":           "name of the request in logs and errors (unset: the server makes one)",
		"expect_model_digest":  "refuse a model with another digest",
		"expect_prompt_digest": "refuse if the prompt's token ids have another digest",
		"expect_class_id":      "refuse a worker of another class",
		"context_length":       "most tokens of the prompt and one continuation together (unset: the largest context that serves the model)",
	})
	group(fs, "Resuming", func() {
		fs.StringVar(&f.resume, "resume", "",
			"continue the stream whose events --json saved in this `file`; give prompt and knobs again, the seed is in it")
		fs.BoolVar(&f.inexact, "resume-inexact", false,
			"continue it also on a worker of another class, whose tokens may differ")
	})
	group(fs, "Chat template", func() {
		fs.BoolVar(&f.asChat, "chat", false, "take the prompt as a user's message and render it with the model's chat template")
		chatFlags(fs, &f.chat)
	})
	samplingFlags(fs, req)
	f.guided.register(fs)
	responseFlags(fs, req)
	scheduleFlags(fs, req)
	return cmd
}

// generateRequest completes the request that the flags began.
func (a *app) generateRequest(cmd *cobra.Command, req *pb.GenerateRequest, f *generateFlags, args []string) error {
	req.RequestId, req.ExpectModelDigest = f.expect.RequestId, f.expect.ExpectModelDigest
	req.ExpectPromptDigest, req.ExpectClassId = f.expect.ExpectPromptDigest, f.expect.ExpectClassId
	req.ContextLength = f.expect.ContextLength
	var err error
	if req.PromptClass, err = kernelClass(f.class); err != nil {
		return err
	}
	if req.Guided, err = f.guided.guided(cmd.Flags()); err != nil {
		return err
	}
	if f.resume != "" {
		if err := resumeFrom(f.resume, req, f.inexact); err != nil {
			return err
		}
	}
	r := req.GetResponse()
	if !f.json && (r.OutputLogprobs != nil || r.OutputCandidates != nil || r.PromptLogprobs != nil) {
		return failure.Usagef("--output-logprobs, --output-candidates and --prompt-logprobs need --json: plain text cannot show them")
	}
	if !f.asChat {
		if err := onlyWithChat(cmd.Flags()); err != nil {
			return err
		}
	}
	if cmd.Flags().Changed("token-ids") {
		if f.asChat {
			return failure.Usagef("give --chat or --token-ids, not both: token ids are taken as they are")
		}
		if len(args) > 0 {
			return failure.Usagef("give a prompt or --token-ids, not both")
		}
		ids, err := protoflags.ParseIDs(f.tokenIDs)
		if err != nil {
			return failure.Usagef("--token-ids: %w", err)
		}
		if len(ids) == 0 {
			return failure.Usagef("--token-ids is empty: give at least one token id")
		}
		req.Input = &pb.GenerateRequest_TokenIds{TokenIds: &pb.TokenIds{Ids: ids}}
		if r.TokenIdsOnly == nil {
			only := true
			r.TokenIdsOnly = &only
		}
		return nil
	}
	prompt, err := a.text(args, "prompt")
	req.Input = &pb.GenerateRequest_Prompt{Prompt: prompt}
	if f.asChat {
		req.Input = &pb.GenerateRequest_Chat{Chat: asMessage(&f.chat, prompt)}
	}
	return err
}

// kernelClass reads --prompt-class.
func kernelClass(name string) (*pb.KernelClass, error) {
	switch name {
	case "":
		return nil, nil
	case "prefill":
		return pb.KernelClass_KERNEL_CLASS_PREFILL.Enum(), nil
	case "decode":
		return pb.KernelClass_KERNEL_CLASS_DECODE.Enum(), nil
	}
	return nil, failure.Usagef("kernel class %q: want prefill or decode", name)
}

func (a *app) runGenerate(ctx context.Context, req *pb.GenerateRequest, f *generateFlags) error {
	conn, hangUp, err := a.dial()
	if err != nil {
		return err
	}
	defer hangUp()
	ctx, cancel := a.deadline(ctx, 0)
	defer cancel()
	if req.Model, err = resolve(ctx, conn, req.GetModel()); err != nil {
		return err
	}
	var show func(*pb.GenerateResponse) error
	if f.json {
		show = func(event *pb.GenerateResponse) error { return session.PrintJSON(a.Out, event) }
	} else {
		show = a.show(req)
	}
	done, err := stream(ctx, conn, a.leave, req, show)
	done.repeat = repeatBy("--seed", req.GetSampling())
	if !f.json && err != nil && done.tokens > 0 {
		fmt.Fprintln(a.Out) // the cut text ends its line
	}
	if !f.quiet && !f.json && (err == nil || done.tokens > 0) {
		fmt.Fprintln(a.Err, a.faint(done.String()))
	}
	return err
}

// show prints the events of a generation as text or token ids.
func (a *app) show(req *pb.GenerateRequest) func(*pb.GenerateResponse) error {
	_, isTerminal := tty.Of(a.Out)
	out := newOutputs(a.Out, isTerminal, max(1, int(req.GetSampling().GetNumSequences())))
	texts := make([]partText, len(out.all))
	only := req.GetResponse().GetTokenIdsOnly()
	return func(event *pb.GenerateResponse) error {
		switch e := event.GetEvent().(type) {
		case *pb.GenerateResponse_Started:
			if e.Started.Exact != nil { // in mid-stream
				fmt.Fprintf(a.Err, "the worker was lost; what follows is from another class of worker (%s), whose tokens may differ\n",
					render.Line(e.Started.GetClassId()))
				break
			}
			for _, r := range req.GetResume() {
				if r.GetFinished() {
					out.finish(int(r.GetOutputIndex())) // in the file that is resumed
				}
			}
			if req.GetResponse().GetEchoPrompt() && len(req.GetResume()) == 0 {
				for i := range out.all {
					if only {
						out.ids(i, req.GetTokenIds().GetIds())
					} else {
						out.text(i, req.GetPrompt())
					}
				}
			}
		case *pb.GenerateResponse_Progress:
			fmt.Fprintf(a.Err, "%d prompt tokens computed\n", e.Progress.GetPrefilledTokens())
		case *pb.GenerateResponse_Tokens:
			if only {
				out.ids(int(e.Tokens.GetOutputIndex()), e.Tokens.GetTokenIds())
			} else if i := int(e.Tokens.GetOutputIndex()); i < len(texts) {
				out.text(i, texts[i].of(e.Tokens))
			}
		case *pb.GenerateResponse_Finished:
			i := int(e.Finished.GetOutputIndex())
			if i < len(texts) {
				out.text(i, texts[i].end())
			}
			out.finish(i)
		}
		return out.err
	}
}
