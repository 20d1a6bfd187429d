package cli

import (
	"github.com/spf13/pflag"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/millrace/internal/protoflags"
)

var samplingUsage = map[string]string{
	"temperature":        "divides the logits, [0, 100]; 0 always takes the best token (unset: 1)",
	"top_k":              "keep the k best tokens; 0 keeps all (unset: 0)",
	"top_p":              "keep the smallest set of best tokens with this probability, (0, 1] (unset: 1)",
	"min_p":              "keep tokens with this share of the best one's probability, [0, 1] (unset: 0)",
	"typical_p":          "keep the tokens nearest the entropy with this probability, (0, 1] (unset: 1)",
	"repetition_penalty": "divides positive and multiplies negative logits of recent tokens, (0, 100] (unset: 1)",
	"presence_penalty":   "subtracted once from the logits of recent tokens, [-100, 100] (unset: 0)",
	"frequency_penalty":  "subtracted for each occurrence of recent tokens, [-100, 100] (unset: 0)",
	"penalty_window":     "how many last tokens the penalties count; -1 is all (unset: -1)",
	"logit_bias":         "added to logits by token id, such as 17=-5,3=-inf",
	"allowed_tokens":     "the only token ids that may be chosen",
	"seed":               "key of the random numbers; the same seed gives the same text (unset: drawn, and printed)",
	"num_sequences":      "continuations to generate, [1, 16] (unset: 1)",
}

var stoppingUsage = map[string]string{
	"max_tokens":             "tokens to generate at most (unset: as many as the context holds)",
	"min_tokens":             "tokens to generate at least (unset: 0)",
	"stop":                   "text that ends the generation; may be repeated",
	"stop_token_ids":         "token ids that end the generation",
	"include_stop_in_output": "end the text with the stop text or token",
	"ignore_eos":             "continue after the model's own end tokens",
}

var responseUsage = map[string]string{
	"output_logprobs":   "report logprob and rank of each generated token; needs --json",
	"output_candidates": "number of best tokens to report for each generated one, [0, 64]; needs --json",
	"prompt_logprobs":   "report logprobs of the prompt, and this number of best tokens for each, [0, 64]; needs --json",
	"echo_prompt":       "repeat the prompt before its continuation",
	"token_ids_only":    "print token ids instead of text",
	"progress":          "report the progress of a long prompt",
	"parts":             "separate reasoning and tool calls from the answer; needs a chat (unset: with --tools)",
}

var scheduleUsage = map[string]string{
	"priority":    "urgency: higher goes first, below 0 after the usual (unset: 0)",
	"fairness_id": "tenant whose share of the machine is used; tenants of equal priority get equal shares (unset: one share for all such requests)",
}

// scheduleFlags adds the flags of how a request stands among others and which cached prefixes it shares, filling req.
func scheduleFlags(fs *pflag.FlagSet, req *pb.GenerateRequest) {
	req.Cache = &pb.CacheOptions{}
	group(fs, "Scheduling and cache", func() {
		protoflags.Register(fs, req, scheduleUsage)
		protoflags.RegisterAs(fs, req.Cache, "salt", "cache-salt",
			"keep cached prefixes apart from those of requests with another salt (unset: shared with all requests without a salt)")
		protoflags.RegisterAs(fs, req.Cache, "bypass_prefix_cache", "no-prefix-cache",
			"compute the whole prompt and leave nothing of it in the cache")
	})
}

// samplingFlags adds the flags of how tokens are chosen and when to stop, filling req.
func samplingFlags(fs *pflag.FlagSet, req *pb.GenerateRequest) {
	req.Sampling, req.Stopping = &pb.Sampling{}, &pb.Stopping{}
	group(fs, "Sampling", func() { protoflags.Register(fs, req.Sampling, samplingUsage) })
	group(fs, "Stopping", func() { protoflags.Register(fs, req.Stopping, stoppingUsage) })
}

// responseFlags adds the flags of the response's parts, filling req.
func responseFlags(fs *pflag.FlagSet, req *pb.GenerateRequest) {
	req.Response = &pb.ResponseOptions{}
	group(fs, "Output", func() { protoflags.Register(fs, req.Response, responseUsage) })
}
