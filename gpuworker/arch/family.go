package arch

import (
	"maps"
	"slices"

	"github.com/millrace/millrace/gpuworker/engine"
)

// family is one architecture: it reads the keys of a file and returns the description of its
// decoder. The reader keeps the first error, after which the description is ignored.
type family func(*reader) engine.ModelDesc

// families are the architectures by general.architecture. Each has a file of its own.
var families = map[string]family{
	"exaone4":  exaone4,
	"gemma2":   gemma2,
	"gemma3":   gemma3,
	"gemma4":   gemma4,
	"glm4":     glm4,
	"granite":  granite,
	"llama":    llama,
	"mistral3": mistral3,
	"olmo2":    olmo2,
	"phi3":     phi3,
	"qwen2":    qwen2,
	"qwen3":    qwen3,
	"seed_oss": seedOSS,
	"smollm3":  smollm3,
}

// Architectures lists the values of general.architecture that Parse accepts, sorted.
func Architectures() []string { return slices.Sorted(maps.Keys(families)) }
