package arch

import "strings"

// Blocks that the architectures in unbuilt need and no engine computes.
const (
	experts      = "a mixture of experts"
	latent       = "latent attention"
	latentMoE    = "latent attention and a mixture of experts"
	recurrent    = "layers with a recurrent state"
	layerNorms   = "layer norms"
	besides      = "layer norms, and an MLP that reads the input of attention"
	besidesMoE   = "layer norms, an MLP that reads the input of attention, and a mixture of experts"
	distances    = "biases of scores by distance" + others
	encoderNorms = "layer norms" + others
	manyStreams  = "several residual streams"

	others = " (models that embed texts and run are EmbeddingGemma and decoders such as Qwen3-Embedding)"
)

// unbuilt says of architectures that files are published in and that no family reads, which block
// is missing.
var unbuilt = index(map[string]string{
	experts: "afmoe arctic bailingmoe bailingmoe2 dbrx deepseek dots1 ernie4_5-moe exaone-moe glm4moe gpt-oss granitemoe grok " +
		"grovemoe hunyuan-moe llama4 mimo2 minimax-m2 olmoe phimoe qwen2moe qwen3moe qwen3vlmoe smallthinker",
	latent:    "minicpm3 plm",
	latentMoE: "deepseek2 deepseek2-ocr deepseek32 glm-dsa mistral4",
	recurrent: "arwkv7 falcon-h1 granitehybrid jamba kimi-linear lfm2 lfm2moe mamba mamba2 nemotron_h nemotron_h_moe plamo2 " +
		"qwen35 qwen35moe qwen3next rwkv6 rwkv6qwen2 rwkv7",
	layerNorms:   "bloom codeshell falcon gpt2 gptj gptneox jais mpt nemotron olmo orion phi2 stablelm starcoder starcoder2",
	besides:      "cohere2 command-r",
	besidesMoE:   "cohere2moe",
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
	if block, ok := unbuilt[architecture]; ok {
		return unsupported("architecture %q needs %s, which no engine computes yet: want one of %v", architecture, block, Architectures())
	}
	return unsupported("architecture %.64q, want one of %v", architecture, Architectures())
}
