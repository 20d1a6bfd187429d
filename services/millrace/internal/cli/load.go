package cli

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/millrace/internal/failure"
	"github.com/millrace/millrace/services/millrace/internal/protoflags"
	"github.com/millrace/millrace/services/millrace/internal/render"
	"github.com/millrace/millrace/services/millrace/internal/session"
)

// kvTypes are the values of --kv-type.
var kvTypes = map[string]pb.KvType{
	"f32": pb.KvType_KV_TYPE_F32, "f16": pb.KvType_KV_TYPE_F16, "bf16": pb.KvType_KV_TYPE_BF16,
	"f8": pb.KvType_KV_TYPE_F8,
}

// load brings a model into device memory.
func (a *app) load() *cobra.Command {
	// Fields that flags name otherwise: context for context_length, digest for expect_model_digest.
	req := &pb.LoadModelRequest{}
	var asJSON bool
	var kvType, digest string
	var contextLength uint32
	cmd := &cobra.Command{
		Use:   "load NAME",
		Short: "Load a model and show how far it is",
		Long: "Loads the file NAME.gguf of the workers' model folders. Loading a loaded model does nothing, and is refused\n" +
			"if it sets an option to another value than the model has. The load continues in the server if this command is\n" +
			"stopped; millrace unload NAME ends it.",
		Example: "  millrace load stories\n  millrace load stories --replicas 2 --kv-tokens 8192",
		Args:    session.One("NAME, a model as millrace models lists it"),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Model = args[0]
			if cmd.Flags().Changed("context") {
				req.ContextLength = &contextLength
			}
			if cmd.Flags().Changed("digest") {
				req.ExpectModelDigest = &digest
			}
			if kvType != "" {
				t, known := kvTypes[kvType]
				if !known {
					return failure.Usagef("--kv-type %q: want f32, f16, bf16 or f8", kvType)
				}
				req.KvType = &t
			}
			return a.runLoad(cmd, req, asJSON)
		},
	}
	fs := cmd.Flags()
	protoflags.Register(fs, req, map[string]string{
		"replicas":      "copies in the fleet, [1, 1024] (unset: 1)",
		"kv_tokens":     "tokens of the KV cache (unset: what fits, up to 8 contexts)",
		"max_sequences": "sequences at once, [1, 1024] (unset: the worker's default)",
		"pin":           "keep it until it is unloaded by command, also where workers unload idle models; --pin=false lets it go (unset: as it was)",
	})
	fs.Uint32Var(&contextLength, "context", 0, "longest sequence in tokens (unset: the model's own, or what the KV cache holds)")
	fs.StringVar(&kvType, "kv-type", "", "type of the KV cache: f32, f16, bf16 or f8, which GPUs alone have (unset: the engine's default)")
	fs.StringVar(&digest, "digest", "", "refuse a file with another digest, 64 hex digits")
	fs.BoolVar(&asJSON, "json", false, "print one event a line as JSON and nothing else")
	return cmd
}

func (a *app) runLoad(cmd *cobra.Command, req *pb.LoadModelRequest, asJSON bool) error {
	conn, hangUp, err := a.dial()
	if err != nil {
		return err
	}
	defer hangUp()
	ctx, cancel := a.deadline(cmd.Context(), 0)
	defer cancel()
	in, err := pb.NewModelServiceClient(conn).LoadModel(ctx, req)
	if err != nil {
		return failure.OfCall(err, req.GetModel(), nil)
	}
	progress := a.loadDisplay()
	defer progress.close()
	for {
		event, err := in.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			progress.close()
			if cmd.Context().Err() != nil {
				fmt.Fprintf(a.Err, "the load continues in the server; millrace models shows it, millrace unload %s ends it\n", req.GetModel())
			}
			return failure.OfCall(err, req.GetModel(), in.Trailer())
		}
		if asJSON {
			if err := session.PrintJSON(a.Out, event); err != nil {
				return err
			}
			continue
		}
		switch e := event.GetEvent().(type) {
		case *pb.LoadModelResponse_Progress:
			progress.update(event.GetWorkerId(), e.Progress)
		case *pb.LoadModelResponse_Result:
			progress.done(event.GetWorkerId(), true)
			progress.print(a.Out, loaded(req.GetModel(), event.GetWorkerId(), e.Result))
		case *pb.LoadModelResponse_Failure:
			progress.done(event.GetWorkerId(), false)
			progress.print(a.Err, fmt.Sprintf("%s not loaded on %s: %s (%s, %s)", req.GetModel(), event.GetWorkerId(),
				e.Failure.GetMessage(), e.Failure.GetReason(), failure.CodeName(codes.Code(uint32(e.Failure.GetCode())))))
		}
	}
}

// loaded is one line about a result.
func loaded(model, worker string, r *pb.LoadResult) string {
	verb := "loaded"
	if r.GetAlreadyLoaded() {
		verb = "was already loaded"
	}
	return fmt.Sprintf("%s %s on %s: %s, %d KV blocks of %d tokens, %d sequences at once, context %d, digest %s",
		model, verb, worker, render.Bytes(r.GetDeviceBytes()), r.GetKvBlocks(), r.GetBlockSize(), r.GetMaxSequences(),
		r.GetContextLength(), r.GetModelDigest())
}

// unloaded is one line about what an unload did.
func unloaded(model string, out *pb.UnloadModelResponse) string {
	ended := render.List(out.GetLoadEndedWorkerIds())
	had := slices.DeleteFunc(slices.Clone(out.GetWorkerIds()), func(id string) bool {
		return slices.Contains(out.GetLoadEndedWorkerIds(), id)
	})
	freed := fmt.Sprintf("%s unloaded from %s: %s freed", model, render.List(had), render.Bytes(out.GetFreedBytes()))
	switch {
	case len(out.GetLoadEndedWorkerIds()) == 0:
		return freed
	case len(had) == 0:
		return fmt.Sprintf("%s: its load on %s has ended, and nothing of it is left", model, ended)
	default:
		return fmt.Sprintf("%s; its load on %s has ended", freed, ended)
	}
}

// unload takes a model out of device memory.
func (a *app) unload() *cobra.Command {
	var cancelRunning, asJSON bool
	cmd := &cobra.Command{
		Use:   "unload NAME",
		Short: "Unload a model from every worker that has it or loads it",
		Long: "Unloads a model: ends its loads that are under way, and waits for its running requests, or cancels those with --cancel.\n" +
			"New requests are refused during that time. Exit code 0 means that no worker that the server reaches has the model any more.",
		Args: session.One("NAME, a model as millrace models lists it"),
		RunE: func(cmd *cobra.Command, args []string) error {
			conn, hangUp, err := a.dial()
			if err != nil {
				return err
			}
			defer hangUp()
			ctx, cancel := a.deadline(cmd.Context(), 0)
			defer cancel()
			req := &pb.UnloadModelRequest{Model: args[0]}
			if cancelRunning {
				req.CancelRunning = &cancelRunning
			}
			out, err := pb.NewModelServiceClient(conn).UnloadModel(ctx, req)
			if err != nil {
				return failure.OfCall(err, args[0], nil)
			}
			if asJSON {
				return session.PrintJSON(a.Out, out)
			}
			fmt.Fprintln(a.Out, render.Line(unloaded(args[0], out)))
			return nil
		},
	}
	cmd.Flags().BoolVar(&cancelRunning, "cancel", false, "cancel running requests instead of waiting for them")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the answer as JSON")
	return cmd
}
