package failure

import (
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

// Parts of more than one advice; TARGET is the flag that repeats the target, with a space before it, or nothing.
const (
	listModels  = "millrace models TARGET lists the models"
	loadIt      = "millrace load MODEL TARGET"
	otherFile   = "another file of the model; this one is not valid"
	otherModel  = "a model of another kind (docs/models.md lists what this version serves), or a newer Millrace: CHANGELOG.md says what each added"
	again       = "send it again"
	seeLog      = "send it again; if it fails again, millrace health TARGET shows whether the worker serves, and its log has the reason if not"
	reloadIt    = "millrace unload MODEL TARGET, then load it again; if it happens again, the device is faulty"
	less        = "unload another model, or load with fewer --kv-tokens or a smaller --context"
	whoIsThere  = "millrace workers TARGET shows what the scheduler sees"
	whichDigest = "millrace models TARGET shows the digests"
)

// advices are the next step for every reason there is; "" where the message, its violations or a time to wait say it. MODEL
// and TARGET stand for those of the request.
var advices = map[string]string{
	reason.UnknownField:        "a client and a server of the same version",
	reason.MalformedMessage:    "a client and a server of the same version",
	reason.MessageTooLarge:     "a shorter prompt",
	reason.TooManyBytesSending: "again when others have read their answers, or request less at once",
	reason.TooManyBytesWaiting: "again when others have been served, or a shorter prompt",
	reason.InvalidArgument:     "",
	reason.InvalidGrammar:      "",
	reason.GrammarTooAmbiguous: "a constraint with fewer ways to derive one text",
	reason.NotBuilt:            "",
	reason.CallerNotAllowed:    "another certificate with --tls-cert and --tls-key; or have the server allow this one",

	reason.NoToken:         "--token-file with the token that you were given, or MILLRACE_TOKEN",
	reason.UnknownToken:    "another token with --token-file or in MILLRACE_TOKEN; this one is wrong, or was revoked",
	reason.TokenExpired:    "a new token; millrace keys new makes one, for the server's file of keys",
	reason.TokenRevoked:    "another token with --token-file or in MILLRACE_TOKEN",
	reason.RightMissing:    "another token, or have the server's file of keys give this one the right",
	reason.OtherTenant:     "without --fairness-id: the token determines the tenant",
	reason.PriorityTooHigh: "a lower --priority",
	reason.TooManyRequests: "",
	reason.TooManyTokens:   "",
	reason.TooManyStreams:  "again when one of your calls has ended",

	reason.DeadlineExceeded: "a longer --timeout",
	reason.Cancelled:        "",
	reason.Panic:            "again; the server's log has the stack, and deserves a report",
	reason.Internal:         seeLog,

	reason.BadModelName:      listModels,
	reason.UnknownModel:      listModels,
	reason.ModelNotLoaded:    loadIt,
	reason.ModelLoading:      "again in a while; millrace models TARGET shows when it is loaded",
	reason.ModelDraining:     "millrace load MODEL TARGET when it is unloaded",
	reason.ModelUnloaded:     loadIt,
	reason.ModelOutOfService: reloadIt,
	reason.AmbiguousCodebook: "name one by its digest, or unload one",
	reason.AmbiguousModel:    "name one with --expect-model-digest; " + whichDigest,
	reason.DigestMismatch:    whichDigest,
	reason.ClassMismatch:     whoIsThere,
	reason.ExpectationFailed: "the prompt and the settings with which the stream began; or, for another class of worker, --resume-inexact",

	reason.NoTokenizer:         "millrace generate -m MODEL TARGET --token-ids 1,2,3",
	reason.NoChatTemplate:      "millrace generate -m MODEL TARGET \"Once upon a time\": this model continues texts and has no chat template",
	reason.ChatTemplateFailed:  "other roles, or another order of messages: the model's template does not take these",
	reason.ChatTemplateLimit:   "a shorter conversation; if that fails too, the model's template is unfit",
	reason.ChatTemplateProcess: seeLog,
	reason.NoSuchTemplate:      "millrace models: a template's name that it lists for the model, or none",
	reason.NotAReranker:        "millrace models: a model that can rerank, such as Qwen3-Reranker",
	reason.RerankerOnly:        "millrace rerank, or another model",
	reason.VectorsOnly:         "millrace embed, or another model",
	reason.NoTokens:            "a prompt of more than white space",
	reason.BadTokenID:          "token ids of this model; millrace tokenize -m MODEL TARGET makes them",
	reason.ResponseTooLarge:    "send the text or the token ids in parts; a response has at most 4 MiB",
	reason.PromptTooLong:       "a shorter prompt, or load the model with a larger --context",
	reason.ContextTooShort:     "a scheduler, which chooses a worker with a longer context, or load the model with a larger --context",
	reason.ResumeTooLong:       "the request with which the stream began, its --max-tokens too",
	reason.ResumeMismatch:      "the request with which the stream began, its stop strings and --min-tokens too; or from the beginning",
	reason.NoTokenLeft:         "fewer of --allowed-tokens, --logit-bias, --min-tokens and constraints: together they forbid every token",

	reason.FleetUnknown:       whoIsThere,
	reason.NoWorker:           whoIsThere,
	reason.UnknownWorker:      whoIsThere,
	reason.WorkerLost:         again,
	reason.WorkerFull:         "",
	reason.WorkersFull:        "",
	reason.Displaced:          "",
	reason.TooLate:            "a longer --timeout",
	reason.QueueTimeout:       "",
	reason.WorkerStopping:     "another worker, or again when it is back",
	reason.WorkerDraining:     "another worker, or again when it is undrained; millrace undrain WORKER takes a drain back",
	reason.Stopping:           "another scheduler, or again when it is back",
	reason.TooManyVectorCalls: "again in a moment; or a scheduler with a larger --max-vector-calls",
	reason.SlowReader:         "send it again, and read the answer as it comes",

	reason.BadLoadOption:           "millrace load --help lists what a load takes",
	reason.LoadOptionsDiffer:       "without these options, to use the model as it is; or millrace unload MODEL TARGET, then load it again",
	reason.LoadEnded:               loadIt,
	reason.ModelDoesNotFit:         less,
	reason.TooManyLoads:            "again when one has ended; millrace models TARGET shows those under way",
	reason.TooFewWorkers:           "fewer --replicas, or more workers; millrace workers TARGET shows them",
	reason.LoadIncomplete:          "again when the failures above are repaired; loaded copies stay",
	reason.InvalidModelFile:        otherFile,
	reason.ModelFileUnreadable:     "again when the file is complete and no program writes to it",
	reason.ModelFileClosed:         again,
	reason.UnsupportedArchitecture: otherModel,
	reason.UnsupportedTensorType:   otherModel,
	reason.UnsupportedTokenizer:    otherModel,

	reason.BadCodebookName:         "letters, digits and \"._-\", with \"/\" between folders",
	reason.UnknownCodebook:         "the name of a codebook that a worker has, or train one with --save-as",
	reason.CodebookNotLoaded:       "load it, or put it on a worker",
	reason.CodebookExists:          "another name, or replace the one there",
	reason.CodebookDigestMismatch:  "the digest that the codebook has, or another codebook",
	reason.CodebookOutOfService:    "load it again; if it happens again, the device is faulty",
	reason.InvalidCodebookFile:     "another file of the codebook; this one is not valid",
	reason.CodebookNotWritten:      "space and permission to write in the worker's --codebooks folder",
	reason.ResidentCodebookDiffers: "load it again; if it happens again, the device is faulty",
	reason.DoesNotFit:              "fewer rows, with --max-rows-per-codeword; or unload a model; or a worker with a larger --spool-space",
	reason.NoTrainings:             "another worker, or one started with --max-trainings",
	reason.TooManyTrainings:        "again when one has ended",
	reason.BadTrainingInput:        "",
	reason.CheckpointMismatch:      "the checkpoint of this very training: the same rows, config and seed",
	reason.SilentSender:            "again, and send without long pauses, or in smaller pieces; a training, to a worker with a longer --training-timeout",

	reason.ResidentTensorDiffers: reloadIt,
	reason.OutOfDeviceMemory:     less,
	reason.DeviceMemoryHeld:      "millrace unload MODEL TARGET once more; if the device still keeps the memory, restart the worker",
	reason.NotOnThisDevice:       "a worker with another device, or without the option that the message names",
	reason.RefusedByEngine:       "without unusual options; the engine refuses this request",
	reason.BadLogits:             "another prompt; if every one fails, load the model again or take another file",
	reason.EngineState:           seeLog,
	reason.StepFailed:            seeLog,
	reason.StepTimeout:           seeLog,
	reason.NoDevice:              "millrace health TARGET shows the worker's device",
	reason.DeviceFailed:          seeLog,
}

// advice is the next step.
func advice(err error, code codes.Code, r Request) string {
	text := advices[rpc.Reason(err)]
	if rpc.Reason(err) == reason.ModelNotLoaded && code == codes.NotFound {
		text = "millrace models TARGET shows the loaded models"
	}
	if text != "" {
		model := r.Model
		if model == "" {
			model = "NAME"
		}
		return strings.NewReplacer(" TARGET", r.TargetFlag(), "MODEL", model).Replace(text)
	}
	if after := rpc.RetryAfter(err); after > 0 {
		return "again in " + after.Round(time.Millisecond).String()
	}
	if rpc.Info(err) == nil {
		return adviceOnBare(err, code, r)
	}
	if code == codes.DeadlineExceeded {
		return "a longer --timeout"
	}
	return ""
}

// adviceOnBare is the next step where no server of ours says why: the connection, a proxy, or another server.
func adviceOnBare(err error, code codes.Code, r Request) string {
	switch code {
	case codes.Unavailable:
		if text := tlsAdvice(err.Error()); text != "" {
			return text
		}
		if strings.Contains(err.Error(), "unexpected HTTP status code") {
			return "the log of the proxy at " + r.Target + ", which reaches no server; or name another with --target"
		}
		if r.TargetGiven {
			return "start a server at " + r.Target + ", or name another with --target"
		}
		return "start a server (make up), or name one with --target or MILLRACE_TARGET"
	case codes.Internal:
		return "send it again; if it fails again, the log of the server at " + r.Target + " has the reason"
	case codes.Unimplemented:
		return "the address of a scheduler or worker of this client's version with --target; " + r.Target + " does not serve this call"
	case codes.DeadlineExceeded:
		return "a longer --timeout"
	default:
		return ""
	}
}
