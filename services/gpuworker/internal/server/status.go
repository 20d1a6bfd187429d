package server

import (
	"context"
	"errors"
	"fmt"
	"strconv"
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
	"github.com/millrace/millrace/services/internal/rpc"
)

// Sentinels of this edge.
var (
	errExpectation = errors.New("the worker is not the one expected")
	errDeadline    = errors.New("the deadline is reached")
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
	{prompt.ErrNoTokens, codes.InvalidArgument, "NO_TOKENS", 0},
	{errDeadline, codes.DeadlineExceeded, "DEADLINE", 0},
	{context.DeadlineExceeded, codes.DeadlineExceeded, "DEADLINE", 0},
	{context.Canceled, codes.Canceled, "CANCELLED", 0},
	{batch.ErrCancelled, codes.Canceled, "CANCELLED", 0},
	{prompt.ErrNoTokenizer, codes.FailedPrecondition, "NO_TOKENIZER", 0},
	{prompt.ErrNoTemplate, codes.FailedPrecondition, "NO_CHAT_TEMPLATE", 0},
	{generate.ErrResumeText, codes.FailedPrecondition, "RESUME_MISMATCH", 0},
	{generate.ErrResume, codes.InvalidArgument, "INVALID_ARGUMENT", 0},
	{errExpectation, codes.FailedPrecondition, "EXPECTATION_FAILED", 0},

	{model.ErrStopped, codes.Unavailable, "WORKER_STOPPING", 0},
	{model.ErrName, codes.InvalidArgument, "BAD_MODEL_NAME", 0},
	{model.ErrNotFound, codes.NotFound, "UNKNOWN_MODEL", 0},
	{model.ErrNotLoaded, codes.FailedPrecondition, "MODEL_NOT_LOADED", 0},
	{model.ErrOption, codes.InvalidArgument, "BAD_LOAD_OPTION", 0},
	{model.ErrDigest, codes.FailedPrecondition, "DIGEST_MISMATCH", 0},
	{model.ErrNoFit, codes.ResourceExhausted, "MODEL_DOES_NOT_FIT", 0},
	{model.ErrTooManyLoads, codes.ResourceExhausted, "TOO_MANY_LOADS", time.Second},
	{model.ErrDraining, codes.FailedPrecondition, "MODEL_DRAINING", 0},
	{model.ErrUnloaded, codes.Unavailable, "MODEL_UNLOADED", 0},
	{model.ErrFailed, codes.Unavailable, "MODEL_OUT_OF_SERVICE", 0},
	{model.ErrCorrupt, codes.DataLoss, "RESIDENT_TENSOR_DIFFERS", 0},

	{arch.ErrInvalidModel, codes.FailedPrecondition, "INVALID_MODEL_FILE", 0},
	{batch.ErrTooLong, codes.InvalidArgument, "PROMPT_TOO_LONG", 0},
	{batch.ErrFull, codes.ResourceExhausted, "WORKER_FULL", time.Second},
	{batch.ErrBadLogits, codes.Internal, "BAD_LOGITS", 0},
	{batch.ErrNoToken, codes.FailedPrecondition, "NO_TOKEN_LEFT", 0},
	{batch.ErrSlowReader, codes.ResourceExhausted, "SLOW_READER", 0},
	{batch.ErrStepFailed, codes.Internal, "STEP_FAILED", 0},
	{batch.ErrClosed, codes.Unavailable, "MODEL_UNLOADED", 0},

	{template.ErrTemplate, codes.InvalidArgument, "CHAT_TEMPLATE_FAILED", 0},
	{template.ErrLimit, codes.FailedPrecondition, "CHAT_TEMPLATE_LIMIT", 0},
	{template.ErrChild, codes.Internal, "CHAT_TEMPLATE_PROCESS", 0},
	{template.ErrClosed, codes.Unavailable, "MODEL_UNLOADED", 0},

	{arch.ErrUnsupportedArch, codes.FailedPrecondition, "UNSUPPORTED_ARCHITECTURE", 0},
	{arch.ErrUnsupportedType, codes.FailedPrecondition, "UNSUPPORTED_TENSOR_TYPE", 0},
	{tokenizer.ErrUnsupported, codes.FailedPrecondition, "UNSUPPORTED_TOKENIZER", 0},
	{tokenizer.ErrVocab, codes.FailedPrecondition, "INVALID_MODEL_FILE", 0},
	{tokenizer.ErrTokenID, codes.InvalidArgument, "BAD_TOKEN_ID", 0},
	{gguf.ErrFormat, codes.FailedPrecondition, "INVALID_MODEL_FILE", 0},
	{gguf.ErrUnsupported, codes.FailedPrecondition, "INVALID_MODEL_FILE", 0},
	{gguf.ErrValueType, codes.FailedPrecondition, "INVALID_MODEL_FILE", 0},
	{gguf.ErrFault, codes.FailedPrecondition, "MODEL_FILE_UNREADABLE", 0},
	{gguf.ErrClosed, codes.Internal, "MODEL_FILE_CLOSED", 0},

	{engine.ErrOutOfMemory, codes.ResourceExhausted, "OUT_OF_DEVICE_MEMORY", 0},
	{engine.ErrDataLoss, codes.DataLoss, "RESIDENT_TENSOR_DIFFERS", 0},
	{engine.ErrUnsupported, codes.Unimplemented, "NOT_ON_THIS_DEVICE", 0},
	{engine.ErrInvalid, codes.InvalidArgument, "REFUSED_BY_ENGINE", 0},
	{engine.ErrPrecondition, codes.Internal, "ENGINE_STATE", 0},
	{engine.ErrTimeout, codes.Internal, "STEP_TIMEOUT", 0},
	{engine.ErrNoDevice, codes.Internal, "NO_DEVICE", 0},
	{model.ErrHeld, codes.Internal, "DEVICE_MEMORY_HELD", 0},
	{engine.ErrDevice, codes.Internal, "DEVICE_FAILED", 0},
}

// statusOf gives an error of the core its status. One that already is a status passes.
func statusOf(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	f := rpc.Fault{Code: codes.Internal, Domain: rpc.WorkerDomain, Reason: "INTERNAL", Message: err.Error()}
	for _, r := range table {
		if errors.Is(err, r.sentinel) {
			f.Code, f.Reason, f.RetryAfter = r.code, r.reason, r.retry
			break
		}
	}
	f.Metadata, f.Violations = numbersOf(err), violationsOf(err)
	return f.Err()
}

// numbersOf are the numbers that an error of the core carries; nil for most.
func numbersOf(err error) map[string]string {
	number := func(n uint64) string { return strconv.FormatUint(n, 10) }
	var fit *model.FitError
	var text *generate.TextError
	switch {
	case errors.As(err, &fit):
		return map[string]string{
			"needed_bytes": number(fit.Needed), "free_bytes": number(fit.Free),
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
		Code: codes.InvalidArgument, Domain: rpc.WorkerDomain, Reason: "INVALID_ARGUMENT", Message: text, Violations: violations,
	}.Err()
}

// notBuilt refuses fields or methods that later work will give a meaning.
func notBuilt(names string) error {
	return rpc.Fault{
		Code: codes.Unimplemented, Domain: rpc.WorkerDomain, Reason: "NOT_BUILT",
		Message: "not built yet: " + names + "; leave it unset", Metadata: map[string]string{"fields": names},
	}.Err()
}
