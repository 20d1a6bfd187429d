package relay

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

// blame says of whom the end of an attempt speaks, and so what follows.
type blame uint8

const (
	// final: it is the end of the call, on whatever worker.
	final blame = iota
	// request: the request is wrong, and every worker would say so: the end of the call, unless a worker has said otherwise.
	request
	// worker: this one cannot serve the request now, whatever the request is. Another may, and nothing is held against the request.
	worker
	// short: this one's context is too short for the request. One with a longer context may serve it; where there is none, it is the end
	// of the call, so that the verdict does not depend on the worker that was chosen.
	short
	// waited: the request has waited for a place there for as long as one may. Elsewhere it would wait anew: the end of the call, unless
	// another worker has begun it; then this one is as good as full.
	waited
	// either: the worker failed, and the request may be what it failed at. Others may try, maxLost times.
	either
)

// ends reports whether the caller gets it.
func (b blame) ends() bool { return b == final || b == request || b == waited }

// blames is of whom a worker's own status speaks, by its reason.
var blames = map[string]blame{
	// The caller's own time, and the caller's own reading.
	reason.DeadlineExceeded: final, reason.SlowReader: final,
	// The same tokens give the same numbers on every worker of the class.
	reason.NoTokenLeft: final, reason.BadLogits: final,

	// What arrived is no request, or asks for what is not there.
	reason.MalformedMessage: request, reason.MessageTooLarge: request,
	reason.InvalidArgument: request, reason.NotBuilt: request, reason.BadModelName: request, reason.NoTokenizer: request,
	reason.NoChatTemplate: request, reason.ChatTemplateFailed: request, reason.ChatTemplateLimit: request,
	reason.NoSuchTemplate: request,
	reason.NoTokens:       request, reason.ResponseTooLarge: request, reason.BadTokenID: request, reason.ResumeMismatch: request,
	reason.ExpectationFailed: request, reason.RefusedByEngine: request,

	// It is longer than this worker's context, or may become so.
	reason.PromptTooLong: short, reason.ResumeTooLong: short, reason.ContextTooShort: short,

	// It is full: a place elsewhere is as good.
	reason.WorkerFull: worker, reason.TooManyBytesWaiting: worker, reason.TooManyBytesSending: worker, reason.OutOfDeviceMemory: worker,
	reason.QueueTimeout: waited,
	// It stops, and ends its calls. The caller's own cancelling is seen before its word is.
	reason.WorkerStopping: worker, reason.WorkerDraining: worker, reason.Cancelled: worker,
	// It does not let this scheduler call: an operator's matter, and not the caller's.
	reason.CallerNotAllowed: worker, reason.NoToken: worker, reason.UnknownToken: worker, reason.TokenExpired: worker,
	reason.TokenRevoked: worker, reason.RightMissing: worker, reason.OtherTenant: worker, reason.PriorityTooHigh: worker,
	reason.TooManyRequests: worker, reason.TooManyTokens: worker, reason.TooManyStreams: worker,
	// It is of an earlier version: the scheduler itself has refused what its own version does not know.
	reason.UnknownField: worker,
	// It no longer has what it had when it was chosen, or has something else.
	reason.ModelUnloaded: worker, reason.ModelDraining: worker, reason.ModelNotLoaded: worker, reason.UnknownModel: worker,
	reason.ModelOutOfService: worker, reason.DigestMismatch: worker, reason.NotOnThisDevice: worker,
	reason.NoDevice: worker, reason.ResidentTensorDiffers: worker, reason.DeviceMemoryHeld: worker,

	// It failed in the middle. Every request of the step ends so, and one of them may be why.
	reason.StepFailed: either, reason.StepTimeout: either, reason.DeviceFailed: either, reason.EngineState: either,
	reason.Panic: either, reason.Internal: either, reason.ChatTemplateProcess: either,
}

// blameOf is of whom a worker's own status speaks. accepted: another worker has begun this stream, and this one refuses what is
// left of it. Then it is not the request that is wrong.
func blameOf(err error, accepted bool) blame {
	of, known := blames[rpc.Reason(err)]
	if !known {
		of = blameOfCode(status.Code(err))
	}
	switch {
	case (of == request || of == short) && accepted:
		return either
	case of == waited && accepted:
		return worker
	}
	return of
}

// blameOfCode is for reasons of another version.
func blameOfCode(code codes.Code) blame {
	if of, known := blamesOfCodes[code]; known {
		return of
	}
	return request
}

// blamesOfCodes are those that do not speak of the request.
var blamesOfCodes = map[codes.Code]blame{
	codes.Unavailable: worker, codes.ResourceExhausted: worker,
	codes.Internal: either, codes.Unknown: either, codes.DataLoss: either, codes.Aborted: either,
}
