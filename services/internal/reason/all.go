package reason

// All is every reason, in the order of their definition.
func All() []string {
	return []string{
		UnknownField, MalformedMessage, MessageTooLarge, TooManyBytesWaiting, InvalidArgument, NotBuilt,

		DeadlineExceeded, Cancelled, Panic, Internal,

		BadModelName, UnknownModel, ModelNotLoaded, ModelLoading, ModelDraining, ModelUnloaded, ModelOutOfService, AmbiguousModel,
		DigestMismatch, ClassMismatch, ExpectationFailed,

		NoTokenizer, NoChatTemplate, ChatTemplateFailed, ChatTemplateLimit, ChatTemplateProcess, NoTokens, BadTokenID,
		PromptTooLong, ResumeMismatch, NoTokenLeft,

		FleetUnknown, NoWorker, UnknownWorker, WorkerLost, WorkerFull, WorkersFull, Displaced, TooLate, WorkerStopping, WorkerDraining,
		Stopping, SlowReader,

		BadLoadOption, ModelDoesNotFit, TooManyLoads, TooFewWorkers, LoadIncomplete, InvalidModelFile,
		ModelFileUnreadable, ModelFileClosed, UnsupportedArchitecture, UnsupportedTensorType, UnsupportedTokenizer,

		ResidentTensorDiffers, OutOfDeviceMemory, DeviceMemoryHeld, NotOnThisDevice, RefusedByEngine, BadLogits,
		EngineState, StepFailed, StepTimeout, NoDevice, DeviceFailed,
	}
}
