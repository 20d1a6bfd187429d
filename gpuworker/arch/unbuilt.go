package arch

import "strings"

// Blocks that the architectures in unbuilt need and no engine computes.
const (
	gated        = "gates of the attention's output"
	narrowValues = "values of another width than keys"
	besidesDense = "experts and a dense MLP whose sum is scaled"
	readBefore   = "experts that read the input of the layer"
	chunks       = "experts of a group that share a part"
	lateNorms    = "norms of heads after the rotation"
	routedBefore = "a router that reads the input of the layer"
	weighted     = "experts whose inputs are weighted"
	sections     = "a rotation in sections"
	indexed      = "attention to keys that an indexer chooses"
	wholeLatents = "attention over a latent whose keys and values lie in one tensor"
	warmLatents  = "attention over a latent with a temperature"
	recurrent    = "layers with a recurrent state of another kind"
	layerNorms   = "layer norms"
	besides      = "layer norms, and an MLP that reads the input of attention"
	distances    = "biases of scores by distance" + others
	encoderNorms = "layer norms" + others
	manyStreams  = "several residual streams"

	// comparison is the missing part of a family whose blocks are built.
	comparison = "a comparison with another implementation"

	others = " (models that embed texts and run are EmbeddingGemma and decoders such as Qwen3-Embedding)"
)

// unbuilt says of architectures that files are published in and that no family reads, which block
// is missing.
var unbuilt = index(map[string]string{
	comparison:   "bailingmoe bailingmoe2 deepseek deepseek2-ocr eurobert exaone-moe neo-bert",
	gated:        "afmoe",
	narrowValues: "mimo2",
	besidesDense: "grok",
	readBefore:   "arctic",
	chunks:       "grovemoe",
	lateNorms:    "hunyuan-moe",
	routedBefore: "smallthinker",
	weighted:     "llama4",
	sections:     "qwen3vlmoe",
	indexed:      "deepseek32 glm-dsa",
	wholeLatents: "minicpm3 plm",
	warmLatents:  "mistral4",
	recurrent:    "arwkv7 falcon-h1 granitehybrid jamba kimi-linear mamba mamba2 nemotron_h nemotron_h_moe plamo2 rwkv6 rwkv6qwen2 rwkv7",
	layerNorms:   "bloom codeshell dbrx falcon gpt2 gptj gptneox jais mpt nemotron olmo orion phi2 phimoe stablelm starcoder starcoder2",
	besides:      "cohere2 cohere2moe command-r",
	distances:    "t5 t5encoder",
	encoderNorms: "bert jina-bert-v2 jina-bert-v3 modern-bert nomic-bert nomic-bert-moe",
	manyStreams:  "gemma3n",
})

func index(names map[string]string) map[string]string {
	out := map[string]string{}
	for block, list := range names {
		for name := range strings.FieldsSeq(list) {
			out[name] = block
		}
	}
	return out
}

// unknown is the error of an architecture that no family reads.
func unknown(architecture string) error {
	block, ok := unbuilt[architecture]
	switch {
	case block == comparison:
		return unsupported("architecture %q lacks %s here: want one of %v", architecture, block, Architectures())
	case ok:
		return unsupported("architecture %q needs %s, which no engine computes yet: want one of %v", architecture, block, Architectures())
	}
	return unsupported("architecture %.64q, want one of %v", architecture, Architectures())
}
