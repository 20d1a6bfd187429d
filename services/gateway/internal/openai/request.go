package openai

import (
	"strconv"

	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/gateway/internal/strictjson"
	"github.com/millrace/millrace/services/gateway/internal/target"
	"github.com/millrace/millrace/services/gateway/internal/translate"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// parameters are the fields that chat completions and completions share. A nil field is unset.
type parameters struct {
	Model         string         `json:"model"`
	Stream        bool           `json:"stream"`
	StreamOptions *streamOptions `json:"stream_options"`

	MaxTokens        *int32             `json:"max_tokens"`
	N                *int32             `json:"n"`
	Temperature      *float32           `json:"temperature"`
	TopP             *float32           `json:"top_p"`
	FrequencyPenalty *float32           `json:"frequency_penalty"`
	PresencePenalty  *float32           `json:"presence_penalty"`
	LogitBias        map[string]float32 `json:"logit_bias"`
	Seed             *translate.Seed    `json:"seed"`
	Stop             *stop              `json:"stop"`

	User             *string           `json:"user"`
	SafetyIdentifier *string           `json:"safety_identifier"`
	ServiceTier      *string           `json:"service_tier"`
	PromptCacheKey   *string           `json:"prompt_cache_key"`
	CacheRetention   *string           `json:"prompt_cache_retention"`
	CacheOptions     strictjson.Raw    `json:"prompt_cache_options"`
	Metadata         map[string]string `json:"metadata"`
	ResponseFormat   *responseFormat   `json:"response_format"`

	// Extensions of vLLM, and Timeout, which some clients send as well.
	TopK              *int32             `json:"top_k"`
	MinP              *float32           `json:"min_p"`
	TypicalP          *float32           `json:"typical_p"`
	RepetitionPenalty *float32           `json:"repetition_penalty"`
	MinTokens         *int32             `json:"min_tokens"`
	IgnoreEOS         *bool              `json:"ignore_eos"`
	StopTokenIDs      []uint32           `json:"stop_token_ids"`
	AllowedTokenIDs   []uint32           `json:"allowed_token_ids"`
	IncludeStop       *bool              `json:"include_stop_str_in_output"`
	SkipSpecialTokens *bool              `json:"skip_special_tokens"`
	CacheSalt         *string            `json:"cache_salt"`
	StructuredOutputs *structuredOutputs `json:"structured_outputs"`
	Timeout           *float64           `json:"timeout"`
}

type streamOptions struct {
	IncludeUsage       bool  `json:"include_usage"`
	IncludeObfuscation *bool `json:"include_obfuscation"`
}

// stop is a string or a list of strings.
type stop struct {
	texts []string
	one   bool
}

// DecodeJSON implements strictjson.Value.
func (s *stop) DecodeJSON(d *strictjson.Decoder) error {
	if s.one = d.Kind() == strictjson.String; s.one {
		s.texts = make([]string, 1)
		return d.Decode(&s.texts[0])
	}
	return d.Decode(&s.texts)
}

// outputs returns the number of continuations. The server refuses numbers that it does not accept,
// after this.
func (p *parameters) outputs() int {
	if p.N == nil {
		return 1
	}
	return int(*p.N)
}

// maxOutputs bounds the continuations of one prompt, as the contract does.
const maxOutputs = 16

// request returns the contract's request without its input. It applies to x what concerns the call
// itself.
func (p *parameters) request(x *httpapi.Exchange) (*pb.GenerateRequest, error) {
	if p.Model == "" {
		return nil, httpapi.Invalid("model", "is missing: GET /v1/models lists the models")
	}
	x.Annotate("model", p.Model)
	if n := p.outputs(); n < 1 || n > maxOutputs {
		return nil, httpapi.Invalid("n", "is %d: must be in [1, %d]", n, maxOutputs)
	}
	if err := p.call(x); err != nil {
		return nil, err
	}
	guided, err := p.guided()
	if err != nil {
		return nil, err
	}
	p.Seed = p.Seed.OrDrawn()
	in := &pb.GenerateRequest{
		RequestId: &x.ID, Model: p.Model, Guided: guided, Sampling: &pb.Sampling{
			Temperature: p.Temperature, TopP: p.TopP, TopK: p.TopK, MinP: p.MinP, TypicalP: p.TypicalP,
			RepetitionPenalty: p.RepetitionPenalty, PresencePenalty: p.PresencePenalty, FrequencyPenalty: p.FrequencyPenalty,
			Seed: &p.Seed.Bits, NumSequences: p.N,
		},
		Stopping: &pb.Stopping{
			MaxTokens: p.MaxTokens, MinTokens: p.MinTokens, StopTokenIds: p.StopTokenIDs, IncludeStopInOutput: p.IncludeStop,
			IgnoreEos: p.IgnoreEOS,
		},
	}
	if p.TopK != nil && *p.TopK == -1 { // vLLM's other way to say all
		in.Sampling.TopK = new(int32)
	}
	if p.AllowedTokenIDs != nil {
		in.Sampling.AllowedTokens = &pb.TokenIds{Ids: p.AllowedTokenIDs}
	}
	if p.Stop != nil {
		in.Stopping.Stop = p.Stop.texts
	}
	if p.CacheSalt != nil {
		in.Cache = &pb.CacheOptions{Salt: p.CacheSalt}
	}
	if err := p.bias(in.Sampling); err != nil {
		return nil, err
	}
	translate.SetTenant(in, p.SafetyIdentifier, p.User)
	return in, translate.SetPriority(in, p.ServiceTier)
}

// bias sets the logit biases.
func (p *parameters) bias(s *pb.Sampling) error {
	if len(p.LogitBias) == 0 {
		return nil
	}
	s.LogitBias = make(map[int32]float32, len(p.LogitBias))
	for text, bias := range p.LogitBias {
		id, err := strconv.ParseInt(text, 10, 32)
		if err != nil || id < 0 || strconv.FormatInt(id, 10) != text {
			return httpapi.Refuse(invalidArgument, "logit_bias", "logit_bias has the field %.32q: its fields are token ids", text)
		}
		s.LogitBias[int32(id)] = bias
	}
	return nil
}

// call applies what concerns the call itself, and records what has no effect.
func (p *parameters) call(x *httpapi.Exchange) error {
	if p.Timeout != nil {
		if err := x.SetTimeout(*p.Timeout, "timeout"); err != nil {
			return err
		}
	}
	if p.PromptCacheKey != nil {
		x.SetRoutingKey(*p.PromptCacheKey)
	}
	if p.SkipSpecialTokens != nil && !*p.SkipSpecialTokens {
		return httpapi.Unsupported("skip_special_tokens", "is false: special tokens are never in the text, but stop_token_ids and logprobs show them")
	}
	if p.StreamOptions != nil && !p.Stream {
		return httpapi.Invalid("stream_options", "is set, and stream is not true")
	}
	for _, f := range []struct {
		param string
		set   bool
	}{
		{"metadata", p.Metadata != nil}, {"prompt_cache_retention", p.CacheRetention != nil}, {"prompt_cache_options", p.CacheOptions != nil},
		{"stream_options.include_obfuscation", p.StreamOptions != nil && p.StreamOptions.IncludeObfuscation != nil && *p.StreamOptions.IncludeObfuscation},
	} {
		if f.set {
			if err := x.Skip(f.param); err != nil {
				return err
			}
		}
	}
	return nil
}

// includeUsage reports whether the stream ends with the usage.
func (p *parameters) includeUsage() bool {
	return p.StreamOptions != nil && p.StreamOptions.IncludeUsage
}

// paths returns the JSON paths of the contract's fields that depend on the request.
func (p *parameters) paths() map[string]string {
	own := map[string]string{
		translate.SchemaField: schemaPath, "guided.regex": "structured_outputs.regex", "guided.grammar": "structured_outputs.grammar",
		"guided.choice.options": "structured_outputs.choice",
	}
	if p.StructuredOutputs != nil {
		own[translate.SchemaField] = "structured_outputs.json"
	}
	if p.SafetyIdentifier != nil && *p.SafetyIdentifier != "" {
		own["fairness_id"] = "safety_identifier"
	}
	return own
}

// start begins the generation of a request, and records the fields that the server has not honoured.
func (d *Dialect) start(x *httpapi.Exchange, in *pb.GenerateRequest, own map[string]string) (*target.Generation, error) {
	tenant := "user"
	if named, ok := own["fairness_id"]; ok {
		tenant = named
	}
	g, err := translate.Start(x, d.client, in, tenant)
	return g, failure(err, own)
}
