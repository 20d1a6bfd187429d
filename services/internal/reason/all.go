package reason

// All returns every reason in the order of definition.
func All() []string {
	return []string{
		UnknownField, MalformedMessage, MessageTooLarge, TooManyBytesWaiting, TooManyBytesSending, InvalidArgument, NotBuilt,
		CallerNotAllowed,

		NoToken, UnknownToken, TokenExpired, TokenRevoked, RightMissing, OtherTenant, PriorityTooHigh, TooManyRequests, TooManyTokens,
		TooManyStreams,

		DeadlineExceeded, Cancelled, Panic, Internal,

		BadModelName, UnknownModel, ModelNotLoaded, ModelLoading, ModelDraining, ModelUnloaded, ModelOutOfService, AmbiguousModel,
		AmbiguousCodebook, DigestMismatch, ClassMismatch, ExpectationFailed,

		NoTokenizer, NoChatTemplate, ChatTemplateFailed, ChatTemplateLimit, ChatTemplateProcess, NoSuchTemplate, NotAReranker, RerankerOnly,
		VectorsOnly, NoTokens, BadTokenID,
		PromptTooLong, ResponseTooLarge, ContextTooShort, ResumeTooLong, ResumeMismatch, NoTokenLeft,
		InvalidGrammar, GrammarTooAmbiguous,

		FleetUnknown, NoWorker, UnknownWorker, WorkerLost, WorkerFull, WorkersFull, Displaced, TooLate, QueueTimeout, WorkerStopping,
		WorkerDraining, Stopping, TooManyVectorCalls, SlowReader,

		BadLoadOption, LoadOptionsDiffer, LoadEnded, ModelDoesNotFit, TooManyLoads, TooFewWorkers, LoadIncomplete, InvalidModelFile,
		ModelFileUnreadable, ModelFileClosed, UnsupportedArchitecture, UnsupportedTensorType, UnsupportedTokenizer,

		BadCodebookName, UnknownCodebook, CodebookNotLoaded, CodebookExists, CodebookDigestMismatch, CodebookOutOfService,
		InvalidCodebookFile, CodebookNotWritten, ResidentCodebookDiffers, DoesNotFit, NoTrainings, TooManyTrainings,
		BadTrainingInput, CheckpointMismatch, SilentSender,

		ResidentTensorDiffers, OutOfDeviceMemory, DeviceMemoryHeld, NotOnThisDevice, RefusedByEngine, BadLogits,
		EngineState, StepFailed, StepTimeout, NoDevice, DeviceFailed,
	}
}
