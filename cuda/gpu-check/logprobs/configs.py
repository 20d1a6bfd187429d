"""Describes a GGUF file's model to transformers: the class, and every field of its configuration that changes results.

One function a family, by general.architecture. It takes the metadata without the architecture's prefix and the names of tensors,
and returns a Config. Fields that all families have are in common().
"""

import dataclasses
import math

LONG, SHORT, FACTORS = "rope_factors_long.weight", "rope_factors_short.weight", "rope_freqs.weight"

# The context extension of Llama 3, of which a file stores only the factors.
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


@dataclasses.dataclass
class Config:
    """kind is the class without ForCausalLM, config the configuration's class if it is not kind with Config. fields are the
    configuration's, as transformers 5.17 takes them."""

    kind: str
    fields: dict
    config: str = ""


def first(value):
    """Returns a number, or that of layer 0."""
    return value[0] if isinstance(value, list) else value


def common(of, names):
    heads = first(of["attention.head_count"])
    return {
        "vocab_size": of["vocab_size"],
        "hidden_size": of["embedding_length"],
        "intermediate_size": first(of["feed_forward_length"]),
        "num_hidden_layers": of["block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": first(of.get("attention.head_count_kv", heads)),
        "head_dim": width(of),
        "max_position_embeddings": of["context_length"],
        "rms_norm_eps": of["attention.layer_norm_rms_epsilon"],
        "tie_word_embeddings": "output.weight" not in names,
        "rope_parameters": rope(of, names),
        # The presets are outside of small vocabularies.
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    }


def width(of):
    return of.get("attention.key_length", of["embedding_length"] // first(of["attention.head_count"]))


def rope(of, names):
    """The rotation of all layers, or of those without a window. The lists of LongRoPE are those of the file; see Layout."""
    out = {"rope_type": "default", "rope_theta": float(of.get("rope.freq_base", 10000.0))}
    part = of.get("rope.dimension_count", width(of)) / width(of)
    if part != 1:
        out["partial_rotary_factor"] = part
    kind, factor = of.get("rope.scaling.type"), float(of.get("rope.scaling.factor", 1))
    magnitude = of.get("rope.scaling.attn_factor", 0) or None
    original = of.get("rope.scaling.original_context_length", of["context_length"])
    if LONG in names:
        out |= {"rope_type": "longrope", "original_max_position_embeddings": original, "factor": of["context_length"] / original}
        if magnitude:
            out["attention_factor"] = magnitude
    elif kind == "yarn":
        out |= {
            "rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original,
            "beta_fast": of.get("rope.scaling.yarn_beta_fast", 32.0), "beta_slow": of.get("rope.scaling.yarn_beta_slow", 1.0),
            "mscale": 1.0, "mscale_all_dim": of.get("rope.scaling.yarn_log_multiplier", 0.0),
        }
    elif factor != 1 and kind != "none":
        out |= {"rope_type": "linear", "factor": factor}
    return out


def local_rope(of, base):
    """The rotation of layers with a window: as wide, with another base, not stretched."""
    return {"rope_type": "default", "rope_theta": float(of.get("rope.freq_base_swa", base))}


def layer_types(of, period):
    """Which layers have the window: the file's list, or all but every period-th layer."""
    pattern = of.get("attention.sliding_window_pattern", period)
    local = pattern if isinstance(pattern, list) else [i % pattern != pattern - 1 for i in range(of["block_count"])]
    return ["sliding_attention" if each else "full_attention" for each in local]


def biases(names):
    return "blk.0.attn_q.bias" in names


def experts(of, count):
    """The experts of most families; count is what the configuration calls their number."""
    return {
        count: of["expert_count"], "num_experts_per_tok": of["expert_used_count"],
        "moe_intermediate_size": of.get("expert_feed_forward_length", first(of["feed_forward_length"])),
    }


def grouped(of):
    """Options of dots.llm1 and GLM-4.5: one group, a scale, a shared expert, and dense layers before the mixtures."""
    return {
        **experts(of, "n_routed_experts"), "n_shared_experts": of["expert_shared_count"],
        "n_group": of.get("expert_group_count", 1), "topk_group": of.get("expert_group_used_count", 1),
        "norm_topk_prob": of.get("expert_weights_norm", True), "routed_scaling_factor": of.get("expert_weights_scale", 0.0) or 1.0,
        "first_k_dense_replace": of.get("leading_dense_block_count", 0),
    }


def llama(of, names):
    window = of.get("attention.sliding_window", 0)
    if of.get("expert_count"):
        return Config("Mixtral", common(of, names) | {
            "num_local_experts": of["expert_count"], "num_experts_per_tok": of["expert_used_count"], "sliding_window": window or None,
        })
    if window:
        return Config("Mistral", common(of, names) | {"sliding_window": window})
    return Config("Llama", common(of, names) | {"attention_bias": biases(names)})


def mistral3(of, names):
    fields = common(of, names)
    fields["rope_parameters"].setdefault("original_max_position_embeddings", of["context_length"])
    fields["rope_parameters"]["llama_4_scaling_beta"] = of.get("attention.temperature_scale", 0.0)
    return Config("Ministral3", fields | {"sliding_window": None})


def qwen2(of, names):
    return Config("Qwen2", common(of, names) | {"use_sliding_window": False})


def qwen3(of, names):
    return Config("Qwen3", common(of, names) | {"attention_bias": biases(names), "use_sliding_window": False})


def qwen2moe(of, names):
    return Config("Qwen2Moe", common(of, names) | experts(of, "num_experts") | {
        "shared_expert_intermediate_size": of["expert_shared_feed_forward_length"], "norm_topk_prob": of.get("expert_weights_norm", False),
        "decoder_sparse_step": 1, "mlp_only_layers": [], "use_sliding_window": False,
    })


def qwen3moe(of, names):
    return Config("Qwen3Moe", common(of, names) | experts(of, "num_experts") | {
        "norm_topk_prob": of.get("expert_weights_norm", True), "decoder_sparse_step": 1, "mlp_only_layers": [],
        "attention_bias": biases(names), "use_sliding_window": False,
    })


def gemma(of, names, layers_of_27b):
    """The scale of scores is that of the head's width, in the 27B models that of hidden/heads."""
    scalar = of["embedding_length"] // of["attention.head_count"] if of["block_count"] == layers_of_27b else width(of)
    return common(of, names) | {"query_pre_attn_scalar": scalar, "hidden_activation": "gelu_pytorch_tanh"}


def gemma2(of, names):
    return Config("Gemma2", gemma(of, names, 46) | {
        "sliding_window": of.get("attention.sliding_window", 4096), "layer_types": layer_types(of, 2),
        "attn_logit_softcapping": of.get("attn_logit_softcapping", 50.0), "final_logit_softcapping": of.get("final_logit_softcapping", 30.0),
    })


def gemma3(of, names):
    fields = gemma(of, names, 62)
    return Config("Gemma3", fields | {
        "sliding_window": of["attention.sliding_window"], "layer_types": layer_types(of, 6),
        "attn_logit_softcapping": None, "final_logit_softcapping": of.get("final_logit_softcapping"),
        "rope_parameters": {"full_attention": fields["rope_parameters"], "sliding_attention": local_rope(of, 10000.0)},
    }, "Gemma3TextConfig")


def gemma_embedding(of, names):
    """The window is the file's: transformers halves it, and counts the position itself on both sides."""
    out = gemma3(of, names)
    out.fields |= {"use_bidirectional_attention": True, "final_logit_softcapping": None}
    return out


def gemma4(of, names):
    """key_length is the width of heads in layers without a window. Their rotation covers a part of the head: factors of the others
    are infinite in effect, and Layout reads the part."""
    fields, kinds = common(of, names), layer_types(of, 6)
    if kinds[-1] != "full_attention":  # transformers would change it
        raise ValueError("gemma4 with a window in the last layer: not built")
    heads, shared = of["attention.head_count_kv"], of.get("attention.shared_kv_layers", 0)
    heads = heads if isinstance(heads, list) else [heads] * of["block_count"]
    widths = of["feed_forward_length"] if isinstance(of["feed_forward_length"], list) else [of["feed_forward_length"]] * of["block_count"]
    full, local = kinds.index("full_attention"), kinds.index("sliding_attention")
    return Config("Gemma4", fields | {
        "num_key_value_heads": heads[local], "num_global_key_value_heads": heads[full],
        "head_dim": of["attention.key_length_swa"], "global_head_dim": of["attention.key_length"],
        "attention_k_eq_v": f"blk.{full}.attn_v.weight" not in names,
        "hidden_activation": "gelu_pytorch_tanh", "final_logit_softcapping": of.get("final_logit_softcapping"),
        "sliding_window": of["attention.sliding_window"], "layer_types": kinds,
        "hidden_size_per_layer_input": of.get("embedding_length_per_layer_input", 0), "vocab_size_per_layer_input": of["vocab_size"],
        "num_kv_shared_layers": shared, "use_double_wide_mlp": shared > 0 and widths[-1] == 2 * widths[0],
        **besides_experts(of),
        "rope_parameters": {
            "full_attention": {**fields["rope_parameters"], "rope_type": "proportional"}, "sliding_attention": local_rope(of, 10000.0),
        },
    }, "Gemma4TextConfig")


def besides_experts(of):
    """The experts of Gemma 4 26B, whose sum is added to its dense MLP."""
    if not of.get("expert_count"):
        return {"enable_moe_block": False}
    return {
        "enable_moe_block": True, "num_experts": of["expert_count"], "top_k_experts": of["expert_used_count"],
        "moe_intermediate_size": of["expert_feed_forward_length"],
    }


def olmo2(of, names):
    """OLMo 3 if the file has a window. Only layers without one are stretched."""
    fields = common(of, names)
    if not of.get("attention.sliding_window"):
        return Config("Olmo2", fields)
    fields |= {"sliding_window": of["attention.sliding_window"], "layer_types": layer_types(of, 4)}
    stretched = fields["rope_parameters"]
    each = {"full_attention": stretched, "sliding_attention": local_rope(of, stretched["rope_theta"])}
    return Config("Olmo3", fields | {"rope_parameters": each})


def olmoe(of, names):
    """Experts are as wide as the configuration's MLP."""
    return Config("Olmoe", common(of, names) | {
        "num_experts": of["expert_count"], "num_experts_per_tok": of["expert_used_count"],
        "norm_topk_prob": of.get("expert_weights_norm", False), "attention_bias": False, "clip_qkv": None,
    })


def smollm3(of, names):
    layers = of["block_count"]
    return Config("SmolLM3", common(of, names) | {
        "no_rope_layers": [int(i % 4 != 3) for i in range(layers)], "use_sliding_window": False, "layer_types": ["full_attention"] * layers,
        "attention_bias": biases(names),
    })


def granite(of, names):
    return Config("Granite", scaled(of, names))


def granitemoe(of, names):
    """Experts are as wide as the configuration's MLP. One class has a shared expert, the other has none."""
    fields = scaled(of, names) | {"num_local_experts": of["expert_count"], "num_experts_per_tok": of["expert_used_count"]}
    if shared := of.get("expert_shared_feed_forward_length"):
        return Config("GraniteMoeShared", fields | {"shared_intermediate_size": shared})
    return Config("GraniteMoe", fields)


def scaled(of, names):
    return common(of, names) | {
        "embedding_multiplier": of.get("embedding_scale", 1.0), "residual_multiplier": of.get("residual_scale", 1.0),
        "logits_scaling": of["logit_scale"], "attention_multiplier": of.get("attention.scale", 1 / math.sqrt(width(of))),
        "attention_bias": biases(names),
    }


def exaone4(of, names):
    window = of.get("attention.sliding_window")
    kinds = layer_types(of, 4) if window else ["full_attention"] * of["block_count"]
    return Config("Exaone4", common(of, names) | {"sliding_window": window, "layer_types": kinds})


def seed_oss(of, names):
    return Config("SeedOss", common(of, names) | {
        "attention_bias": biases(names), "attention_out_bias": False, "attention_dropout": 0.0, "residual_dropout": 0.0,
    })


def phi3(of, names):
    return Config("Phi3", common(of, names) | {
        "sliding_window": of.get("attention.sliding_window") or None,
        "original_max_position_embeddings": of.get("rope.scaling.original_context_length", of["context_length"]),
    })


def glm4(of, names):
    fields = common(of, names)
    fields["rope_parameters"].setdefault("partial_rotary_factor", 1.0)  # else transformers rotates half a head
    return Config("Glm4", fields | {"attention_bias": biases(names)})


def glm4moe(of, names):
    fields = common(of, names)
    fields["rope_parameters"].setdefault("partial_rotary_factor", 1.0)  # else transformers rotates half a head
    fields["num_hidden_layers"] -= of.get("nextn_predict_layers", 0)
    return Config("Glm4Moe", fields | grouped(of) | {"attention_bias": biases(names), "use_qk_norm": "blk.0.attn_q_norm.weight" in names})


def dots1(of, names):
    return Config("Dots1", common(of, names) | grouped(of) | {"attention_bias": biases(names), "sliding_window": None})


def deepseek2(of, names):
    """V2 if the weights of experts are a softmax, else V3. Its heads are those of keys and values made from the latent, and its mscale
    is mscale_all_dim, of which the file has a tenth. The class of V2 does not scale scores by it, so its models here have no YaRN."""
    fields, rotated = common(of, names), of["rope.dimension_count"]
    rope_fields = fields["rope_parameters"]
    rope_fields.pop("partial_rotary_factor", None)
    sigmoid = of.get("expert_gating_func", 1) == 2
    if rope_fields["rope_type"] == "yarn":
        if not sigmoid:
            raise ValueError("deepseek2 with YaRN and a softmax of experts: transformers scales its scores otherwise")
        rope_fields |= {"mscale": 10 * rope_fields["mscale_all_dim"], "mscale_all_dim": 10 * rope_fields["mscale_all_dim"]}
    fields["num_hidden_layers"] -= of.get("nextn_predict_layers", 0)
    fields |= grouped(of) | {
        "num_key_value_heads": fields["num_attention_heads"], "head_dim": rotated, "kv_lora_rank": of["attention.kv_lora_rank"],
        "q_lora_rank": of.get("attention.q_lora_rank") or None, "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": of["attention.key_length_mla"] - rotated, "v_head_dim": of["attention.value_length_mla"],
        "norm_topk_prob": of.get("expert_weights_norm", False), "attention_bias": False,
    }
    if sigmoid:
        return Config("DeepseekV3", fields | {"rope_interleave": True})
    return Config("DeepseekV2", fields | {"topk_method": "group_limited_greedy" if fields["n_group"] > 1 else "greedy"})


def ernie4_5_moe(of, names):
    return Config("Ernie4_5_Moe", common(of, names) | {
        "moe_num_experts": of["expert_count"], "moe_k": of["expert_used_count"], "moe_intermediate_size": of["expert_feed_forward_length"],
        "moe_num_shared_experts": of.get("expert_shared_count", 0), "moe_layer_start_index": of.get("leading_dense_block_count", 0),
        "moe_layer_interval": 1, "use_bias": False,
    })


def minimax_m2(of, names):
    """Experts are as wide as the configuration's MLP. Its class makes the rotated part of a head from rotary_dim, whatever
    rope_parameters says."""
    return Config("MiniMaxM2", common(of, names) | {
        "intermediate_size": of.get("expert_feed_forward_length", of["feed_forward_length"]),
        "num_local_experts": of["expert_count"], "num_experts_per_tok": of["expert_used_count"],
        "rotary_dim": of.get("rope.dimension_count", width(of)),
    })


def gpt_oss(of, names):
    """Experts are as wide as the configuration's MLP. The borders of YaRN are not rounded."""
    fields = common(of, names)
    if fields["rope_parameters"]["rope_type"] == "yarn":
        fields["rope_parameters"]["truncate"] = False
    return Config("GptOss", fields | {
        "intermediate_size": of["expert_feed_forward_length"], "num_local_experts": of["expert_count"],
        "num_experts_per_tok": of["expert_used_count"], "sliding_window": of["attention.sliding_window"], "layer_types": layer_types(of, 2),
        "attention_bias": biases(names),
    })


def next_fields(of, names):
    """What Qwen 3 Next and 3.5 have in common: gated delta nets, and attention in every fourth layer."""
    layers = of["block_count"] - of.get("nextn_predict_layers", 0)
    every = of.get("full_attention_interval", 4)
    recurrent = of.get("attention.recurrent_layers") or [(i + 1) % every != 0 for i in range(layers)]
    fields = common({"feed_forward_length": of.get("expert_feed_forward_length")} | of, names)
    fields["rope_parameters"].setdefault("partial_rotary_factor", 1.0)  # else transformers rotates a quarter of a head
    return fields | {
        "num_hidden_layers": layers, "layer_types": ["linear_attention" if each else "full_attention" for each in recurrent[:layers]],
        "linear_conv_kernel_dim": of["ssm.conv_kernel"], "linear_key_head_dim": of["ssm.state_size"],
        "linear_num_key_heads": of["ssm.group_count"], "linear_num_value_heads": of["ssm.time_step_rank"],
        "linear_value_head_dim": of["ssm.inner_size"] // of["ssm.time_step_rank"], "attention_bias": False,
    }


def shared(of):
    return {**experts(of, "num_experts"), "shared_expert_intermediate_size": of["expert_shared_feed_forward_length"]}


def qwen3next(of, names):
    return Config("Qwen3Next", next_fields(of, names) | shared(of) | {
        "norm_topk_prob": of.get("expert_weights_norm", True), "decoder_sparse_step": 1, "mlp_only_layers": [],
    })


def qwen35(of, names):
    """The text of the model. Tokens of a text have the same position in each section."""
    fields = next_fields(of, names)
    fields["rope_parameters"]["mrope_section"] = of["rope.dimension_sections"][:3]
    return Config("Qwen3_5", fields, "Qwen3_5TextConfig")


def qwen35moe(of, names):
    return Config("Qwen3_5Moe", qwen35(of, names).fields | shared(of), "Qwen3_5MoeTextConfig")


def lfm2(of, names):
    """Layers without key-value heads are short convolutions. The width of the MLP is the file's, and not adjusted."""
    heads = of["attention.head_count_kv"]
    return Config("Lfm2", common(of, names) | {
        "num_key_value_heads": max(heads), "layer_types": ["full_attention" if each else "conv" for each in heads],
        "norm_eps": of["attention.layer_norm_rms_epsilon"], "conv_L_cache": of["shortconv.l_cache"], "conv_bias": False,
        "block_auto_adjust_ff_dim": False,
    })


def lfm2moe(of, names):
    return Config("Lfm2Moe", lfm2(of, names).fields | experts(of, "num_experts") | {
        "num_dense_layers": of["leading_dense_block_count"], "norm_topk_prob": of.get("expert_weights_norm", True),
        "use_expert_bias": any(name.endswith(".exp_probs_b.bias") for name in names), "routed_scaling_factor": 1.0,
    })


FAMILIES = {each.__name__: each for each in (
    deepseek2, dots1, exaone4, gemma2, gemma3, gemma4, glm4, glm4moe, granite, granitemoe, lfm2, lfm2moe, llama, mistral3, olmo2, olmoe,
    phi3, qwen2, qwen2moe, qwen3, qwen35, qwen35moe, qwen3moe, qwen3next, seed_oss, smollm3,
)} | {"ernie4_5-moe": ernie4_5_moe, "gemma-embedding": gemma_embedding, "gpt-oss": gpt_oss,
     "minimax-m2": minimax_m2}
