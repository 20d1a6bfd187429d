"""Tests of the parts that need neither torch nor a GPU. Run by `python3 -m unittest discover -s cuda/gpu-check/logprobs -p '*_test.py'`."""

import json
import os
import struct
import tempfile
import unittest

import numpy as np

import gguf_file
import verdict
from answer import Answer
from configs import LLAMA3, LONG, SHORT
from layout import Layout


def text(s):
    return struct.pack("<Q", len(s)) + s.encode()


def gguf(pairs, tensors):
    """A file's bytes. pairs are (key, type, packed value), tensors (name, dims, type, bytes)."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs))
    head += b"".join(text(key) + struct.pack("<I", kind) + value for key, kind, value in pairs)
    data = b""
    for name, dims, kind, raw in tensors:
        head += text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, len(data))
        data += raw + bytes(-len(raw) % 32)
    return head + bytes(-len(head) % 32) + data


def opened(pairs, tensors):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.gguf")
        with open(path, "wb") as file:
            file.write(gguf(pairs, tensors))
        return gguf_file.File(path)


def f16(raw):
    return struct.unpack("<e", raw)[0]


def plain_q4_k(block):
    """Dequantises one block, one weight at a time."""
    d, least, packed, quants = f16(block[:2]), f16(block[2:4]), block[4:16], block[16:]
    weights = []
    for i in range(256):
        run = i // 32
        if run < 4:
            scale, minimum = packed[run] & 63, packed[run + 4] & 63
        else:
            scale = packed[run + 4] & 15 | packed[run - 4] >> 6 << 4
            minimum = packed[run + 4] >> 4 | packed[run] >> 6 << 4
        byte = quants[32 * (run // 2) + i % 32]
        weights.append(d * scale * (byte >> 4 if run % 2 else byte & 15) - least * minimum)
    return weights


class FileTest(unittest.TestCase):
    def test_metadata_of_every_type(self):
        file = opened([("a", 4, struct.pack("<I", 7)), ("b", 6, struct.pack("<f", 0.5)), ("c", 8, text("llama")),
                       ("d", 9, struct.pack("<IQ", 8, 2) + text("x") + text("")), ("e", 7, b"\1"), ("f", 11, struct.pack("<q", -3))], [])
        self.assertEqual(file.metadata, {"a": 7, "b": 0.5, "c": "llama", "d": ["x", ""], "e": True, "f": -3})

    def test_floats_are_what_was_written(self):
        values = np.array([[0.0, -1.5, 2.0], [1e-3, 65504, -6e-8]])
        bf16 = [0x3F80, 0xC040, 0x0001]
        file = opened([], [("a", (3, 2), 0, values.astype("<f4").tobytes()), ("b", (3, 2), 1, values.astype("<f2").tobytes()),
                           ("c", (3,), 30, struct.pack("<3H", *bf16))])
        read = dict(file.read_all())
        np.testing.assert_array_equal(read["a"], values.astype(np.float32))
        np.testing.assert_array_equal(read["b"], values.astype(np.float16).astype(np.float32))
        np.testing.assert_array_equal(read["c"], np.array([1, -3, 2.0**-133], np.float32))

    def test_quantised_weights_are_what_each_block_says(self):
        random = np.random.default_rng(1)
        eight = [struct.pack("<e", 0.01 * i - 0.02) + random.bytes(32) for i in range(6)]
        four = [struct.pack("<ee", 0.01 * (i + 1), 0.1 * i) + random.bytes(140) for i in range(4)]
        file = opened([], [("eight", (64, 3), 8, b"".join(eight)), ("four", (512, 2), 12, b"".join(four))])
        want = [f16(block[:2]) * q for block in eight for q in struct.unpack("<32b", block[2:])]
        np.testing.assert_allclose(file.read("eight"), np.reshape(want, (3, 64)), rtol=1e-6)
        want = [weight for block in four for weight in plain_q4_k(block)]
        np.testing.assert_allclose(file.read("four"), np.reshape(want, (2, 512)), rtol=1e-5, atol=1e-5)

    def test_other_types_are_refused_by_name(self):
        file = opened([], [("blk.0.attn_q.weight", (256,), 14, bytes(210))])
        with self.assertRaisesRegex(ValueError, "blk.0.attn_q.weight is of type 14"):
            file.read("blk.0.attn_q.weight")


def metadata(architecture, **changed):
    of = {"block_count": 1, "context_length": 64, "embedding_length": 12, "feed_forward_length": 8, "vocab_size": 10,
          "attention.head_count": 3, "attention.head_count_kv": 1, "attention.key_length": 8, "rope.dimension_count": 8,
          "rope.freq_base": 500000.0, "attention.layer_norm_rms_epsilon": 1e-5, **changed}
    return {"general.architecture": architecture, **{f"{architecture}.{key}": value for key, value in of.items()}}


WINDOW = {"attention.sliding_window": 24}
EXPERTS = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 5}


def gemma4(**changed):
    return metadata("gemma4", **WINDOW, **{
        "block_count": 2, "attention.sliding_window_pattern": [True, False], "attention.head_count_kv": [3, 1], "attention.key_length_swa": 4,
        **changed})


def gpt_oss(**changed):
    return metadata("gpt-oss", **WINDOW, **EXPERTS, **changed)


def rotated(head, angles, side_by_side):
    """Rotates a head whose pairs are adjacent, or half a head apart."""
    half = len(head) // 2
    a, b = (head[0::2], head[1::2]) if side_by_side else (head[:half], head[half:])
    return a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)


class LayoutTest(unittest.TestCase):
    def test_heads_of_llama_rotate_as_their_file_means_it(self):
        layout, random = Layout(metadata("llama"), []), np.random.default_rng(2)
        for name, heads in ("blk.0.attn_q.weight", 3), ("blk.0.attn_k.weight", 1):
            weight, x, angles = random.normal(size=(8 * heads, 12)), random.normal(size=12), random.normal(size=4)
            arranged = layout.arranged(name, weight)
            for head in range(heads):
                rows = slice(8 * head, 8 * head + 8)
                for want, got in zip(rotated(weight[rows] @ x, angles, True), rotated(arranged[rows] @ x, angles, False)):
                    np.testing.assert_allclose(got, want, rtol=1e-12)

    def test_biases_move_with_their_rows(self):
        layout = Layout(metadata("llama"), [])
        weight = np.repeat(np.arange(24.0)[:, None], 12, axis=1)
        np.testing.assert_array_equal(layout.arranged("blk.0.attn_q.bias", weight[:, 0]), layout.arranged("blk.0.attn_q.weight", weight)[:, 0])

    def test_all_else_stays(self):
        weight = np.random.default_rng(3).normal(size=(24, 12))
        for architecture, name in ("llama", "blk.0.attn_v.weight"), ("llama", "blk.0.attn_output.weight"), ("qwen3", "blk.0.attn_q.weight"):
            np.testing.assert_array_equal(Layout(metadata(architecture), []).arranged(name, weight), weight)

    def test_places(self):
        tied, untied = Layout(metadata("qwen3"), []), Layout(metadata("qwen3"), ["output.weight"])
        self.assertEqual(tied.parameters("token_embd.weight"), ["embed_tokens.weight", "lm_head.weight"])
        self.assertEqual(untied.parameters("token_embd.weight"), ["embed_tokens.weight"])
        self.assertEqual(untied.parameters("output.weight"), ["lm_head.weight"])
        self.assertEqual(tied.parameters("blk.11.attn_k.bias"), ["layers.11.self_attn.k_proj.bias"])
        self.assertEqual(tied.parameters("rope_freqs.weight"), [])
        for name in "blk.0.ffn_gate_exps.weight", "blk.x.attn_q.weight", "position_embd.weight", "blk.0.post_ffw_norm.weight":
            with self.assertRaisesRegex(ValueError, name):
                tied.parameters(name)

    def test_families_call_tensors_otherwise(self):
        for architecture, name, want in (
            ("gemma2", "ffn_norm.weight", "pre_feedforward_layernorm.weight"), ("olmo2", "post_attention_norm.weight", "post_attention_layernorm.weight"),
            ("glm4", "ffn_up.weight", "mlp.gate_up_proj.weight"), ("glm4", "post_attention_norm.weight", "post_self_attn_layernorm.weight"),
            ("phi3", "attn_qkv.weight", "self_attn.qkv_proj.weight"), ("seed_oss", "post_attention_norm.weight", "post_attention_layernorm.weight"),
        ):
            self.assertEqual(Layout(metadata(architecture), []).parameters("blk.0." + name), ["layers.0." + want])

    def test_experts_are_stacks(self):
        layout = Layout(metadata("qwen2moe", **EXPERTS, **{"expert_shared_feed_forward_length": 6}), [])
        for name, want in (
            ("ffn_gate_exps.weight", "mlp.experts.gate_up_proj"), ("ffn_up_exps.weight", "mlp.experts.gate_up_proj"),
            ("ffn_down_exps.weight", "mlp.experts.down_proj"), ("ffn_gate_inp.weight", "mlp.gate.weight"),
            ("ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight"), ("ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight"),
        ):
            self.assertEqual(layout.parameters("blk.0." + name), ["layers.0." + want])
        parts = "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps", "ffn_gate_shexp", "attn_q"
        self.assertEqual([layout.half(f"blk.0.{part}.weight") for part in parts], [0, 1, None, None, None])
        self.assertEqual(layout.arranged("blk.0.ffn_gate_inp_shexp.weight", np.ones(12)).shape, (1, 12))
        self.assertEqual(layout.arranged("blk.0.ffn_gate_exps.weight", np.ones((4, 5, 12))).shape, (4, 5, 12))

    def test_stacks_of_gpt_oss_are_turned_and_interleaved(self):
        layout, random = Layout(gpt_oss(), []), np.random.default_rng(4)
        gate, up = random.normal(size=(2, 4, 5, 12))  # gate and up of 4 experts, 5 wide
        turned = layout.arranged("blk.0.ffn_gate_exps.weight", gate), layout.arranged("blk.0.ffn_up_exps.weight", up)
        whole = layout.joined("", *turned)
        self.assertEqual(whole.shape, (4, 12, 10))
        for expert in range(4):
            np.testing.assert_array_equal(whole[expert][:, 0::2], gate[expert].T)
            np.testing.assert_array_equal(whole[expert][:, 1::2], up[expert].T)
        biases = layout.arranged("blk.0.ffn_gate_exps.bias", gate[:, :, 0]), layout.arranged("blk.0.ffn_up_exps.bias", up[:, :, 0])
        biases = layout.joined("", *biases)
        np.testing.assert_array_equal(biases[:, 0::2], gate[:, :, 0])
        np.testing.assert_array_equal(biases[:, 1::2], up[:, :, 0])
        np.testing.assert_array_equal(layout.arranged("blk.0.ffn_gate_inp.weight", gate[0]), gate[0])
        self.assertEqual(layout.arranged("blk.0.ffn_down_exps.weight", np.ones((4, 12, 5))).shape, (4, 5, 12))
        parts = "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"
        self.assertEqual([layout.half(f"blk.0.{part}.bias") for part in parts], [0, 1, None])
        for name, want in (
            ("ffn_gate_exps.weight", "mlp.experts.gate_up_proj"), ("ffn_up_exps.bias", "mlp.experts.gate_up_proj_bias"),
            ("ffn_down_exps.bias", "mlp.experts.down_proj_bias"), ("ffn_gate_inp.weight", "mlp.router.weight"),
            ("ffn_gate_inp.bias", "mlp.router.bias"), ("attn_sinks.weight", "self_attn.sinks"),
            ("attn_output.bias", "self_attn.o_proj.bias"), ("post_attention_norm.weight", "post_attention_layernorm.weight"),
        ):
            self.assertEqual(layout.parameters("blk.0." + name), ["layers.0." + want])

    def test_other_stacks_follow_one_another(self):
        gate, up = np.zeros((4, 5, 12)), np.ones((4, 5, 12))
        whole = Layout(metadata("qwen3moe", **EXPERTS), []).joined("", gate, up)
        np.testing.assert_array_equal(whole, np.concatenate((gate, up), axis=1))

    def test_experts_of_gemma4_have_places_of_their_own(self):
        layout = Layout(gemma4(**EXPERTS), [])
        for name, want in (
            ("ffn_gate_up_exps.weight", "experts.gate_up_proj"), ("ffn_up_exps.weight", "experts.gate_up_proj"),
            ("ffn_down_exps.weight", "experts.down_proj"), ("ffn_down_exps.scale", "router.per_expert_scale"),
            ("ffn_gate_inp.weight", "router.proj.weight"), ("ffn_gate_inp.scale", "router.scale"),
            ("ffn_gate.weight", "mlp.gate_proj.weight"), ("post_ffw_norm_1.weight", "post_feedforward_layernorm_1.weight"), ("ffn_norm.weight", "pre_feedforward_layernorm.weight"),
        ):
            self.assertEqual(layout.parameters("blk.0." + name), ["layers.0." + want])
        self.assertIsNone(layout.half("blk.0.ffn_gate_up_exps.weight"))
        want = {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 5}
        self.assertEqual({key: layout.model.fields[key] for key in want}, want)
        self.assertFalse(Layout(gemma4(), []).model.fields["enable_moe_block"])

    def test_granites_shared_expert_is_fused_too(self):
        layout = Layout(metadata("granitemoe", **EXPERTS, **{"logit_scale": 2.0}), [])
        for part, want in ("ffn_gate_exps", "block_sparse_moe.experts.gate_up_proj"), ("ffn_up_shexp", "shared_mlp.input_linear.weight"):
            self.assertEqual(layout.parameters(f"blk.0.{part}.weight"), [f"layers.0.{want}"])
        parts = "ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"
        self.assertEqual([layout.half(f"blk.0.{part}.weight") for part in parts], [0, 1, None])

    def test_biases_of_the_choice_have_their_places(self):
        for architecture, want in ("minimax-m2", "mlp."), ("dots1", "mlp.gate."), ("ernie4_5-moe", "mlp.gate.moe_statics."):
            layout = Layout(metadata(architecture, **EXPERTS, **{"expert_shared_count": 2}), [])
            self.assertEqual(layout.parameters("blk.0.exp_probs_b.bias"), [f"layers.0.{want}e_score_correction_bias"])
            shape = layout.arranged("blk.0.exp_probs_b.bias", np.ones(4)).shape
            self.assertEqual(shape, (1, 4) if architecture == "ernie4_5-moe" else (4,))

    def test_layers_that_predict_tokens_fill_nothing(self):
        layout = Layout(metadata("glm4moe", **EXPERTS, **{"block_count": 2, "nextn_predict_layers": 1, "expert_shared_count": 1}), [])
        self.assertEqual(layout.model.fields["num_hidden_layers"], 1)
        self.assertEqual(layout.parameters("blk.1.nextn.eh_proj.weight"), [])
        self.assertEqual(layout.parameters("blk.1.attn_q.weight"), [])
        self.assertEqual(layout.parameters("blk.0.post_attention_norm.weight"), ["layers.0.post_attention_layernorm.weight"])

    def test_nothing_reads_keys_of_layers_that_share_them(self):
        layout = Layout(gemma4(**{"attention.shared_kv_layers": 1}), [])
        self.assertEqual(layout.parameters("blk.1.attn_v.weight"), [])
        self.assertEqual(layout.parameters("blk.0.attn_v.weight"), ["layers.0.self_attn.v_proj.weight"])
        self.assertEqual(layout.parameters("blk.1.layer_output_scale.weight"), ["layers.1.layer_scalar"])

    def test_norms_of_gemma_lose_the_one(self):
        for architecture, name, want in ("gemma3", "blk.0.attn_q_norm.weight", 0.25), ("gemma3", "blk.0.attn_q.weight", 1.25), ("qwen3", "output_norm.weight", 1.25):
            self.assertEqual(Layout(metadata(architecture, **WINDOW), []).arranged(name, np.full(3, 1.25, np.float32)).tolist(), [want] * 3)

    def test_factors_divide_frequencies(self):
        layout = Layout(metadata("llama"), ["rope_freqs.weight"], lambda name: np.array([1, 2, 4, 8], np.float32))
        self.assertEqual(layout.model.fields["rope_parameters"], {"rope_type": "default", "rope_theta": 500000})
        np.testing.assert_allclose(layout.frequencies(), [1, 500000**-0.25 / 2, 500000**-0.5 / 4, 500000**-0.75 / 8])

    def test_factors_of_llama3_are_recognised(self):
        plain = Layout(metadata("llama"), [])
        self.assertIsNone(plain.frequencies())
        layout = Layout(metadata("llama"), ["rope_freqs.weight"], lambda name: plain.llama3().astype(np.float32))
        self.assertEqual(layout.model.fields["rope_parameters"], {**LLAMA3, "rope_theta": 500000})

    def test_factors_of_gemma4_are_a_part_of_a_head(self):
        layout = Layout(gemma4(), ["rope_freqs.weight"], lambda name: np.array([1, 1e30, 1e30, 1e30], np.float32))
        self.assertEqual(layout.model.fields["rope_parameters"]["full_attention"]["partial_rotary_factor"], 0.25)
        self.assertIsNone(layout.frequencies())

    def test_what_is_not_built_is_refused(self):
        for key, value in ("attention.scale", 0.5), ("expert_count", 8), ("expert_group_count", 2), ("expert_weights_scale", 2.5):
            with self.assertRaisesRegex(ValueError, key):
                Layout(metadata("qwen3", **{key: value}), [])
        with self.assertRaisesRegex(ValueError, "mamba"):
            Layout(metadata("mamba"), [])


class ConfigTest(unittest.TestCase):
    def fields(self, architecture, **changed):
        return Layout(metadata(architecture, **changed), []).model.fields

    def test_a_window_makes_a_mistral_of_a_llama(self):
        self.assertEqual(Layout(metadata("llama"), []).model.kind, "Llama")
        model = Layout(metadata("llama", **WINDOW), []).model
        self.assertEqual((model.kind, model.fields["sliding_window"]), ("Mistral", 24))

    def test_experts_make_a_mixtral_of_a_llama(self):
        model = Layout(metadata("llama", **EXPERTS), []).model
        self.assertEqual((model.kind, model.fields["num_local_experts"], model.fields["num_experts_per_tok"]), ("Mixtral", 4, 2))
        self.assertEqual((model.fields["intermediate_size"], model.fields["sliding_window"]), (8, None))

    def test_experts_are_named_as_each_class_does(self):
        width = {"expert_shared_feed_forward_length": 6}
        shared = {"expert_shared_count": 3, "leading_dense_block_count": 1, "expert_weights_scale": 2.5}
        for architecture, changed, kind, want in (
            ("qwen3moe", {}, "Qwen3Moe", {"num_experts": 4, "moe_intermediate_size": 5, "norm_topk_prob": True}),
            ("qwen2moe", width, "Qwen2Moe", {"shared_expert_intermediate_size": 6, "norm_topk_prob": False}),
            ("olmoe", {}, "Olmoe", {"num_experts": 4, "intermediate_size": 8, "norm_topk_prob": False}),
            ("granitemoe", {"logit_scale": 2.0}, "GraniteMoe", {"num_local_experts": 4, "logits_scaling": 2.0}),
            ("granitemoe", {"logit_scale": 2.0, **width}, "GraniteMoeShared", {"shared_intermediate_size": 6}),
            ("glm4moe", {**shared, "expert_group_count": 2, "expert_group_used_count": 1}, "Glm4Moe", {
                "n_routed_experts": 4, "n_shared_experts": 3, "n_group": 2, "topk_group": 1, "routed_scaling_factor": 2.5,
                "first_k_dense_replace": 1, "use_qk_norm": False}),
            ("dots1", shared, "Dots1", {"n_group": 1, "topk_group": 1, "norm_topk_prob": True, "sliding_window": None}),
            ("minimax-m2", {"rope.dimension_count": 4}, "MiniMaxM2", {"intermediate_size": 5, "num_local_experts": 4, "rotary_dim": 4}),
        ):
            model = Layout(metadata(architecture, **{**EXPERTS, **changed}), []).model
            self.assertEqual(model.kind, kind)
            self.assertEqual({key: model.fields[key] for key in want}, want, architecture)
        model = Layout(metadata("ernie4_5-moe", **EXPERTS, **{"expert_shared_count": 3, "leading_dense_block_count": 1}), []).model
        self.assertEqual((model.kind, model.fields["moe_k"], model.fields["moe_layer_start_index"]), ("Ernie4_5_Moe", 2, 1))

    def test_layers_have_the_window_of_the_list_or_of_the_family(self):
        kinds = self.fields("gemma3", **WINDOW, **{"block_count": 8})["layer_types"]
        self.assertEqual([i for i, kind in enumerate(kinds) if kind == "full_attention"], [5])
        fields = self.fields("gemma-embedding", **WINDOW, **{"block_count": 8})
        self.assertEqual((fields["use_bidirectional_attention"], fields["layer_types"]), (True, kinds))
        kinds = self.fields("gemma3", **WINDOW, **{"block_count": 2, "attention.sliding_window_pattern": [False, True]})["layer_types"]
        self.assertEqual(kinds, ["full_attention", "sliding_attention"])

    def test_windows_rotate_unstretched(self):
        stretched = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
        rope = self.fields("gemma3", **WINDOW, **stretched)["rope_parameters"]
        self.assertEqual(rope["full_attention"], {"rope_type": "linear", "rope_theta": 500000, "factor": 4})
        self.assertEqual(rope["sliding_attention"], {"rope_type": "default", "rope_theta": 10000})
        rope = self.fields("olmo2", **WINDOW, **stretched)["rope_parameters"]
        self.assertEqual(rope["sliding_attention"], {"rope_type": "default", "rope_theta": 500000})

    def test_yarn_and_temperature(self):
        fields = self.fields("mistral3", **{
            "rope.scaling.type": "yarn", "rope.scaling.factor": 16.0, "rope.scaling.original_context_length": 32,
            "rope.scaling.yarn_log_multiplier": 0.5, "attention.temperature_scale": 0.25})
        self.assertEqual(fields["rope_parameters"], {
            "rope_type": "yarn", "rope_theta": 500000, "factor": 16, "original_max_position_embeddings": 32, "beta_fast": 32, "beta_slow": 1,
            "mscale": 1, "mscale_all_dim": 0.5, "llama_4_scaling_beta": 0.25})

    def test_gpt_oss_does_not_round_yarn(self):
        model = Layout(gpt_oss(**{
            "block_count": 3, "rope.scaling.type": "yarn", "rope.scaling.factor": 32.0, "rope.scaling.original_context_length": 48}),
            ["blk.0.attn_q.bias"]).model
        self.assertEqual((model.kind, model.fields["attention_bias"], model.fields["intermediate_size"]), ("GptOss", True, 5))
        self.assertEqual(model.fields["layer_types"], ["sliding_attention", "full_attention", "sliding_attention"])
        self.assertEqual(model.fields["rope_parameters"], {
            "rope_type": "yarn", "rope_theta": 500000, "factor": 32, "original_max_position_embeddings": 48,
            "beta_fast": 32, "beta_slow": 1, "mscale": 1, "mscale_all_dim": 0, "truncate": False})

    def test_lists_of_longrope(self):
        lists = {LONG: np.array([2, 4], np.float32), SHORT: np.array([1, 1.5], np.float32)}
        of = metadata("phi3", **{"rope.dimension_count": 4, "rope.scaling.original_context_length": 32, "rope.scaling.attn_factor": 1.5})
        rope = Layout(of, list(lists), lists.get).model.fields["rope_parameters"]
        self.assertEqual(rope, {
            "rope_type": "longrope", "rope_theta": 500000, "partial_rotary_factor": 0.5, "original_max_position_embeddings": 32, "factor": 2,
            "attention_factor": 1.5, "long_factor": [2, 4], "short_factor": [1, 1.5]})

    def test_gemma4_has_two_kinds_of_heads(self):
        fields = Layout(gemma4(), ["blk.0.attn_v.weight"]).model.fields
        want = {"num_key_value_heads": 3, "num_global_key_value_heads": 1, "head_dim": 4, "global_head_dim": 8, "attention_k_eq_v": True}
        self.assertEqual({key: fields[key] for key in want}, want)

    def test_gemma4_with_a_window_in_the_last_layer_is_refused(self):
        with self.assertRaisesRegex(ValueError, "window in the last layer"):
            Layout(gemma4(**{"attention.sliding_window_pattern": [False, True]}), [])

    def test_glm4_without_a_part_rotates_whole_heads(self):
        self.assertEqual(self.fields("glm4")["rope_parameters"]["partial_rotary_factor"], 1)
        self.assertEqual(self.fields("glm4", **{"rope.dimension_count": 4})["rope_parameters"]["partial_rotary_factor"], 0.5)


class AnswerTest(unittest.TestCase):
    def test_ids_and_what_was_said_of_them(self):
        best = [{"tokenId": 9, "logprob": -0.5}, {"logprob": -1.5}]  # the second is token 0
        answer = Answer(map(json.dumps, [
            {"started": {"seed": "1"}},
            {"prompt": {"tokenIds": [5], "details": [{}]}},
            {"prompt": {"tokenIds": [6, 7], "details": [{"logprob": -3, "candidates": best}, {"logprob": -4}], "tokenIndex": 1}},
            {"tokens": {"tokenIds": [9], "details": [{"logprob": -0.25}]}},
            {"tokens": {"tokenIds": [8], "details": [{"logprob": -2}], "tokenIndex": 1}},
            {"finished": {"reason": "FINISH_REASON_LENGTH"}},
        ]))
        self.assertEqual((answer.ids, answer.prompt), ([5, 6, 7, 9, 8], 3))
        self.assertEqual(answer.positions.tolist(), [1, 1, 1, 2, 3, 4])
        self.assertEqual(answer.tokens.tolist(), [6, 9, 0, 7, 9, 8])
        self.assertEqual(answer.logprobs.tolist(), [-3, -0.5, -1.5, -4, -0.25, -2])

    def test_gaps_and_missing_details_are_errors(self):
        for event in {"tokenIds": [5], "details": [{}], "tokenIndex": 1}, {"tokenIds": [5, 6], "details": [{}]}, {"tokenIds": [5], "details": [{}]}:
            with self.assertRaises(ValueError):
                Answer([json.dumps({"prompt": event})])


class VerdictTest(unittest.TestCase):
    def test_a_quarter_of_f16_and_half_of_bf16(self):
        for error, kind, kept in (0.0249, "f16", True), (0.0251, "f16", False), (0.049, "bf16", True), (0.051, "bf16", False):
            got = verdict.of_logprobs({"prompt": 0.001, "generated": error}, 0.1, kind, (0.01, 0.02))
            self.assertEqual(got.kept, kept, got.text)
            self.assertIn(f"differ by {error:.3g} at most", got.text)

    def test_all_of_f16_where_weights_are_quantised(self):
        for error, kept in (0.099, True), (0.101, False):
            self.assertEqual(verdict.of_logprobs({"prompt": error}, 0.1, "f16", (0.01, 0.02), quantised=True).kept, kept)

    def test_differences_count_on_both_sides(self):
        got, want = [-1.0, -2.0, -3.5], np.array([-1.0, -2.25, -3.0])
        self.assertEqual(verdict.largest(got, want), 0.5)
        self.assertEqual(verdict.mean(got, want), 0.25)

    def test_what_is_not_a_number_is_never_kept(self):
        self.assertTrue(np.isnan(verdict.largest([1.0, float("nan")], np.array([1.0, 1.0]))))
        self.assertFalse(verdict.of_logprobs({"a": float("nan"), "b": 0.0}, 0.1, "f16", (0, 0)).kept)
        self.assertFalse(verdict.of_logprobs({"a": 0.0}, float("nan"), "f16", (0, 0)).kept)

    def test_another_token_is_a_tie_below_the_error_only(self):
        self.assertTrue(verdict.of_tokens([1, 2], [1, 2], [0, 0], 0.01).kept)
        tie = verdict.of_tokens([1, 2], [1, 3], [0, 0.009], 0.01)
        self.assertTrue(tie.kept)
        self.assertIn("1 of 2 greedy tokens are equal, 1 ties", tie.text)
        missed = verdict.of_tokens([1, 2], [1, 3], [0, 0.011], 0.01)
        self.assertFalse(missed.kept)
        self.assertIn("token 1 is 2 for 3", missed.text)
        self.assertFalse(verdict.of_tokens([], [], [], 0.01).kept)

    def test_float32_has_a_bound_of_its_own(self):
        self.assertTrue(verdict.of_float32({"10": 2e-5, "60": 9e-5}).kept)
        self.assertFalse(verdict.of_float32({"10": 2e-5, "60": 1.1e-4}).kept)
        self.assertFalse(verdict.of_float32({"10": float("nan")}).kept)

    def test_vectors_point_where_float32s_do(self):
        self.assertTrue(verdict.of_vectors({"mean": 0.999991, "last": 1}).kept)
        self.assertFalse(verdict.of_vectors({"mean": 0.999989, "last": 1}).kept)
        self.assertFalse(verdict.of_vectors({"mean": float("nan"), "last": 1}).kept)


if __name__ == "__main__":
    unittest.main()
