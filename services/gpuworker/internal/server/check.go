package server

import (
	"fmt"
	"math"
	"strings"

	"github.com/millrace/millrace/gpuworker/model"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
)

// Limits of a request that do not depend on the model.
const (
	maxStops      = 16
	maxStopBytes  = 256
	maxStopIDs    = 64
	maxBiases     = 1024
	maxSequences  = 16
	maxCandidates = 64
	maxFairnessID = 128
	maxSaltBytes  = 128
)

// checkGenerate lists what is wrong with a request whatever its model is.
func checkGenerate(in *pb.GenerateRequest) []rpc.Violation {
	c := &checker{}
	if in.RequestId != nil && !rpc.ValidRequestID(in.GetRequestId()) {
		c.add("request_id", "want 1 to 128 printable ASCII characters")
	}
	if in.GetModel() == "" {
		c.add("model", "is required: the name of a loaded model")
	}
	c.digest("expect_model_digest", in.ExpectModelDigest)
	c.digest("expect_prompt_digest", in.ExpectPromptDigest)
	switch input := in.GetInput().(type) {
	case nil:
		c.add("input", "one of prompt, token_ids and chat is required")
	case *pb.GenerateRequest_Prompt:
		if input.Prompt == "" {
			c.add("prompt", "is empty: give at least one character")
		}
	case *pb.GenerateRequest_TokenIds:
		if len(input.TokenIds.GetIds()) == 0 {
			c.add("token_ids.ids", "is empty: give at least one token")
		}
	case *pb.GenerateRequest_Chat:
		c.chat(input.Chat)
	}
	if in.AcceptedAt != nil {
		if err := in.GetAcceptedAt().CheckValid(); err != nil {
			c.add("accepted_at", "is no valid time: %v", err)
		}
	}
	if _, known := pb.KernelClass_name[int32(in.GetPromptClass())]; !known {
		c.add("prompt_class", "is %d, which is no class", in.GetPromptClass())
	}
	c.sampling(in.GetSampling())
	c.stopping(in)
	c.response(in.GetResponse())
	c.resume(in)
	c.schedule(in)
	return c.violations
}

func (c *checker) chat(chat *pb.Chat) {
	if len(chat.GetMessages()) == 0 {
		c.add("chat.messages", "is empty: give at least one message")
	}
	for i, m := range chat.GetMessages() {
		if m.GetRole() == "" {
			c.add(fmt.Sprintf("chat.messages[%d].role", i), "is required, such as \"user\"")
		}
	}
	c.kwargs(chat.GetTemplateKwargs())
}

func (c *checker) sampling(s *pb.Sampling) {
	if s == nil {
		return
	}
	c.float("sampling.temperature", s.Temperature, 0, 100, false)
	if s.TopK != nil && s.GetTopK() < 0 {
		c.add("sampling.top_k", "is %d, want [0, vocabulary]; 0 keeps all", s.GetTopK())
	}
	c.float("sampling.top_p", s.TopP, 0, 1, true)
	c.float("sampling.min_p", s.MinP, 0, 1, false)
	c.float("sampling.typical_p", s.TypicalP, 0, 1, true)
	c.float("sampling.repetition_penalty", s.RepetitionPenalty, 0, 100, true)
	c.float("sampling.presence_penalty", s.PresencePenalty, -100, 100, false)
	c.float("sampling.frequency_penalty", s.FrequencyPenalty, -100, 100, false)
	c.int("sampling.penalty_window", s.PenaltyWindow, -1, math.MaxInt32)
	c.int("sampling.num_sequences", s.NumSequences, 1, maxSequences)
	if n := len(s.GetLogitBias()); n > maxBiases {
		c.add("sampling.logit_bias", "has %d entries, at most %d", n, maxBiases)
	}
	for id, bias := range s.GetLogitBias() {
		if math.IsNaN(float64(bias)) || math.IsInf(float64(bias), 1) {
			c.add(fmt.Sprintf("sampling.logit_bias[%d]", id), "is %v, want a finite number or -inf", bias)
		}
	}
	if s.AllowedTokens != nil && len(s.GetAllowedTokens().GetIds()) == 0 {
		c.add("sampling.allowed_tokens.ids", "is empty: leave allowed_tokens unset to allow every token")
	}
}

func (c *checker) stopping(in *pb.GenerateRequest) {
	s := in.GetStopping()
	if n := in.ContextLength; n != nil && (*n == 0 || *n > math.MaxInt32) {
		c.add("context_length", "is %d, want [1, %d]: leave it unset for the worker's own", *n, math.MaxInt32)
	}
	if s == nil {
		return
	}
	c.int("stopping.max_tokens", s.MaxTokens, 0, math.MaxInt32)
	if s.MaxTokens != nil && s.GetMaxTokens() == 0 && !reportsPrompt(in.GetResponse()) {
		c.add("stopping.max_tokens", "is 0: then nothing is generated, which is of use with response.prompt_logprobs or echo_prompt only")
	}
	limit := int32(math.MaxInt32)
	if s.MaxTokens != nil && s.GetMaxTokens() >= 0 {
		limit = s.GetMaxTokens()
	}
	c.int("stopping.min_tokens", s.MinTokens, 0, limit)
	if n := len(s.GetStop()); n > maxStops {
		c.add("stopping.stop", "has %d strings, at most %d", n, maxStops)
	}
	for i, stop := range s.GetStop() {
		if len(stop) == 0 || len(stop) > maxStopBytes {
			c.add(fmt.Sprintf("stopping.stop[%d]", i), "has %d bytes, want 1 to %d", len(stop), maxStopBytes)
		}
	}
	if n := len(s.GetStopTokenIds()); n > maxStopIDs {
		c.add("stopping.stop_token_ids", "has %d ids, at most %d", n, maxStopIDs)
	}
	if len(s.GetStop()) > 0 && in.GetResponse().GetTokenIdsOnly() {
		c.add("stopping.stop", "needs text, which response.token_ids_only leaves out: use stop_token_ids")
	}
}

func (c *checker) response(r *pb.ResponseOptions) {
	if r == nil {
		return
	}
	c.int("response.output_candidates", r.OutputCandidates, 0, maxCandidates)
	c.int("response.prompt_logprobs", r.PromptLogprobs, 0, maxCandidates)
}

// checkAgainst lists what is wrong with a request for this model.
func checkAgainst(in *pb.GenerateRequest, inst *model.Instance) []rpc.Violation {
	c, vocabulary := &checker{}, inst.Facts.Vocabulary
	c.ids("token_ids.ids", in.GetTokenIds().GetIds(), vocabulary)
	c.ids("stopping.stop_token_ids", in.GetStopping().GetStopTokenIds(), vocabulary)
	c.ids("sampling.allowed_tokens.ids", in.GetSampling().GetAllowedTokens().GetIds(), vocabulary)
	for i, r := range in.GetResume() {
		c.ids(fmt.Sprintf("resume[%d].token_ids", i), r.GetTokenIds(), vocabulary)
	}
	if s := in.GetSampling(); s != nil {
		c.int("sampling.top_k", s.TopK, 0, int32(vocabulary))
		for id := range s.GetLogitBias() {
			if id < 0 || int(id) >= vocabulary {
				c.add(fmt.Sprintf("sampling.logit_bias[%d]", id), "is no token id, want [0, %d)", vocabulary)
			}
		}
	}
	return c.violations
}

// resume checks what can be known without the model; the tokens themselves are looked at by package generate.
func (c *checker) resume(in *pb.GenerateRequest) {
	if len(in.GetResume()) == 0 {
		return
	}
	if s := in.GetSampling(); s == nil || s.Seed == nil {
		c.add("sampling.seed", "is required with resume: give the one that `started` told")
	}
	sequences := uint32(max(1, in.GetSampling().GetNumSequences()))
	at := map[uint32]int{}
	for i, r := range in.GetResume() {
		field, index := fmt.Sprintf("resume[%d].output_index", i), r.GetOutputIndex()
		before, twice := at[index]
		switch {
		case index >= sequences:
			c.add(field, "is %d, want [0, %d): sampling.num_sequences is %d", index, sequences, sequences)
		case twice:
			c.add(field, "is %d, as that of resume[%d] is: give each continuation once", index, before)
		default:
			at[index] = i
		}
	}
}

// schedule checks what says how a request stands among others.
func (c *checker) schedule(in *pb.GenerateRequest) {
	c.fairnessID(in.GetFairnessId())
	if n := len(in.GetCache().GetSalt()); n > maxSaltBytes {
		c.add("cache.salt", "has %d bytes, at most %d", n, maxSaltBytes)
	}
}

func (c *checker) fairnessID(id string) {
	if len(id) > maxFairnessID || strings.ContainsFunc(id, func(r rune) bool { return r < ' ' || r > '~' }) {
		c.add("fairness_id", "want at most %d printable ASCII characters", maxFairnessID)
	}
}

// reportsPrompt says whether a response has something to say about the prompt itself.
func reportsPrompt(r *pb.ResponseOptions) bool {
	return r != nil && (r.PromptLogprobs != nil || r.GetEchoPrompt())
}
