package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/gpuworker/arch"
	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/embed"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/generate"
	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/guide"
	"github.com/millrace/millrace/gpuworker/model"
	"github.com/millrace/millrace/gpuworker/prompt"
	"github.com/millrace/millrace/gpuworker/template"
	"github.com/millrace/millrace/gpuworker/tokenizer"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

// Sentinels of this package.
var (
	errExpectation = errors.New("an expectation of the request does not hold")
	errDeadline    = errors.New("the deadline is reached")
	errDrained     = errors.New("the worker drains, and the time that an operator gave running calls is over")
)

// Row maps a sentinel to a status.
type Row struct {
	Sentinel error
	Code     codes.Code
	Reason   string
	Retry    time.Duration
}

// Statuses has the rows that a service of another package adds to the table of this one.
type Statuses struct {
	Rows []Row
	// Details returns the numbers and the violations that an error carries; nil for most.
	Details func(err error) (numbers map[string]string, violations []rpc.Violation)
}

// endings has the errors with which any call may end early. They are matched first.
var endings = []Row{
	{errDrained, codes.Unavailable, reason.WorkerDraining, 0},
	{errDeadline, codes.DeadlineExceeded, reason.DeadlineExceeded, 0},
	{context.DeadlineExceeded, codes.DeadlineExceeded, reason.DeadlineExceeded, 0},
	{context.Canceled, codes.Canceled, reason.Cancelled, 0},
}

// table maps every sentinel of the library to a status. The first row that matches is used, so a
// sentinel must come before those that it may wrap.
var table = []Row{
	{prompt.ErrNoEnd, codes.InvalidArgument, reason.InvalidArgument, 0},
	{prompt.ErrNoTokens, codes.InvalidArgument, reason.NoTokens, 0},
	{batch.ErrCancelled, codes.Canceled, reason.Cancelled, 0},
	{prompt.ErrNoTokenizer, codes.FailedPrecondition, reason.NoTokenizer, 0},
	{prompt.ErrNoSuchTemplate, codes.InvalidArgument, reason.NoSuchTemplate, 0},
	{prompt.ErrNoTemplate, codes.FailedPrecondition, reason.NoChatTemplate, 0},
	{generate.ErrResumeText, codes.FailedPrecondition, reason.ResumeMismatch, 0},
	{prompt.ErrContext, codes.FailedPrecondition, reason.ContextTooShort, 0},
	{generate.ErrResumeTooLong, codes.InvalidArgument, reason.ResumeTooLong, 0},
	{generate.ErrResume, codes.InvalidArgument, reason.InvalidArgument, 0},
	{embed.ErrNotAReranker, codes.FailedPrecondition, reason.NotAReranker, 0},
	{embed.ErrNoInstruction, codes.InvalidArgument, reason.InvalidArgument, 0},
	{errRerankOnly, codes.FailedPrecondition, reason.RerankerOnly, 0},
	{errVectorsOnly, codes.FailedPrecondition, reason.VectorsOnly, 0},
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

	{arch.ErrInvalidModel, codes.FailedPrecondition, reason.InvalidModelFile, 0},
	{batch.ErrTooLong, codes.InvalidArgument, reason.PromptTooLong, 0},
	{batch.ErrFull, codes.ResourceExhausted, reason.WorkerFull, time.Second},
	{batch.ErrQueueTimeout, codes.ResourceExhausted, reason.QueueTimeout, time.Second},
	{batch.ErrBadLogits, codes.Internal, reason.BadLogits, 0},
	{batch.ErrNoToken, codes.FailedPrecondition, reason.NoTokenLeft, 0},
	{guide.ErrWork, codes.FailedPrecondition, reason.GrammarTooAmbiguous, 0},
	{batch.ErrGuide, codes.FailedPrecondition, reason.NoTokenLeft, 0},
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

// statusOf returns the status of an error of the library. It returns an error that already is a
// status unchanged.
func statusOf(err error) error { return StatusOf(err, Statuses{}) }

// StatusOf returns the status of an error of the library, or of a package that has rows in more. It
// returns an error that already is a status unchanged.
func StatusOf(err error, more Statuses) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	f := rpc.Error{Code: codes.Internal, Domain: rpc.WorkerDomain, Reason: reason.Internal, Message: err.Error()}
	for _, rows := range [][]Row{endings, more.Rows, table} {
		i := slices.IndexFunc(rows, func(r Row) bool { return errors.Is(err, r.Sentinel) })
		if i >= 0 {
			f.Code, f.Reason, f.RetryAfter = rows[i].Code, rows[i].Reason, rows[i].Retry
			break
		}
	}
	f.Metadata, f.Violations = numbersOf(err), violationsOf(err)
	if more.Details != nil && f.Metadata == nil && f.Violations == nil {
		f.Metadata, f.Violations = more.Details(err)
	}
	var fit *model.FitError
	if errors.As(err, &fit) {
		f.RetryAfter = fit.RoomIn
	}
	return f.Err()
}

// numbersOf returns the numbers of an error of the library, as metadata of its status. Most errors
// have none.
func numbersOf(err error) map[string]string {
	number := func(n uint64) string { return strconv.FormatUint(n, 10) }
	var fit *model.FitError
	var text *generate.TextError
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

// violationsOf returns the field that an error of the library is about. Most errors have none.
func violationsOf(err error) []rpc.Violation {
	var resume *generate.ResumeError
	if !errors.As(err, &resume) {
		return nil
	}
	return []rpc.Violation{{
		Field: fmt.Sprintf("resume[%d].token_ids[%d]", resume.Entry, resume.Token), Description: resume.Problem,
	}}
}

// invalid returns a status with every violation, and nil without violations.
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
	return rpc.Error{
		Code: codes.InvalidArgument, Domain: rpc.WorkerDomain, Reason: reason.InvalidArgument, Message: text, Violations: violations,
	}.Err()
}
