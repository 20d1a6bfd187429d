package server

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/gpuworker/arch"
	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/generate"
	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/model"
	"github.com/millrace/millrace/gpuworker/prompt"
	"github.com/millrace/millrace/gpuworker/template"
	"github.com/millrace/millrace/gpuworker/tokenizer"
	"github.com/millrace/millrace/gpuworker/vectors"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

// Sentinels of this edge.
var (
	errExpectation = errors.New("an expectation of the request does not hold")
	errDeadline    = errors.New("the deadline is reached")
	errDrained     = errors.New("the worker drains, and the time that an operator gave what runs is over")
)

// row says what becomes of a sentinel.
type row struct {
	sentinel error
	code     codes.Code
	reason   string
	retry    time.Duration
}

// table turns every sentinel of the core into a status; the first that matches wins, so wrappers stand before what
// they wrap.
var table = []row{
	{prompt.ErrNoTokens, codes.InvalidArgument, reason.NoTokens, 0},
	{errDrained, codes.Unavailable, reason.WorkerDraining, 0},
	{errDeadline, codes.DeadlineExceeded, reason.DeadlineExceeded, 0},
	{context.DeadlineExceeded, codes.DeadlineExceeded, reason.DeadlineExceeded, 0},
	{context.Canceled, codes.Canceled, reason.Cancelled, 0},
	{batch.ErrCancelled, codes.Canceled, reason.Cancelled, 0},
	{prompt.ErrNoTokenizer, codes.FailedPrecondition, reason.NoTokenizer, 0},
	{prompt.ErrNoSuchTemplate, codes.InvalidArgument, reason.NoSuchTemplate, 0},
	{prompt.ErrNoTemplate, codes.FailedPrecondition, reason.NoChatTemplate, 0},
	{generate.ErrResumeText, codes.FailedPrecondition, reason.ResumeMismatch, 0},
	{prompt.ErrContext, codes.FailedPrecondition, reason.ContextTooShort, 0},
	{generate.ErrResumeTooLong, codes.InvalidArgument, reason.ResumeTooLong, 0},
	{generate.ErrResume, codes.InvalidArgument, reason.InvalidArgument, 0},
	{errExpectation, codes.FailedPrecondition, reason.ExpectationFailed, 0},

	{model.ErrStopped, codes.Unavailable, reason.WorkerStopping, 0},
	{model.ErrName, codes.InvalidArgument, reason.BadModelName, 0},
	{model.ErrNotFound, codes.NotFound, reason.UnknownModel, 0},
	{model.ErrNotLoaded, codes.FailedPrecondition, reason.ModelNotLoaded, 0},
	{model.ErrOption, codes.InvalidArgument, reason.BadLoadOption, 0},
	{model.ErrOptions, codes.FailedPrecondition, reason.LoadOptionsDiffer, 0},
	{model.ErrLoadEnded, codes.Aborted, reason.LoadEnded, 0},
	{model.ErrDigest, codes.FailedPrecondition, reason.DigestMismatch, 0},
	{model.ErrNoFit, codes.ResourceExhausted, reason.ModelDoesNotFit, 0},
	{model.ErrTooManyLoads, codes.ResourceExhausted, reason.TooManyLoads, time.Second},
	{model.ErrDraining, codes.FailedPrecondition, reason.ModelDraining, 0},
	{model.ErrUnloaded, codes.Unavailable, reason.ModelUnloaded, 0},
	{model.ErrFailed, codes.Unavailable, reason.ModelOutOfService, 0},
	{model.ErrCorrupt, codes.DataLoss, reason.ResidentTensorDiffers, 0},
	{model.ErrPanicked, codes.Internal, reason.Panic, 0},

	{vectors.ErrStopped, codes.Unavailable, reason.WorkerStopping, 0},
	{vectors.ErrName, codes.InvalidArgument, reason.BadCodebookName, 0},
	{vectors.ErrExists, codes.AlreadyExists, reason.CodebookExists, 0},
	{vectors.ErrNotFound, codes.NotFound, reason.UnknownCodebook, 0},
	{vectors.ErrNotLoaded, codes.NotFound, reason.CodebookNotLoaded, 0},
	{vectors.ErrDigest, codes.FailedPrecondition, reason.CodebookDigestMismatch, 0},
	{vectors.ErrFailed, codes.Unavailable, reason.CodebookOutOfService, 0},
	{vectors.ErrFile, codes.FailedPrecondition, reason.InvalidCodebookFile, 0},
	{vectors.ErrWrite, codes.Internal, reason.CodebookNotWritten, 0},
	{vectors.ErrCorrupt, codes.DataLoss, reason.ResidentCodebookDiffers, 0},
	{vectors.ErrNoFit, codes.ResourceExhausted, reason.DoesNotFit, 0},
	{vectors.ErrNoTrainings, codes.Unavailable, reason.NoTrainings, 0},
	{vectors.ErrTooMany, codes.ResourceExhausted, reason.TooManyTrainings, 5 * time.Second},
	{vectors.ErrInput, codes.InvalidArgument, reason.BadTrainingInput, 0},
	{vectors.ErrCheckpoint, codes.FailedPrecondition, reason.CheckpointMismatch, 0},

	{arch.ErrInvalidModel, codes.FailedPrecondition, reason.InvalidModelFile, 0},
	{batch.ErrTooLong, codes.InvalidArgument, reason.PromptTooLong, 0},
	{batch.ErrFull, codes.ResourceExhausted, reason.WorkerFull, time.Second},
	{batch.ErrQueueTimeout, codes.ResourceExhausted, reason.QueueTimeout, time.Second},
	{batch.ErrBadLogits, codes.Internal, reason.BadLogits, 0},
	{batch.ErrNoToken, codes.FailedPrecondition, reason.NoTokenLeft, 0},
	{batch.ErrSlowReader, codes.ResourceExhausted, reason.SlowReader, 0},
	{batch.ErrStepFailed, codes.Internal, reason.StepFailed, 0},
	{batch.ErrClosed, codes.Unavailable, reason.ModelUnloaded, 0},

	{template.ErrTemplate, codes.InvalidArgument, reason.ChatTemplateFailed, 0},
	{template.ErrLimit, codes.FailedPrecondition, reason.ChatTemplateLimit, 0},
	{template.ErrChild, codes.Internal, reason.ChatTemplateProcess, 0},
	{template.ErrClosed, codes.Unavailable, reason.ModelUnloaded, 0},

	{arch.ErrUnsupportedArch, codes.FailedPrecondition, reason.UnsupportedArchitecture, 0},
	{arch.ErrUnsupportedType, codes.FailedPrecondition, reason.UnsupportedTensorType, 0},
	{tokenizer.ErrUnsupported, codes.FailedPrecondition, reason.UnsupportedTokenizer, 0},
	{tokenizer.ErrVocab, codes.FailedPrecondition, reason.InvalidModelFile, 0},
	{tokenizer.ErrTokenID, codes.InvalidArgument, reason.BadTokenID, 0},
	{gguf.ErrFormat, codes.FailedPrecondition, reason.InvalidModelFile, 0},
	{gguf.ErrUnsupported, codes.FailedPrecondition, reason.InvalidModelFile, 0},
	{gguf.ErrValueType, codes.FailedPrecondition, reason.InvalidModelFile, 0},
	{gguf.ErrFault, codes.FailedPrecondition, reason.ModelFileUnreadable, 0},
	{gguf.ErrClosed, codes.Internal, reason.ModelFileClosed, 0},

	{engine.ErrOutOfMemory, codes.ResourceExhausted, reason.OutOfDeviceMemory, 0},
	{engine.ErrDataLoss, codes.DataLoss, reason.ResidentTensorDiffers, 0},
	{engine.ErrUnsupported, codes.Unimplemented, reason.NotOnThisDevice, 0},
	{engine.ErrInvalid, codes.InvalidArgument, reason.RefusedByEngine, 0},
	{engine.ErrPrecondition, codes.Internal, reason.EngineState, 0},
	{engine.ErrTimeout, codes.Internal, reason.StepTimeout, 0},
	{engine.ErrNoDevice, codes.Internal, reason.NoDevice, 0},
	{model.ErrHeld, codes.Internal, reason.DeviceMemoryHeld, 0},
	{engine.ErrDevice, codes.Internal, reason.DeviceFailed, 0},
}

// statusOf gives an error of the core its status. One that already is a status passes.
func statusOf(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	f := rpc.Fault{Code: codes.Internal, Domain: rpc.WorkerDomain, Reason: reason.Internal, Message: err.Error()}
	for _, r := range table {
		if errors.Is(err, r.sentinel) {
			f.Code, f.Reason, f.RetryAfter = r.code, r.reason, r.retry
			break
		}
	}
	f.Metadata, f.Violations = numbersOf(err), violationsOf(err)
	var fit *model.FitError
	if errors.As(err, &fit) {
		f.RetryAfter = fit.RoomIn
	}
	return f.Err()
}

// numbersOf are the numbers that an error of the core carries; nil for most.
func numbersOf(err error) map[string]string {
	number := func(n uint64) string { return strconv.FormatUint(n, 10) }
	var fit *model.FitError
	var text *generate.TextError
	var short *vectors.FitError
	var wait *batch.WaitError
	var context *prompt.ContextError
	var options *model.OptionsError
	switch {
	case errors.As(err, &context):
		numbers := map[string]string{"context_length": strconv.Itoa(context.Context)}
		if context.Needed > 0 {
			numbers["needed_tokens"] = strconv.Itoa(context.Needed)
		}
		return numbers
	case errors.As(err, &options):
		numbers := map[string]string{}
		for _, d := range options.All {
			numbers["loaded_"+d.Name], numbers["wanted_"+d.Name] = d.Have, d.Want
		}
		return numbers
	case errors.As(err, &wait):
		return map[string]string{
			"waited_ms": strconv.FormatInt(wait.Waited.Milliseconds(), 10), "max_queue_time_ms": strconv.FormatInt(wait.Most.Milliseconds(), 10),
		}
	case errors.As(err, &short):
		return map[string]string{
			"needed_bytes": number(short.Needed), "free_bytes": number(short.Free), "spool_bytes": number(short.Spool),
			"free_spool_bytes": number(short.FreeSpool), "host_bytes": number(short.Host), "free_host_bytes": number(short.FreeHost),
		}
	case errors.As(err, &fit):
		var idle []string
		for _, m := range fit.Idle {
			idle = append(idle, m.Name)
		}
		return map[string]string{
			"idle_models": strings.Join(idle, ","), "needed_bytes": number(fit.Needed), "free_bytes": number(fit.Free),
			"weight_bytes": number(fit.Weights), "kv_bytes": number(fit.KV),
		}
	case errors.As(err, &text):
		return map[string]string{
			"output_index": strconv.Itoa(text.OutputIndex), "resumed_tokens": strconv.Itoa(text.Tokens),
			"text_bytes": number(text.Received), "expected_text_bytes": number(text.Give),
		}
	}
	return nil
}

// violationsOf is the field that an error of the core complains of; nil for most.
func violationsOf(err error) []rpc.Violation {
	var in *vectors.InputError
	if errors.As(err, &in) {
		return []rpc.Violation{{Field: in.Field, Description: in.Problem}}
	}
	var resume *generate.ResumeError
	if !errors.As(err, &resume) {
		return nil
	}
	return []rpc.Violation{{
		Field: fmt.Sprintf("resume[%d].token_ids[%d]", resume.Entry, resume.Token), Description: resume.Problem,
	}}
}

// invalid refuses a request with every violation.
func invalid(violations []rpc.Violation) error {
	if len(violations) == 0 {
		return nil
	}
	text := "invalid request"
	for i, v := range violations {
		if i > 0 {
			text += ";"
		} else {
			text += ":"
		}
		text += " " + v.Field + ": " + v.Description
	}
	return rpc.Fault{
		Code: codes.InvalidArgument, Domain: rpc.WorkerDomain, Reason: reason.InvalidArgument, Message: text, Violations: violations,
	}.Err()
}

// notBuilt refuses fields or methods that later work will give a meaning.
func notBuilt(names string) error {
	return rpc.Fault{
		Code: codes.Unimplemented, Domain: rpc.WorkerDomain, Reason: reason.NotBuilt,
		Message: "not built yet: " + names + "; leave it unset", Metadata: map[string]string{"fields": names},
	}.Err()
}
