package relay

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

// retryScope classifies the failure of an attempt by its cause. It decides whether another attempt
// can succeed where this one did not.
type retryScope uint8

const (
	// scopeFinal ends the call: every worker would end it in the same way.
	scopeFinal retryScope = iota
	// scopeRequest ends the call because the request is wrong, unless another worker has accepted it.
	scopeRequest
	// scopeWorker is about this worker only. Another worker may serve the request, and the failure
	// does not count against the request.
	scopeWorker
	// scopeContext means that this worker's context is too short for the request. A worker with a
	// longer context may serve it. Without one, the call ends with this status, so that the
	// verdict does not depend on which worker was chosen.
	scopeContext
	// scopeQueued means that the request has waited at the worker for the longest time allowed. It
	// ends the call, because the wait would start again elsewhere. If another worker has begun the
	// stream, the status means no more than that this worker is full.
	scopeQueued
	// scopeEither means that the worker failed, and that the request may be the cause. Others may
	// try, but after maxLost attempts in a row without a token the call ends.
	scopeEither
)

// ends reports whether the caller receives the status.
func (s retryScope) ends() bool {
	return s == scopeFinal || s == scopeRequest || s == scopeQueued
}

// scopes is the scope of a worker's own status, by its reason. A test checks that it has every
// reason that a worker can give.
var scopes = map[string]retryScope{
	// The caller's own deadline, and the caller as a slow consumer.
	reason.DeadlineExceeded: scopeFinal, reason.SlowReader: scopeFinal,
	// Sampling is deterministic: the same tokens give the same logits on every worker of the class.
	reason.NoTokenLeft: scopeFinal, reason.BadLogits: scopeFinal, reason.GrammarTooAmbiguous: scopeFinal,

	// The message is malformed, or asks for something that does not exist.
	reason.MalformedMessage: scopeRequest, reason.MessageTooLarge: scopeRequest,
	reason.InvalidArgument: scopeRequest, reason.NotBuilt: scopeRequest, reason.BadModelName: scopeRequest,
	reason.NoTokenizer: scopeRequest, reason.NoChatTemplate: scopeRequest, reason.ChatTemplateFailed: scopeRequest,
	reason.ChatTemplateLimit: scopeRequest, reason.NoSuchTemplate: scopeRequest,
	reason.NotAReranker: scopeRequest, reason.RerankerOnly: scopeRequest, reason.VectorsOnly: scopeRequest,
	reason.InvalidGrammar: scopeRequest,
	reason.NoTokens:       scopeRequest, reason.ResponseTooLarge: scopeRequest, reason.BadTokenID: scopeRequest,
	reason.ResumeMismatch: scopeRequest, reason.ExpectationFailed: scopeRequest, reason.RefusedByEngine: scopeRequest,

	// The prompt, or the answer that it may have, is longer than this worker's context.
	reason.PromptTooLong: scopeContext, reason.ResumeTooLong: scopeContext, reason.ContextTooShort: scopeContext,

	// Load shedding: the worker is full, and a slot on another worker is as good.
	reason.WorkerFull: scopeWorker, reason.TooManyBytesWaiting: scopeWorker, reason.TooManyBytesSending: scopeWorker,
	reason.OutOfDeviceMemory: scopeWorker, reason.QueueTimeout: scopeQueued,
	// The worker stops and ends its calls. A cancellation by the caller never arrives here, because
	// the call's own context is checked first.
	reason.WorkerStopping: scopeWorker, reason.WorkerDraining: scopeWorker, reason.Cancelled: scopeWorker,
	// The worker refuses this scheduler's credentials: a matter for the operator, not for the caller.
	reason.CallerNotAllowed: scopeWorker, reason.NoToken: scopeWorker, reason.UnknownToken: scopeWorker,
	reason.TokenExpired: scopeWorker, reason.TokenRevoked: scopeWorker, reason.RightMissing: scopeWorker,
	reason.OtherTenant: scopeWorker, reason.PriorityTooHigh: scopeWorker,
	reason.TooManyRequests: scopeWorker, reason.TooManyTokens: scopeWorker, reason.TooManyStreams: scopeWorker,
	// The worker runs an earlier version. The scheduler itself refuses fields that its own version
	// does not have.
	reason.UnknownField: scopeWorker,
	// The worker no longer has the model that it had when it was chosen, or has another one.
	reason.ModelUnloaded: scopeWorker, reason.ModelDraining: scopeWorker, reason.ModelNotLoaded: scopeWorker,
	reason.UnknownModel: scopeWorker, reason.ModelOutOfService: scopeWorker, reason.DigestMismatch: scopeWorker,
	reason.NotOnThisDevice: scopeWorker, reason.NoDevice: scopeWorker, reason.ResidentTensorDiffers: scopeWorker,
	reason.DeviceMemoryHeld: scopeWorker,

	// The worker failed while it computed. Every sequence of that step ends with this status, and
	// one of them may be the cause.
	reason.StepFailed: scopeEither, reason.StepTimeout: scopeEither, reason.DeviceFailed: scopeEither,
	reason.EngineState: scopeEither, reason.Panic: scopeEither, reason.Internal: scopeEither,
	reason.ChatTemplateProcess: scopeEither,
}

// scopeOf returns the scope of a worker's own status. accepted says that another worker has begun
// this stream and that this one refuses the rest of it: then the request itself is valid.
func scopeOf(err error, accepted bool) retryScope {
	scope, known := scopes[rpc.Reason(err)]
	if !known {
		scope = scopeOfCode(status.Code(err))
	}
	switch {
	case (scope == scopeRequest || scope == scopeContext) && accepted:
		return scopeEither
	case scope == scopeQueued && accepted:
		return scopeWorker
	}
	return scope
}

// scopeOfCode returns the scope of a status whose reason this version does not have.
func scopeOfCode(code codes.Code) retryScope {
	switch code {
	case codes.Unavailable, codes.ResourceExhausted:
		return scopeWorker
	case codes.Internal, codes.Unknown, codes.DataLoss, codes.Aborted:
		return scopeEither
	default:
		return scopeRequest
	}
}
