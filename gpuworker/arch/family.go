package arch

import (
	"maps"
	"slices"

	"github.com/millrace/millrace/gpuworker/engine"
)

// family is one architecture.
type family struct {
	// models names the published models, as the README lists them.
	models string
	// describe reads the keys of a file and returns the description of its decoder. The reader
	// keeps the first error, after which the description is ignored.
	describe func(*reader) engine.ModelDesc
}

// families are the architectures by general.architecture. Each has a file of its own.
var families = map[string]family{
	"deepseek2":       {"DeepSeek V2, V3 and R1, Kimi K2, GLM-4.7-Flash", deepseek2},
	"dots1":           {"dots.llm1", dots1},
	"ernie4_5-moe":    {"ERNIE 4.5 with experts", ernie4_5moe},
	"exaone4":         {"EXAONE 4", exaone4},
	"gemma-embedding": {"EmbeddingGemma", gemmaEmbedding},
	"gemma2":          {"Gemma 2", gemma2},
	"gemma3":          {"Gemma 3", gemma3},
	"gemma4":          {"Gemma 4", gemma4},
	"glm4":            {"GLM-4", glm4},
	"glm4moe":         {"GLM-4.5 to 4.7", glm4moe},
	"gpt-oss":         {"gpt-oss", gptOSS},
	"granite":         {"Granite", granite},
	"granitemoe":      {"Granite with experts", granitemoe},
	"lfm2":            {"LFM2", lfm2},
	"lfm2moe":         {"LFM2 with experts", lfm2moe},
	"llama":           {"Llama 1 to 3, Mistral, Mixtral, TinyLlama, SmolLM", llama},
	"minimax-m2":      {"MiniMax-M2", minimaxM2},
	"mistral3":        {"Ministral 3, Devstral", mistral3},
	"olmo2":           {"OLMo 2 and 3", olmo2},
	"olmoe":           {"OLMoE", olmoe},
	"phi3":            {"Phi-3, Phi-4", phi3},
	"qwen2":           {"Qwen 1.5 to 2.5", qwen2},
	"qwen2moe":        {"Qwen 1.5 and 2 with experts", qwen2moe},
	"qwen3":           {"Qwen 3", qwen3},
	"qwen35":          {"Qwen 3.5 and 3.6", qwen35},
	"qwen35moe":       {"Qwen 3.5 and 3.6 with experts", qwen35moe},
	"qwen3moe":        {"Qwen 3 with experts", qwen3moe},
	"qwen3next":       {"Qwen 3 Next", qwen3next},
	"seed_oss":        {"Seed-OSS", seedOSS},
	"smollm3":         {"SmolLM 3", smollm3},
}

// Architectures lists the values of general.architecture that Parse accepts, sorted.
func Architectures() []string { return slices.Sorted(maps.Keys(families)) }
