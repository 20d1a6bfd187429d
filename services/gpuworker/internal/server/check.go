package server

import (
	"encoding/hex"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/millrace/millrace/gpuworker/model"
	"github.com/millrace/millrace/gpuworker/template"
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

// checkGenerate returns the violations of a request that do not depend on its model.
func checkGenerate(in *pb.GenerateRequest) []rpc.Violation {
	c := &Checker{}
	if in.RequestId != nil && !rpc.ValidRequestID(in.GetRequestId()) {
		c.Add("request_id", "want 1 to 128 printable ASCII characters")
	}
	if in.GetModel() == "" {
		c.Add("model", "is required: the name of a loaded model")
	}
	c.Digest("expect_model_digest", in.ExpectModelDigest)
	c.Digest("expect_prompt_digest", in.ExpectPromptDigest)
	switch input := in.GetInput().(type) {
	case nil:
		c.Add("input", "one of prompt, token_ids and chat is required")
	case *pb.GenerateRequest_Prompt:
		if input.Prompt == "" {
			c.Add("prompt", "is empty: give at least one character")
		}
	case *pb.GenerateRequest_TokenIds:
		if len(input.TokenIds.GetIds()) == 0 {
			c.Add("token_ids.ids", "is empty: give at least one token")
		}
	case *pb.GenerateRequest_Chat:
		c.chat(input.Chat)
	}
	if in.AcceptedAt != nil {
		if err := in.GetAcceptedAt().CheckValid(); err != nil {
			c.Add("accepted_at", "is no valid time: %v", err)
		}
	}
	if _, known := pb.KernelClass_name[int32(in.GetPromptClass())]; !known {
		c.Add("prompt_class", "is %d, which is no class", in.GetPromptClass())
	}
	c.sampling(in.GetSampling())
	c.stopping(in)
	c.response(in.GetResponse())
	c.parts(in)
	c.guided(in)
	c.resume(in)
	c.schedule(in)
	return c.violations
}

func (c *Checker) chat(chat *pb.Chat) {
	if len(chat.GetMessages()) == 0 {
		c.Add("chat.messages", "is empty: give at least one message")
	}
	for i, m := range chat.GetMessages() {
		if m.GetRole() == "" {
			c.Add(fmt.Sprintf("chat.messages[%d].role", i), "is required, such as \"user\"")
		}
	}
	c.kwargs(chat.GetTemplateKwargs())
	c.tools(chat)
}

func (c *Checker) sampling(s *pb.Sampling) {
	if s == nil {
		return
	}
	c.float("sampling.temperature", s.Temperature, 0, 100, false)
	if s.TopK != nil && s.GetTopK() < 0 {
		c.Add("sampling.top_k", "is %d, want [0, vocabulary]; 0 keeps all", s.GetTopK())
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
		c.Add("sampling.logit_bias", "has %d entries, at most %d", n, maxBiases)
	}
	for id, bias := range s.GetLogitBias() {
		if math.IsNaN(float64(bias)) || math.IsInf(float64(bias), 1) {
			c.Add(fmt.Sprintf("sampling.logit_bias[%d]", id), "is %v, want a finite number or -inf", bias)
		}
	}
	if s.AllowedTokens != nil && len(s.GetAllowedTokens().GetIds()) == 0 {
		c.Add("sampling.allowed_tokens.ids", "is empty: leave allowed_tokens unset to allow every token")
	}
}

func (c *Checker) stopping(in *pb.GenerateRequest) {
	s := in.GetStopping()
	if n := in.ContextLength; n != nil && (*n == 0 || *n > math.MaxInt32) {
		c.Add("context_length", "is %d, want [1, %d]: leave it unset for the worker's own", *n, math.MaxInt32)
	}
	if s == nil {
		return
	}
	c.int("stopping.max_tokens", s.MaxTokens, 0, math.MaxInt32)
	if s.MaxTokens != nil && s.GetMaxTokens() == 0 && !reportsPrompt(in.GetResponse()) {
		c.Add("stopping.max_tokens", "is 0: then nothing is generated, which is of use with response.prompt_logprobs or echo_prompt only")
	}
	limit := int32(math.MaxInt32)
	if s.MaxTokens != nil && s.GetMaxTokens() >= 0 {
		limit = s.GetMaxTokens()
	}
	c.int("stopping.min_tokens", s.MinTokens, 0, limit)
	if n := len(s.GetStop()); n > maxStops {
		c.Add("stopping.stop", "has %d strings, at most %d", n, maxStops)
	}
	for i, stop := range s.GetStop() {
		if len(stop) == 0 || len(stop) > maxStopBytes {
			c.Add(fmt.Sprintf("stopping.stop[%d]", i), "has %d bytes, want 1 to %d", len(stop), maxStopBytes)
		}
	}
	if n := len(s.GetStopTokenIds()); n > maxStopIDs {
		c.Add("stopping.stop_token_ids", "has %d ids, at most %d", n, maxStopIDs)
	}
	if len(s.GetStop()) > 0 && in.GetResponse().GetTokenIdsOnly() {
		c.Add("stopping.stop", "needs text, which response.token_ids_only leaves out: use stop_token_ids")
	}
}

func (c *Checker) response(r *pb.ResponseOptions) {
	if r == nil {
		return
	}
	c.int("response.output_candidates", r.OutputCandidates, 0, maxCandidates)
	c.int("response.prompt_logprobs", r.PromptLogprobs, 0, maxCandidates)
}

// checkAgainst returns the violations of a request that depend on its model.
func checkAgainst(in *pb.GenerateRequest, inst *model.Instance) []rpc.Violation {
	c, vocabulary := &Checker{}, inst.Facts.Vocabulary
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
				c.Add(fmt.Sprintf("sampling.logit_bias[%d]", id), "is no token id, want [0, %d)", vocabulary)
			}
		}
	}
	return c.violations
}

// resume checks the continuations that are resumed. Package generate checks their tokens.
func (c *Checker) resume(in *pb.GenerateRequest) {
	if len(in.GetResume()) == 0 {
		return
	}
	if s := in.GetSampling(); s == nil || s.Seed == nil {
		c.Add("sampling.seed", "is required with resume: give the one of the event `started`")
	}
	sequences := uint32(max(1, in.GetSampling().GetNumSequences()))
	entryOf := map[uint32]int{} // by output index
	for i, r := range in.GetResume() {
		field, index := fmt.Sprintf("resume[%d].output_index", i), r.GetOutputIndex()
		first, twice := entryOf[index]
		switch {
		case index >= sequences:
			c.Add(field, "is %d, want [0, %d): sampling.num_sequences is %d", index, sequences, sequences)
		case twice:
			c.Add(field, "is %d, as that of resume[%d] is: give each continuation once", index, first)
		default:
			entryOf[index] = i
		}
	}
}

// schedule checks the fields of fair queueing and of the prefix cache.
func (c *Checker) schedule(in *pb.GenerateRequest) {
	c.fairnessID(in.GetFairnessId())
	if n := len(in.GetCache().GetSalt()); n > maxSaltBytes {
		c.Add("cache.salt", "has %d bytes, at most %d", n, maxSaltBytes)
	}
}

func (c *Checker) fairnessID(id string) {
	if len(id) > maxFairnessID || strings.ContainsFunc(id, func(r rune) bool { return r < ' ' || r > '~' }) {
		c.Add("fairness_id", "want at most %d printable ASCII characters", maxFairnessID)
	}
}

// reportsPrompt reports whether the response has scores or tokens of the prompt itself.
func reportsPrompt(r *pb.ResponseOptions) bool {
	return r != nil && (r.PromptLogprobs != nil || r.GetEchoPrompt())
}

// Bounds of template_kwargs, as the contract states them.
const (
	maxKwargs     = 256      // values in all
	maxKwargDepth = 8        // the values of template_kwargs are at depth 1
	maxKwargBytes = 64 << 10 // names and texts
)

const kwargsField = "chat.template_kwargs"

// kwargs checks the variables that a chat passes to its template. It adds at most one violation.
func (c *Checker) kwargs(args *structpb.Struct) {
	for _, name := range slices.Sorted(maps.Keys(args.GetFields())) {
		if problem := template.NameProblem(name); problem != "" {
			c.Add(kwargsField, "has %q, which %s", name[:min(len(name), 64)], problem)
			return
		}
	}
	count := &kwargCount{}
	if count.mapping(args, 1); count.problem != "" {
		c.Add(kwargsField, "%s", count.problem)
	}
}

// kwargCount counts values and bytes, and stops at the first problem.
type kwargCount struct {
	values, bytes int
	problem       string
}

func (k *kwargCount) mapping(m *structpb.Struct, depth int) {
	for _, key := range slices.Sorted(maps.Keys(m.GetFields())) {
		k.bytes += len(key)
		if k.value(m.GetFields()[key], depth); k.problem != "" {
			return
		}
	}
}

func (k *kwargCount) value(v *structpb.Value, depth int) {
	k.values++
	switch kind := v.GetKind().(type) {
	case nil:
		k.problem = "has a value without a kind: want null, a number, a text, a truth value, a list or a mapping"
	case *structpb.Value_NumberValue:
		if math.IsNaN(kind.NumberValue) || math.IsInf(kind.NumberValue, 0) {
			k.problem = "has a number that is not finite"
		}
	case *structpb.Value_StringValue:
		k.bytes += len(kind.StringValue)
	}
	switch {
	case depth > maxKwargDepth:
		k.problem = "nests deeper than 8 levels"
	case k.values > maxKwargs:
		k.problem = "has more than 256 values in all"
	case k.bytes > maxKwargBytes:
		k.problem = "has more than 65536 bytes of names and texts"
	}
	if k.problem != "" {
		return
	}
	for _, item := range v.GetListValue().GetValues() {
		if k.value(item, depth+1); k.problem != "" {
			return
		}
	}
	k.mapping(v.GetStructValue(), depth+1)
}

// maxViolations bounds the violations of a status, because it travels in headers, which clients
// bound at about 8 KiB.
const maxViolations = 32

// Checker collects the violations of a request. The zero value has none.
type Checker struct{ violations []rpc.Violation }

// Err returns a status with every violation, and nil without violations.
func (c *Checker) Err() error { return invalid(c.violations) }

// Add adds a violation. Beyond maxViolations it adds none.
func (c *Checker) Add(field, format string, args ...any) {
	switch n := len(c.violations); {
	case n > maxViolations:
		return
	case n == maxViolations:
		format, args = "is wrong too; what else is wrong is not listed: correct these first", nil
	}
	c.violations = append(c.violations, rpc.Violation{Field: field, Description: fmt.Sprintf(format, args...)})
}

// float checks that an optional field is in a range. NaN and the infinities are in no range.
func (c *Checker) float(field string, v *float32, low, high float32, openLow bool) {
	if v == nil {
		return
	}
	bracket := "["
	if openLow {
		bracket = "("
	}
	if !(*v >= low && *v <= high) || (openLow && *v == low) {
		c.Add(field, "is %v, want a number in %s%v, %v]", *v, bracket, low, high)
	}
}

// int checks that an optional field is in [low, high].
func (c *Checker) int(field string, v *int32, low, high int32) {
	if v != nil && (*v < low || *v > high) {
		c.Add(field, "is %d, want [%d, %d]", *v, low, high)
	}
}

// Digest checks an optional digest.
func (c *Checker) Digest(field string, v *string) {
	if v == nil {
		return
	}
	if raw, err := hex.DecodeString(*v); err != nil || len(raw) != 32 || strings.ToLower(*v) != *v {
		c.Add(field, "is no digest: want 64 lower-case hex digits")
	}
}

// ids checks token ids against a vocabulary.
func (c *Checker) ids(field string, ids []uint32, vocabulary int) {
	bad := slices.IndexFunc(ids, func(id uint32) bool { return id >= uint32(vocabulary) })
	if bad >= 0 {
		c.Add(fmt.Sprintf("%s[%d]", field, bad), "is %d, want [0, %d)", ids[bad], vocabulary)
	}
}
