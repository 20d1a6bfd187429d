package reason

// Any server: the received bytes are not a request.
const (
	// UnknownField: INVALID_ARGUMENT, the request has a field that this server does not know.
	// Metadata: message, field.
	UnknownField = "UNKNOWN_FIELD"
	// MalformedMessage: INVALID_ARGUMENT, the request's bytes are not its message. Metadata:
	// message, field.
	MalformedMessage = "MALFORMED_MESSAGE"
	// MessageTooLarge: RESOURCE_EXHAUSTED, the request is above the server's limit. Metadata:
	// bytes, max_bytes.
	MessageTooLarge = "MESSAGE_TOO_LARGE"
	// TooManyBytesWaiting: RESOURCE_EXHAUSTED, the requests that the server holds leave no room for
	// this one; try later. Metadata: bytes, waiting_bytes, max_waiting_bytes.
	TooManyBytesWaiting = "TOO_MANY_BYTES_WAITING"
	// TooManyBytesSending: RESOURCE_EXHAUSTED, the responses that the server is sending leave no
	// room for this one; try later. Metadata: bytes, sending_bytes, max_sending_bytes.
	TooManyBytesSending = "TOO_MANY_BYTES_SENDING"
	// InvalidArgument: INVALID_ARGUMENT, values are out of range, each listed as a violation.
	InvalidArgument = "INVALID_ARGUMENT"
	// NotBuilt: UNIMPLEMENTED, this server has no such method, does not honour such a field, or
	// accepts no compressed messages. Metadata: method, fields or compression.
	NotBuilt = "NOT_BUILT"
	// CallerNotAllowed: PERMISSION_DENIED, the caller's certificate has none of the names that this
	// server allows. Metadata: names, those that it has.
	CallerNotAllowed = "CALLER_NOT_ALLOWED"
)

// A server with keys: rights and quotas.
const (
	// NoToken: UNAUTHENTICATED, the call has no bearer token.
	NoToken = "NO_TOKEN"
	// UnknownToken: UNAUTHENTICATED, no key has this token: it is wrong, or was revoked.
	UnknownToken = "UNKNOWN_TOKEN"
	// TokenExpired: UNAUTHENTICATED, the key has expired, possibly during the call. Metadata: key,
	// expired.
	TokenExpired = "TOKEN_EXPIRED"
	// TokenRevoked: UNAUTHENTICATED, the key was revoked during the call. Metadata: key.
	TokenRevoked = "TOKEN_REVOKED"
	// RightMissing: PERMISSION_DENIED, the key may not call this method, or may no longer.
	// Metadata: key, method, needs, rights.
	RightMissing = "RIGHT_MISSING"
	// OtherTenant: PERMISSION_DENIED, the request names a fairness_id that is not the key's tenant.
	// Metadata: key, tenant, fairness_id.
	OtherTenant = "OTHER_TENANT"
	// PriorityTooHigh: PERMISSION_DENIED, the request's priority is above the key's highest.
	// Metadata: key, priority, max_priority.
	PriorityTooHigh = "PRIORITY_TOO_HIGH"
	// TooManyRequests: RESOURCE_EXHAUSTED, the key's requests of a minute are used up; try later.
	// Metadata: key, requests_per_minute.
	TooManyRequests = "TOO_MANY_REQUESTS"
	// TooManyTokens: RESOURCE_EXHAUSTED, the key's tokens of a minute are used up; try later.
	// Metadata: key, tokens_per_minute.
	TooManyTokens = "TOO_MANY_TOKENS"
	// TooManyStreams: RESOURCE_EXHAUSTED, the key has as many running calls as it may; try again
	// when one has ended. Metadata: key, max_streams.
	TooManyStreams = "TOO_MANY_STREAMS"
)

// Any server: how a call ended.
const (
	// DeadlineExceeded: DEADLINE_EXCEEDED. The trailer rpc.UsageTrailer of a generation has its
	// usage so far.
	DeadlineExceeded = "DEADLINE_EXCEEDED"
	// Cancelled: CANCELLED, by the caller.
	Cancelled = "CANCELLED"
	// Panic: INTERNAL, the handler panicked; this call alone is lost.
	Panic = "PANIC"
	// Internal: INTERNAL, an error that is in no table.
	Internal = "INTERNAL"
)

// Which model.
const (
	// BadModelName: INVALID_ARGUMENT, it cannot be the name of a model file.
	BadModelName = "BAD_MODEL_NAME"
	// UnknownModel: NOT_FOUND, no such file exists.
	UnknownModel = "UNKNOWN_MODEL"
	// ModelNotLoaded: FAILED_PRECONDITION, it is on disk only, or on its way; NOT_FOUND from
	// UnloadModel.
	ModelNotLoaded = "MODEL_NOT_LOADED"
	// ModelLoading: UNAVAILABLE, it is being loaded for this request and others, and that takes
	// longer than one may wait; try again. Metadata: model, waited_ms.
	ModelLoading = "MODEL_LOADING"
	// ModelDraining: FAILED_PRECONDITION, it is being unloaded and takes no more requests.
	ModelDraining = "MODEL_DRAINING"
	// ModelUnloaded: UNAVAILABLE, it was unloaded under the request.
	ModelUnloaded = "MODEL_UNLOADED"
	// ModelOutOfService: UNAVAILABLE, it failed and serves no more until it is loaded again.
	ModelOutOfService = "MODEL_OUT_OF_SERVICE"
	// AmbiguousModel: FAILED_PRECONDITION, one name has several digests.
	AmbiguousModel = "AMBIGUOUS_MODEL"
	// AmbiguousCodebook: FAILED_PRECONDITION, one name has several digests.
	AmbiguousCodebook = "AMBIGUOUS_CODEBOOK"
	// DigestMismatch: FAILED_PRECONDITION, another digest than expected.
	DigestMismatch = "DIGEST_MISMATCH"
	// ClassMismatch: FAILED_PRECONDITION, no worker of the class expected.
	ClassMismatch = "CLASS_MISMATCH"
	// ExpectationFailed: FAILED_PRECONDITION, the worker's class or the prompt's digest is not the
	// one expected.
	ExpectationFailed = "EXPECTATION_FAILED"
)

// What a request asks of a model.
const (
	// NoTokenizer: FAILED_PRECONDITION, the request needs text and the model works by token ids.
	NoTokenizer = "NO_TOKENIZER"
	// NoChatTemplate: FAILED_PRECONDITION, the request is a conversation and the model has no
	// template that can be used.
	NoChatTemplate = "NO_CHAT_TEMPLATE"
	// ChatTemplateFailed: INVALID_ARGUMENT, the template refuses this conversation.
	ChatTemplateFailed = "CHAT_TEMPLATE_FAILED"
	// ChatTemplateLimit: FAILED_PRECONDITION, rendering took more time, memory or text than is
	// allowed.
	ChatTemplateLimit = "CHAT_TEMPLATE_LIMIT"
	// ChatTemplateProcess: INTERNAL, the process that renders failed.
	ChatTemplateProcess = "CHAT_TEMPLATE_PROCESS"
	// NoSuchTemplate: INVALID_ARGUMENT, the conversation names a chat template that the model does
	// not have.
	NoSuchTemplate = "NO_SUCH_TEMPLATE"
	// NotAReranker: FAILED_PRECONDITION, the request reranks and the model has neither a rerank
	// template nor the tokens for one.
	NotAReranker = "NOT_A_RERANKER"
	// RerankerOnly: FAILED_PRECONDITION, the request generates or embeds and the model's file makes
	// it a reranker.
	RerankerOnly = "RERANKER_ONLY"
	// VectorsOnly: FAILED_PRECONDITION, the request generates and the model's layers see later
	// positions, so that it makes vectors alone.
	VectorsOnly = "VECTORS_ONLY"
	// NoTokens: INVALID_ARGUMENT, the prompt's text became no tokens.
	NoTokens = "NO_TOKENS"
	// BadTokenID: INVALID_ARGUMENT, a token id is outside the vocabulary.
	BadTokenID = "BAD_TOKEN_ID"
	// PromptTooLong: INVALID_ARGUMENT, the prompt does not fit the context or the cache.
	PromptTooLong = "PROMPT_TOO_LONG"
	// ContextTooShort: FAILED_PRECONDITION, the stream may have more tokens than this worker's
	// context holds; one with a longer context serves it. Metadata: context_length, needed_tokens
	// (absent where the text is too long to be encoded here).
	ContextTooShort = "CONTEXT_TOO_SHORT"
	// ResumeTooLong: INVALID_ARGUMENT, more tokens are resumed than a continuation may have.
	ResumeTooLong = "RESUME_TOO_LONG"
	// ResponseTooLarge: INVALID_ARGUMENT, the response of Tokenize, Detokenize or Embed would be above
	// its limit. Metadata: bytes, max_bytes.
	ResponseTooLarge = "RESPONSE_TOO_LARGE"
	// ResumeMismatch: FAILED_PRECONDITION, the resumed tokens give another text than was received.
	// Metadata: output_index, resumed_tokens, text_bytes, expected_text_bytes.
	ResumeMismatch = "RESUME_MISMATCH"
	// NoTokenLeft: FAILED_PRECONDITION, the sampling parameters, or the constraint, left no token to
	// choose from.
	NoTokenLeft = "NO_TOKEN_LEFT"
	// InvalidGrammar: INVALID_ARGUMENT, the constraint in guided is malformed, cannot be honoured or is
	// too large. Metadata: path (a JSON pointer or a line; it may be empty), problem (syntax,
	// unsupported or limit).
	InvalidGrammar = "INVALID_GRAMMAR"
	// GrammarTooAmbiguous: FAILED_PRECONDITION, finding the next token of the constraint takes more
	// work than one may.
	GrammarTooAmbiguous = "GRAMMAR_TOO_AMBIGUOUS"
)

// Which worker could serve it.
const (
	// FleetUnknown: UNAVAILABLE, the scheduler has just started.
	FleetUnknown = "FLEET_UNKNOWN"
	// NoWorker: UNAVAILABLE, no worker that could serve it is reached or takes requests.
	NoWorker = "NO_WORKER"
	// UnknownWorker: NOT_FOUND, no connected worker has this id.
	UnknownWorker = "UNKNOWN_WORKER"
	// WorkerLost: UNAVAILABLE, the worker went away and no other one took its place. Metadata:
	// worker_id, tokens_relayed.
	WorkerLost = "WORKER_LOST"
	// WorkerFull: RESOURCE_EXHAUSTED, the queue of this worker is full; try later.
	WorkerFull = "WORKER_FULL"
	// WorkersFull: RESOURCE_EXHAUSTED, no worker that could serve it has a free slot, and the queue
	// is full; try later. Metadata: model, waiting, max_queue, retry_after_ms.
	WorkersFull = "WORKERS_FULL"
	// Displaced: RESOURCE_EXHAUSTED, it waited in a full queue, and a more urgent request, or one
	// of a tenant with fewer waiting, took its slot in the queue; try later. Metadata as of
	// WorkersFull.
	Displaced = "DISPLACED"
	// TooLate: RESOURCE_EXHAUSTED, by measured rates its first token would come after its deadline.
	// Metadata: model, estimate_ms, deadline_ms.
	TooLate = "TOO_LATE"
	// QueueTimeout: RESOURCE_EXHAUSTED, it has waited for its first slot as long as a call may, in
	// a scheduler or at a worker; try later. Metadata: waited_ms, max_queue_time_ms; of a scheduler
	// those of WorkersFull too.
	QueueTimeout = "QUEUE_TIMEOUT"
	// WorkerStopping: UNAVAILABLE, this worker is shutting down; FAILED_PRECONDITION, it is and
	// cannot be resumed.
	WorkerStopping = "WORKER_STOPPING"
	// WorkerDraining: UNAVAILABLE, an operator drains this worker; others may serve.
	WorkerDraining = "WORKER_DRAINING"
	// Stopping: UNAVAILABLE, this scheduler is shutting down.
	Stopping = "STOPPING"
	// TooManyVectorCalls: RESOURCE_EXHAUSTED, the maximum number of vector calls runs at this
	// scheduler; try later. Metadata: max_calls.
	TooManyVectorCalls = "TOO_MANY_VECTOR_CALLS"
	// SlowReader: RESOURCE_EXHAUSTED, the reader held up others for too long, or read nothing of
	// its response for longer than a server waits. Metadata of the latter: waited_ms.
	SlowReader = "SLOW_READER"
)

// Loading.
const (
	// BadLoadOption: INVALID_ARGUMENT, the model cannot be loaded as asked.
	BadLoadOption = "BAD_LOAD_OPTION"
	// LoadOptionsDiffer: FAILED_PRECONDITION, it is loaded, or being loaded, with other options
	// than the load sets.
	LoadOptionsDiffer = "LOAD_OPTIONS_DIFFER"
	// LoadEnded: ABORTED, it was unloaded while it was being loaded.
	LoadEnded = "LOAD_ENDED"
	// ModelDoesNotFit: RESOURCE_EXHAUSTED, the device has too little memory. Metadata:
	// needed_bytes, free_bytes, weight_bytes, kv_bytes, idle_models: those that could be unloaded,
	// the longest unused first.
	ModelDoesNotFit = "MODEL_DOES_NOT_FIT"
	// TooManyLoads: RESOURCE_EXHAUSTED, the maximum number of loads runs; try later. Metadata:
	// max_loads.
	TooManyLoads = "TOO_MANY_LOADS"
	// TooFewWorkers: RESOURCE_EXHAUSTED, fewer workers can hold a copy than copies are wanted.
	TooFewWorkers = "TOO_FEW_WORKERS"
	// LoadIncomplete: the code of the first failure, some copies were not loaded. Metadata: model,
	// loaded, wanted, first_reason.
	LoadIncomplete = "LOAD_INCOMPLETE"
	// InvalidModelFile: FAILED_PRECONDITION, the file contradicts itself or is not a model.
	InvalidModelFile = "INVALID_MODEL_FILE"
	// ModelFileUnreadable: FAILED_PRECONDITION, its bytes cannot be read, or changed under the
	// reader.
	ModelFileUnreadable = "MODEL_FILE_UNREADABLE"
	// ModelFileClosed: INTERNAL, it was closed under the reader.
	ModelFileClosed = "MODEL_FILE_CLOSED"
	// UnsupportedArchitecture: FAILED_PRECONDITION, no engine computes such a model.
	UnsupportedArchitecture = "UNSUPPORTED_ARCHITECTURE"
	// UnsupportedTensorType: FAILED_PRECONDITION, no engine computes with such weights.
	UnsupportedTensorType = "UNSUPPORTED_TENSOR_TYPE"
	// UnsupportedTokenizer: FAILED_PRECONDITION, the file's tokenizer is of a kind that is not
	// known.
	UnsupportedTokenizer = "UNSUPPORTED_TOKENIZER"
)

// Vector codebooks.
const (
	// BadCodebookName: INVALID_ARGUMENT, it cannot be the name of a codebook.
	BadCodebookName = "BAD_CODEBOOK_NAME"
	// UnknownCodebook: NOT_FOUND, no such file exists.
	UnknownCodebook = "UNKNOWN_CODEBOOK"
	// CodebookNotLoaded: NOT_FOUND, it is on disk only.
	CodebookNotLoaded = "CODEBOOK_NOT_LOADED"
	// CodebookExists: ALREADY_EXISTS, the name is another codebook's.
	CodebookExists = "CODEBOOK_EXISTS"
	// CodebookDigestMismatch: FAILED_PRECONDITION, another digest than expected.
	CodebookDigestMismatch = "CODEBOOK_DIGEST_MISMATCH"
	// CodebookOutOfService: UNAVAILABLE, it failed and serves no more until it is loaded again.
	CodebookOutOfService = "CODEBOOK_OUT_OF_SERVICE"
	// InvalidCodebookFile: FAILED_PRECONDITION, the file is damaged or is not a codebook.
	InvalidCodebookFile = "INVALID_CODEBOOK_FILE"
	// CodebookNotWritten: INTERNAL, the worker's codebooks directory did not take the file.
	CodebookNotWritten = "CODEBOOK_NOT_WRITTEN"
	// ResidentCodebookDiffers: DATA_LOSS, codewords in device memory are not those that were
	// loaded.
	ResidentCodebookDiffers = "RESIDENT_CODEBOOK_DIFFERS"
	// DoesNotFit: RESOURCE_EXHAUSTED, a training or a codebook needs more memory than there is.
	// Metadata: needed_bytes, free_bytes of the device, spool_bytes, free_spool_bytes of the host
	// for a training's rows, host_bytes, free_host_bytes for codebooks on their way.
	DoesNotFit = "DOES_NOT_FIT"
	// NoTrainings: UNAVAILABLE, this worker is configured to accept none.
	NoTrainings = "NO_TRAININGS"
	// TooManyTrainings: RESOURCE_EXHAUSTED, the maximum number runs; try later.
	TooManyTrainings = "TOO_MANY_TRAININGS"
	// BadTrainingInput: INVALID_ARGUMENT, rows or what comes before them are not as declared, or
	// not finite; listed as a violation.
	BadTrainingInput = "BAD_TRAINING_INPUT"
	// CheckpointMismatch: FAILED_PRECONDITION, the bytes are not a checkpoint of this training.
	CheckpointMismatch = "CHECKPOINT_MISMATCH"
	// SilentSender: DEADLINE_EXCEEDED, the caller sent nothing, or not the whole of its request,
	// for as long as the server waits. Metadata: waited_ms, and bytes of a request that is above 32
	// KiB.
	SilentSender = "SILENT_SENDER"
)

// The device.
const (
	// ResidentTensorDiffers: DATA_LOSS, weights in device memory are not those of the file.
	ResidentTensorDiffers = "RESIDENT_TENSOR_DIFFERS"
	// OutOfDeviceMemory: RESOURCE_EXHAUSTED, the device has no memory left for it.
	OutOfDeviceMemory = "OUT_OF_DEVICE_MEMORY"
	// DeviceMemoryHeld: INTERNAL, the device refused to free memory.
	DeviceMemoryHeld = "DEVICE_MEMORY_HELD"
	// NotOnThisDevice: UNIMPLEMENTED, this device cannot do it and another might.
	NotOnThisDevice = "NOT_ON_THIS_DEVICE"
	// RefusedByEngine: INVALID_ARGUMENT, the engine refuses the request.
	RefusedByEngine = "REFUSED_BY_ENGINE"
	// BadLogits: INTERNAL, the model computed NaN for this request.
	BadLogits = "BAD_LOGITS"
	// EngineState: INTERNAL, the engine was called out of order.
	EngineState = "ENGINE_STATE"
	// StepFailed: INTERNAL, a step of the batch failed, and every request in it.
	StepFailed = "STEP_FAILED"
	// StepTimeout: INTERNAL, a step took longer than any should.
	StepTimeout = "STEP_TIMEOUT"
	// NoDevice: INTERNAL, no such device exists.
	NoDevice = "NO_DEVICE"
	// DeviceFailed: INTERNAL, the device is lost or in error.
	DeviceFailed = "DEVICE_FAILED"
)
