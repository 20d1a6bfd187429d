"""Maps a GGUF file's tensors to the parameters of transformers' models."""

import re

import numpy as np

import configs

OUTER = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "per_layer_token_embd": "embed_tokens_per_layer",
    "per_layer_model_proj": "per_layer_model_projection",
    "per_layer_proj_norm": "per_layer_projection_norm",
}
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
# What families call otherwise, or have besides. A key with the kind of a tensor, such as ".bias", is of that kind alone, and its
# value is the parameter's whole name.
ENDS = {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
BOTH_ENDS = {**ENDS, "ffn_norm": "pre_feedforward_layernorm"}
FUSED = {"ffn_up": "mlp.gate_up_proj"}
# Stacks of experts: transformers has gate and up in one, the rows of a gate before those of its up.
EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_up_proj",
    "ffn_up_exps": "mlp.experts.gate_up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
}
SHARED = {
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
}
CHOICE = {"exp_probs_b": "mlp.gate.e_score_correction_bias"}
PAIRS = (("ffn_gate_exps", "ffn_up_exps"), ("ffn_gate_shexp", "ffn_up_shexp"))
# Parameters that are no module's weight.
BARE = ("layer_scalar", "e_score_correction_bias", ".experts.gate_up_proj", ".experts.down_proj", "self_attn.sinks")
OTHER = {
    "dots1": {**EXPERTS, **SHARED, **CHOICE},
    "ernie4_5-moe": {**EXPERTS, **SHARED, "exp_probs_b": "mlp.gate.moe_statics.e_score_correction_bias"},
    "exaone4": ENDS,
    "gemma-embedding": BOTH_ENDS,
    "gemma2": BOTH_ENDS,
    "gemma3": BOTH_ENDS,
    "gemma4": {
        **BOTH_ENDS,
        "inp_gate": "per_layer_input_gate",
        "proj": "per_layer_projection",
        "post_norm": "post_per_layer_input_norm",
        "layer_output_scale": "layer_scalar",
        "ffn_gate_inp": "router.proj",
        "ffn_gate_inp.scale": "router.scale",
        "ffn_gate_up_exps": "experts.gate_up_proj",
        "ffn_gate_exps": "experts.gate_up_proj",
        "ffn_up_exps": "experts.gate_up_proj",
        "ffn_down_exps": "experts.down_proj",
        "ffn_down_exps.scale": "router.per_expert_scale",
        "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
        "post_ffw_norm_1": "post_feedforward_layernorm_1",
        "post_ffw_norm_2": "post_feedforward_layernorm_2",
    },
    "glm4": {**FUSED, "post_attention_norm": "post_self_attn_layernorm", "post_ffw_norm": "post_mlp_layernorm"},
    "glm4moe": {**EXPERTS, **SHARED, **CHOICE, "post_attention_norm": "post_attention_layernorm"},
    "gpt-oss": {
        **EXPERTS,
        "ffn_gate_inp": "mlp.router",
        "ffn_gate_exps.bias": "mlp.experts.gate_up_proj_bias",
        "ffn_up_exps.bias": "mlp.experts.gate_up_proj_bias",
        "ffn_down_exps.bias": "mlp.experts.down_proj_bias",
        "attn_sinks": "self_attn.sinks",
        "post_attention_norm": "post_attention_layernorm",
    },
    "granitemoe": {
        "ffn_gate_inp": "block_sparse_moe.router",
        "ffn_gate_exps": "block_sparse_moe.experts.gate_up_proj",
        "ffn_up_exps": "block_sparse_moe.experts.gate_up_proj",
        "ffn_down_exps": "block_sparse_moe.experts.down_proj",
        "ffn_gate_shexp": "shared_mlp.input_linear",
        "ffn_up_shexp": "shared_mlp.input_linear",
        "ffn_down_shexp": "shared_mlp.output_linear",
    },
    "llama": EXPERTS,
    "minimax-m2": {**EXPERTS, "exp_probs_b": "mlp.e_score_correction_bias"},
    "olmo2": ENDS,
    "olmoe": EXPERTS,
    "phi3": {**FUSED, "attn_qkv": "self_attn.qkv_proj"},
    "qwen2moe": {
        **EXPERTS,
        "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
        "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
        "ffn_up_shexp": "mlp.shared_expert.up_proj",
        "ffn_down_shexp": "mlp.shared_expert.down_proj",
    },
    "qwen3moe": EXPERTS,
    "seed_oss": {"post_attention_norm": "post_attention_layernorm"},
}
# Files of these keep the two dimensions of a head that rotate together side by side; transformers has them half a head apart.
PAIRED = ("granite", "granitemoe", "llama", "mistral3", "smollm3")
# Files of these have the one that the network adds to the weights of norms.
ADDED = ("gemma-embedding", "gemma2", "gemma3")
# Metadata that changes what a model computes and is not supported here, for families that do not read it.
REFUSED = {
    "attention.scale": ("granite", "granitemoe"),
    "expert_count": tuple(name for name, inner in OTHER.items() if "ffn_gate_inp" in inner),
    "expert_group_count": ("dots1", "glm4moe"),
    "expert_weights_scale": ("dots1", "glm4moe"),
}
# Files of these store a row of numbers as a vector.
ROWS = {"ernie4_5-moe": "exp_probs_b", "qwen2moe": "ffn_gate_inp_shexp"}
# The layers after the pooling, in their order, which transformers' models do not have.
DENSE = ("dense_2.weight", "dense_3.weight")
# transformers has the matrices of these experts turned around, and a gate and its up side by side.
TURNED = ("gpt-oss",)
# A frequency with a larger factor does not rotate.
STILL = 1e20


class Layout:
    """The shape of a file's model. read returns the numbers of a tensor by its name."""

    def __init__(self, metadata, names, read=None):
        self.architecture = metadata["general.architecture"]
        if self.architecture not in configs.FAMILIES:
            raise ValueError(f"architecture {self.architecture}: want one of {', '.join(configs.FAMILIES)}")
        of = {key.split(".", 1)[1]: value for key, value in metadata.items() if key.startswith(self.architecture + ".")}
        for key, families in REFUSED.items():
            if of.get(key) and self.architecture not in families:
                raise ValueError(f"{self.architecture}.{key} is {of[key]}: not built")
        self.heads, self.kv_heads, self.head = of["attention.head_count"], of["attention.head_count_kv"], configs.width(of)
        self.base = float(of.get("rope.freq_base", 10000.0))
        self.tied = "output.weight" not in names
        self.inner = {**INNER, **OTHER.get(self.architecture, {})}
        self.predicting = range(of["block_count"] - of.get("nextn_predict_layers", 0), of["block_count"])
        shared = of.get("attention.shared_kv_layers", 0)
        self.first_shared = of["block_count"] - shared if shared else np.inf
        self.model = configs.FAMILIES[self.architecture](of, names)
        # The factors that transformers' configuration cannot state: the frequencies are then set.
        self.factors = None
        if configs.LONG in names:
            self.model.fields["rope_parameters"] |= {
                "long_factor": read(configs.LONG).astype(float).tolist(), "short_factor": read(configs.SHORT).astype(float).tolist(),
            }
        elif configs.FACTORS in names:
            self.take(read(configs.FACTORS))

    def take(self, factors):
        """Takes the file's factors as what they say: Gemma 4's part of a head, Llama 3's extension, or any others."""
        rope = self.model.fields["rope_parameters"]
        if self.architecture == "gemma4":
            rope["full_attention"]["partial_rotary_factor"] = float(np.mean(factors < STILL))
        elif rope["rope_type"] != "default":
            raise ValueError(f"factors of frequencies together with rope scaling {rope['rope_type']}: not built")
        else:
            self.factors = factors.astype(np.float64)
            if np.allclose(self.factors, self.llama3(), rtol=1e-4):
                rope |= configs.LLAMA3

    def llama3(self):
        """The factors of Llama 3's context extension."""
        turns = configs.LLAMA3["original_max_position_embeddings"] * self.plain() / (2 * np.pi)
        low, high, factor = (configs.LLAMA3[key] for key in ("low_freq_factor", "high_freq_factor", "factor"))
        stays = np.clip((turns - low) / (high - low), 0, 1)
        return 1 / ((1 - stays) / factor + stays)

    def plain(self):
        return self.base ** (-np.arange(0, self.head, 2) / self.head)

    def frequencies(self):
        """The frequencies in float64 where the file has factors for them, else None."""
        return None if self.factors is None else self.plain() / self.factors

    def parameters(self, name):
        """Returns the parameters that a tensor of the file fills, below the decoder but for lm_head: two if the head is the
        embedding, none for factors, for layers after the pooling, for keys and values that nothing reads, and in layers that
        predict further tokens."""
        if name in (configs.FACTORS, configs.LONG, configs.SHORT, *DENSE):
            return []
        stem, kind = name.rsplit(".", 1)
        if stem == "output":
            return ["lm_head.weight"]
        if stem in OUTER:
            tied = ["lm_head.weight"] if stem == "token_embd" and self.tied else []
            return [f"{OUTER[stem]}.{kind}", *tied]
        if (found := re.match(r"blk\.(\d+)\.", stem)) and int(found[1]) in self.predicting:
            return []
        if (found := re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)) and found[2] in self.inner:
            if int(found[1]) >= self.first_shared and found[2] in ("attn_k", "attn_v", "attn_k_norm"):
                return []
            if whole := self.inner.get(f"{found[2]}.{kind}"):
                return [f"layers.{found[1]}.{whole}"]
            place = f"layers.{found[1]}.{self.inner[found[2]]}"
            return [place if place.endswith(BARE) else f"{place}.{kind}"]
        raise ValueError(f"tensor {name} has no place in {self.architecture}")

    def half(self, name):
        """Which half of its parameter a tensor fills, None if it fills all: 0 is a gate, 1 its up."""
        part = name.split(".")[-2]
        for pair in PAIRS:
            if part in pair and self.inner.get(pair[0]) == self.inner.get(pair[1]):
                return pair.index(part)
        return None

    def joined(self, gate, up):
        """The parameter of a gate and its up."""
        if self.architecture in TURNED:
            return np.stack((gate, up), axis=-1).reshape(*gate.shape[:-1], -1)
        return np.concatenate((gate, up), axis=-2)

    def arranged(self, name, values):
        """A tensor as transformers has it: its rows in another order, one row for a vector, a stack with its matrices turned around,
        or without the row that the network adds."""
        part = name.split(".")[-2]
        if self.architecture in TURNED and part.endswith("_exps") and values.ndim == 3:
            return np.ascontiguousarray(values.swapaxes(1, 2))
        if part == ROWS.get(self.architecture):
            return values.reshape(1, -1)
        if self.architecture in ADDED and part.endswith("norm"):
            return values - np.float32(1)
        heads = {"attn_q": self.heads, "attn_k": self.kv_heads}.get(part)
        if self.architecture not in PAIRED or heads is None:
            return values
        pairs = values.reshape(heads, self.head // 2, 2, -1)
        return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)
