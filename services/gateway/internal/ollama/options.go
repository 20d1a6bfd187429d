package ollama

import (
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/gateway/internal/strictjson"
	"github.com/millrace/millrace/services/gateway/internal/translate"
)

// options are the model options of a request. A nil field is unset.
type options struct {
	Temperature      *float32        `json:"temperature"`
	TopK             *int32          `json:"top_k"`
	TopP             *float32        `json:"top_p"`
	MinP             *float32        `json:"min_p"`
	TypicalP         *float32        `json:"typical_p"`
	Seed             *translate.Seed `json:"seed"`
	NumPredict       *int32          `json:"num_predict"`
	Stop             *texts          `json:"stop"`
	RepeatPenalty    *float32        `json:"repeat_penalty"`
	RepeatLastN      *int32          `json:"repeat_last_n"`
	PresencePenalty  *float32        `json:"presence_penalty"`
	FrequencyPenalty *float32        `json:"frequency_penalty"`

	// Refused.
	Mirostat *int32 `json:"mirostat"`

	// Skipped: they are decided when a model is loaded, or belong to refused ones.
	NumCtx          strictjson.Raw `json:"num_ctx"`
	NumKeep         strictjson.Raw `json:"num_keep"`
	NumBatch        strictjson.Raw `json:"num_batch"`
	NumGPU          strictjson.Raw `json:"num_gpu"`
	MainGPU         strictjson.Raw `json:"main_gpu"`
	NumThread       strictjson.Raw `json:"num_thread"`
	LowVRAM         strictjson.Raw `json:"low_vram"`
	F16KV           strictjson.Raw `json:"f16_kv"`
	VocabOnly       strictjson.Raw `json:"vocab_only"`
	UseMMap         strictjson.Raw `json:"use_mmap"`
	UseMLock        strictjson.Raw `json:"use_mlock"`
	NUMA            strictjson.Raw `json:"numa"`
	PenalizeNewline strictjson.Raw `json:"penalize_newline"`
	TFSZ            strictjson.Raw `json:"tfs_z"`
	MirostatTau     strictjson.Raw `json:"mirostat_tau"`
	MirostatEta     strictjson.Raw `json:"mirostat_eta"`
}

// texts is a string or a list of strings.
type texts []string

// DecodeJSON implements strictjson.Value.
func (s *texts) DecodeJSON(d *strictjson.Decoder) error {
	if d.Kind() == strictjson.String {
		*s = make([]string, 1)
		return d.Decode(&(*s)[0])
	}
	return d.Decode((*[]string)(s))
}

// fields are the JSON paths of fields of the contract whose path differs.
var fields = map[string]string{
	"sampling.temperature": "options.temperature", "sampling.top_k": "options.top_k", "sampling.top_p": "options.top_p",
	"sampling.min_p": "options.min_p", "sampling.typical_p": "options.typical_p", "sampling.repetition_penalty": "options.repeat_penalty",
	"sampling.penalty_window": "options.repeat_last_n", "sampling.presence_penalty": "options.presence_penalty",
	"sampling.frequency_penalty": "options.frequency_penalty", "stopping.max_tokens": "options.num_predict", "stopping.stop": "options.stop",
	"token_ids": "prompt", "token_ids.ids": "prompt", "text": "prompt", "texts": "input",
}

// apply sets the sampling of a request, and records what has no effect.
func (o *options) apply(x *httpapi.Exchange, in *pb.GenerateRequest) error {
	if err := translate.Refuse(translate.Field{
		Param: "options.mirostat", Set: o.Mirostat != nil && *o.Mirostat != 0, Why: "the servers do not have this sampling: leave it out",
	}); err != nil {
		return err
	}
	for _, f := range []struct {
		name  string
		value strictjson.Raw
	}{
		{"num_ctx", o.NumCtx}, {"num_keep", o.NumKeep}, {"num_batch", o.NumBatch}, {"num_gpu", o.NumGPU}, {"main_gpu", o.MainGPU},
		{"num_thread", o.NumThread}, {"low_vram", o.LowVRAM}, {"f16_kv", o.F16KV}, {"vocab_only", o.VocabOnly}, {"use_mmap", o.UseMMap},
		{"use_mlock", o.UseMLock}, {"numa", o.NUMA}, {"penalize_newline", o.PenalizeNewline}, {"tfs_z", o.TFSZ},
		{"mirostat_tau", o.MirostatTau}, {"mirostat_eta", o.MirostatEta},
	} {
		if f.value != nil {
			if err := x.Skip("options." + f.name); err != nil {
				return err
			}
		}
	}
	if o.Seed != nil && o.Seed.Text == "-1" { // Ollama's other way to say any
		o.Seed = nil
	}
	o.Seed = o.Seed.OrDrawn()
	in.Sampling = &pb.Sampling{
		Temperature: o.Temperature, TopK: o.TopK, TopP: o.TopP, MinP: o.MinP, TypicalP: o.TypicalP, Seed: &o.Seed.Bits,
		RepetitionPenalty: o.RepeatPenalty, PenaltyWindow: o.RepeatLastN, PresencePenalty: o.PresencePenalty, FrequencyPenalty: o.FrequencyPenalty,
	}
	in.Stopping = &pb.Stopping{}
	if o.Stop != nil {
		in.Stopping.Stop = *o.Stop
	}
	switch n := o.NumPredict; {
	case n == nil || *n == -1 || *n == -2: // as many as the context holds
	case *n < 1:
		return httpapi.Invalid("options.num_predict", "is %d: must be at least 1, or -1 for no limit", *n)
	default:
		in.Stopping.MaxTokens = n
	}
	return nil
}
