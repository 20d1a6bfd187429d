"""Maps a GGUF file's tensors to the parameters of transformers' models."""

import re

import numpy as np

import configs

OUTER = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "token_embd_norm": "embedding_norm",
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
SHARED_ONE = {
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
DELTA = {
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_dt": "linear_attn.dt_bias",
    "ssm_a": "linear_attn.A_log",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
    "post_attention_norm": "post_attention_layernorm",
}
DELTA_APART = {
    **DELTA,
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_alpha": "linear_attn.in_proj_a",
}
SHORT = {
    "attn_norm": "operator_norm",
    "attn_q_norm": "self_attn.q_layernorm",
    "attn_k_norm": "self_attn.k_layernorm",
    "attn_output": "self_attn.out_proj",
    "shortconv.in_proj": "conv.in_proj",
    "shortconv.conv": "conv.conv",
    "shortconv.out_proj": "conv.out_proj",
    "ffn_norm": "ffn_norm",
    "ffn_gate": "feed_forward.w1",
    "ffn_up": "feed_forward.w3",
    "ffn_down": "feed_forward.w2",
}
LATENT = {
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_k_b": "self_attn.kv_b_proj",
    "attn_v_b": "self_attn.kv_b_proj",
}
PAIRS = (("ffn_gate_exps", "ffn_up_exps"), ("ffn_gate_shexp", "ffn_up_shexp"), ("attn_qkv", "attn_gate"), ("attn_k_b", "attn_v_b"))
# Parameters that are no module's weight.
BARE = (
    "layer_scalar", "e_score_correction_bias", ".experts.gate_up_proj", ".experts.down_proj", "self_attn.sinks", ".expert_bias",
    "linear_attn.dt_bias", "linear_attn.A_log",
)
OTHER = {
    "deepseek2": {**EXPERTS, **SHARED, **CHOICE, **LATENT},
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
    "lfm2": SHORT,
    "lfm2moe": {
        **SHORT,
        **{part: place.replace("mlp.", "feed_forward.") for part, place in EXPERTS.items()},
        "exp_probs_b": "feed_forward.expert_bias",
    },
    "llama": EXPERTS,
    "minimax-m2": {**EXPERTS, "exp_probs_b": "mlp.e_score_correction_bias"},
    "olmo2": ENDS,
    "olmoe": EXPERTS,
    "phi3": {**FUSED, "attn_qkv": "self_attn.qkv_proj"},
    "qwen2moe": {**EXPERTS, **SHARED_ONE},
    "qwen35": DELTA_APART,
    "qwen35moe": {**DELTA_APART, **EXPERTS, **SHARED_ONE},
    "qwen3moe": EXPERTS,
    "qwen3next": {
        **DELTA,
        **EXPERTS,
        **SHARED_ONE,
        "attn_qkv": "linear_attn.in_proj_qkvz",
        "attn_gate": "linear_attn.in_proj_qkvz",
        "ssm_ba": "linear_attn.in_proj_ba",
    },
    "seed_oss": {"post_attention_norm": "post_attention_layernorm"},
}
# Files of these keep the two dimensions of a head that rotate together side by side; transformers has them half a head apart.
PAIRED = ("granite", "granitemoe", "llama", "mistral3", "smollm3")
# Files of these have the one that the network adds to the weights of norms.
ADDED = ("gemma-embedding", "gemma2", "gemma3", "qwen35", "qwen35moe", "qwen3next")
# Files of these have value heads in the order in which key heads repeat; transformers has those of a key head together.
TILED = ("qwen35", "qwen35moe")
# Metadata that changes what a model computes and is not supported here, for families that do not read it.
REFUSED = {
    "attention.scale": ("granite", "granitemoe"),
    "expert_count": tuple(name for name, inner in OTHER.items() if "ffn_gate_inp" in inner),
    "expert_group_count": ("deepseek2", "dots1", "glm4moe"),
    "expert_weights_scale": ("deepseek2", "dots1", "glm4moe"),
}
# Files of these store a row of numbers as a vector.
ROWS = {
    "ernie4_5-moe": "exp_probs_b", "qwen2moe": "ffn_gate_inp_shexp", "qwen35moe": "ffn_gate_inp_shexp", "qwen3next": "ffn_gate_inp_shexp",
}
# The layers after the pooling, in their order, which transformers' models do not have.
DENSE = ("dense_2.weight", "dense_3.weight")
# transformers has the matrices of these experts turned around, and a gate and its up side by side.
TURNED = ("gpt-oss",)
# A frequency with a larger factor does not rotate.
STILL = 1e20


def divided(name):
    """The parts of a tensor's name: its place in the file, its last part, and its kind, "" if the name has none."""
    stem, kind = (name, "") if name.endswith(".ssm_a") else name.rsplit(".", 1)
    return stem, stem.split(".")[-1], kind


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
        self.key_heads, self.value_heads, self.state = (of.get(f"ssm.{key}", 0) for key in ("group_count", "time_step_rank", "state_size"))
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
        stem, _, kind = divided(name)
        if stem == "output":
            return ["lm_head.weight"]
        if stem in OUTER:
            tied = ["lm_head.weight"] if stem == "token_embd" and self.tied else []
            return [f"{OUTER[stem]}.{kind}", *tied]
        if (found := re.match(r"blk\.(\d+)\.", stem)) and int(found[1]) in self.predicting:
            return []
        if (found := re.fullmatch(r"blk\.(\d+)\.([\w.]+)", stem)) and found[2] in self.inner:
            if int(found[1]) >= self.first_shared and found[2] in ("attn_k", "attn_v", "attn_k_norm"):
                return []
            if whole := self.inner.get(f"{found[2]}.{kind}"):
                return [f"layers.{found[1]}.{whole}"]
            place = f"layers.{found[1]}.{self.inner[found[2]]}"
            return [place if place.endswith(BARE) else f"{place}.{kind}"]
        raise ValueError(f"tensor {name} has no place in {self.architecture}")

    def half(self, name):
        """Which half of its parameter a tensor fills, None if it fills all: 0 is a gate, 1 its up."""
        _, part, _ = divided(name)
        for pair in PAIRS:
            if part in pair and self.inner.get(pair[0]) == self.inner.get(pair[1]):
                return pair.index(part)
        return None

    def joined(self, place, gate, up):
        """The parameter of a gate and its up, or of queries, keys and values and the gate of what a delta net returns: each key
        head has its part of them together. Or that of the keys and values that heads make of a latent, whose keys are turned."""
        if place.endswith("kv_b_proj.weight"):
            return np.concatenate((gate.swapaxes(1, 2), up), axis=1).reshape(-1, up.shape[-1])
        if place.endswith("in_proj_qkvz.weight"):
            keys = (len(gate) - len(up)) // 2
            parts = *np.split(gate, (keys, 2 * keys)), up
            return np.concatenate([x.reshape(self.key_heads, -1, x.shape[-1]) for x in parts], axis=1).reshape(-1, gate.shape[-1])
        if self.architecture in TURNED:
            return np.stack((gate, up), axis=-1).reshape(*gate.shape[:-1], -1)
        return np.concatenate((gate, up), axis=-2)

    def arranged(self, name, values):
        """A tensor as transformers has it: its rows in another order, one row for a vector, a stack with its matrices turned around,
        or without the row that the network adds."""
        _, part, _ = divided(name)
        if self.architecture in TILED:
            values = self.grouped(part, values)
        if part in ("ssm_conv1d", "conv"):
            return values[:, None, :]
        if part == "ssm_a":
            return np.log(-values)
        if self.architecture in TURNED and part.endswith("_exps") and values.ndim == 3:
            return np.ascontiguousarray(values.swapaxes(1, 2))
        if part == ROWS.get(self.architecture):
            return values.reshape(1, -1)
        if self.architecture in ADDED and part.endswith("norm") and part != "ssm_norm":
            return values - np.float32(1)
        heads = {"attn_q": self.heads, "attn_k": self.kv_heads}.get(part)
        if self.architecture not in PAIRED or heads is None:
            return values
        pairs = values.reshape(heads, self.head // 2, 2, -1)
        return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)

    def grouped(self, part, values):
        """A tensor whose rows or columns of value heads are in the order of their key heads."""
        if part == "ssm_out":
            return np.ascontiguousarray(self.by_key_head(values.T).T)
        if part in ("attn_qkv", "ssm_conv1d"):
            keys = 2 * self.key_heads * self.state
            return np.concatenate((values[:keys], self.by_key_head(values[keys:])))
        return self.by_key_head(values) if part in ("attn_gate", "ssm_alpha", "ssm_beta", "ssm_dt", "ssm_a") else values

    def by_key_head(self, rows):
        heads = rows.reshape(self.value_heads // self.key_heads, self.key_heads, -1)
        return np.ascontiguousarray(heads.swapaxes(0, 1)).reshape(rows.shape)
