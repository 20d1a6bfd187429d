package fault

import "github.com/millrace/millrace/services/internal/rpc"

// Domain of every status that the scheduler itself makes.
const Domain = rpc.SchedulerDomain

// Reasons of the scheduler; package rpc has those of any server (UNKNOWN_FIELD, MALFORMED_MESSAGE, MESSAGE_TOO_LARGE,
// TOO_MANY_BYTES_WAITING, NOT_BUILT, PANIC).
const (
	// FleetUnknown: UNAVAILABLE, the scheduler has just started.
	FleetUnknown = "FLEET_UNKNOWN"
	// NoWorker: UNAVAILABLE, no worker that could serve it is reached or takes requests.
	NoWorker = "NO_WORKER"
	// UnknownModel: NOT_FOUND, no worker has it.
	UnknownModel = "UNKNOWN_MODEL"
	// ModelNotLoaded: FAILED_PRECONDITION, it is on disk only, or on its way; NOT_FOUND from UnloadModel.
	ModelNotLoaded = "MODEL_NOT_LOADED"
	// AmbiguousModel: FAILED_PRECONDITION, one name has several digests.
	AmbiguousModel = "AMBIGUOUS_MODEL"
	// DigestMismatch: FAILED_PRECONDITION, another digest than expected.
	DigestMismatch = "DIGEST_MISMATCH"
	// ClassMismatch: FAILED_PRECONDITION, no worker of the class expected.
	ClassMismatch = "CLASS_MISMATCH"
	// WorkersFull: RESOURCE_EXHAUSTED, try later.
	WorkersFull = "WORKERS_FULL"
	// TooFewWorkers: RESOURCE_EXHAUSTED, fewer workers can hold a copy than copies are wanted.
	TooFewWorkers = "TOO_FEW_WORKERS"
	// TooManyLoads: RESOURCE_EXHAUSTED, as many LoadModels are under way as may be; try later. Metadata: max_loads.
	TooManyLoads = "TOO_MANY_LOADS"
	// WorkerLost: UNAVAILABLE, the worker went away. Metadata: worker_id, tokens_relayed.
	WorkerLost = "WORKER_LOST"
	// LoadIncomplete: the code of the first failure, some copies were not loaded. Metadata: loaded, wanted.
	LoadIncomplete = "LOAD_INCOMPLETE"
	// InvalidArgument: INVALID_ARGUMENT with violations.
	InvalidArgument = "INVALID_ARGUMENT"
	// DeadlineExceeded: DEADLINE_EXCEEDED before the worker said so.
	DeadlineExceeded = "DEADLINE_EXCEEDED"
	// Cancelled: CANCELLED by the caller.
	Cancelled = "CANCELLED"
	// Stopping: UNAVAILABLE, this scheduler is shutting down.
	Stopping = "STOPPING"
	// Internal: INTERNAL, an error that no table knows.
	Internal = "INTERNAL"
)
