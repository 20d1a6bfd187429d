"""Maps a GGUF file's tensors and hyperparameters to the models of transformers."""

import re

import numpy as np

OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
ROPE_FACTORS = "rope_freqs.weight"

# The context extension of Llama 3, of which a file stores only the factors.
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}

# Metadata that changes what a model computes and is not supported here.
REFUSED = ("attention.scale", "rope.scaling.type", "attention.sliding_window", "expert_count")


class Layout:
    """The shape of a file's model. architecture is llama, qwen2 or qwen3."""

    def __init__(self, metadata, names):
        self.architecture = metadata["general.architecture"]
        if self.architecture not in ("llama", "qwen2", "qwen3"):
            raise ValueError(f"architecture {self.architecture}: want llama, qwen2 or qwen3")
        of = {key.split(".", 1)[1]: value for key, value in metadata.items() if key.startswith(self.architecture + ".")}
        for key in REFUSED:
            if of.get(key):
                raise ValueError(f"{self.architecture}.{key} is {of[key]}: not built")
        self.heads, self.kv_heads, self.head = of["attention.head_count"], of["attention.head_count_kv"], of["attention.key_length"]
        if of["rope.dimension_count"] != self.head:
            raise ValueError(f"rotations over {of['rope.dimension_count']} of {self.head} dimensions: not built")
        self.base = of["rope.freq_base"]
        self.tied = "output.weight" not in names
        self.extended = ROPE_FACTORS in names
        self.config = {
            "vocab_size": of["vocab_size"],
            "hidden_size": of["embedding_length"],
            "intermediate_size": of["feed_forward_length"],
            "num_hidden_layers": of["block_count"],
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head,
            "max_position_embeddings": of["context_length"],
            "rms_norm_eps": of["attention.layer_norm_rms_epsilon"],
            "tie_word_embeddings": self.tied,
        }

    def rope(self):
        """Returns the RoPE parameters under transformers' names, without the base."""
        return LLAMA3 if self.extended else {"rope_type": "default"}

    def frequencies(self, factors):
        """Returns the RoPE frequencies in float64; factors are the file's, or None."""
        plain = float(self.base) ** (-np.arange(0, self.head, 2) / self.head)
        return plain if factors is None else plain / factors.astype(np.float64)

    def parameters(self, name):
        """Returns the parameters that a tensor of the file fills: two if the head is the embedding, none for factors."""
        if name == ROPE_FACTORS:
            return []
        stem, kind = name.rsplit(".", 1)
        if stem in OUTER:
            tied = ["lm_head.weight"] if stem == "token_embd" and self.tied else []
            return [f"{OUTER[stem]}.{kind}", *tied]
        if (found := re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)) and found[2] in INNER:
            return [f"model.layers.{found[1]}.{INNER[found[2]]}.{kind}"]
        raise ValueError(f"tensor {name} has no place in {self.architecture}")

    def arranged(self, name, values):
        """A tensor's rows in transformers' order. It rotates dimension i of a head with i + head/2, as files of Qwen do; files
        of llama keep the two that rotate together side by side."""
        heads = {"attn_q": self.heads, "attn_k": self.kv_heads}.get(name.split(".")[-2])
        if self.architecture != "llama" or heads is None:
            return values
        pairs = values.reshape(heads, self.head // 2, 2, -1)
        return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)
