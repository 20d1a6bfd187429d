"""Tests of how layers that carry a state are described and arranged."""

import unittest

import numpy as np

from layout import Layout
from unit_test import EXPERTS, metadata

SHORT_CONVOLUTIONS = {"block_count": 3, "attention.head_count_kv": [0, 1, 0], "shortconv.l_cache": 3, "leading_dense_block_count": 1}


def delta(architecture, **changed):
    """Two key heads of 2 and six value heads of 2, three for each key head."""
    return metadata(architecture, **{**EXPERTS, **{
        "block_count": 5, "ssm.conv_kernel": 4, "ssm.state_size": 2, "ssm.group_count": 2, "ssm.time_step_rank": 6, "ssm.inner_size": 12,
        "rope.dimension_sections": [2, 1, 1, 0], "expert_shared_feed_forward_length": 6, **changed}})


class StatesTest(unittest.TestCase):
    def test_value_heads_go_to_their_key_heads(self):
        layout = Layout(delta("qwen35", **{"expert_count": 0}), [])
        # Value heads of the file: of key heads 0, 1, 0, 1, 0, 1.
        heads, keys = np.arange(6.0), np.arange(100.0, 108)
        want = [0, 2, 4, 1, 3, 5]
        np.testing.assert_array_equal(layout.arranged("blk.0.ssm_dt.bias", heads), want)
        np.testing.assert_allclose(layout.arranged("blk.0.ssm_a", -np.exp(heads)), want)
        pairs, wanted = np.repeat(heads, 2)[:, None], np.repeat(want, 2)[:, None]
        np.testing.assert_array_equal(layout.arranged("blk.0.attn_gate.weight", pairs), wanted)
        np.testing.assert_array_equal(layout.arranged("blk.0.ssm_out.weight", pairs.T), wanted.T)
        rows, moved = np.concatenate((keys, pairs[:, 0]))[:, None], np.concatenate((keys, wanted[:, 0]))[:, None]
        np.testing.assert_array_equal(layout.arranged("blk.0.attn_qkv.weight", rows), moved)
        np.testing.assert_array_equal(layout.arranged("blk.0.ssm_conv1d.weight", rows), moved[:, None])
        for name in "blk.0.ssm_norm.weight", "blk.3.attn_q.weight":
            np.testing.assert_array_equal(layout.arranged(name, pairs), pairs)
        np.testing.assert_array_equal(layout.arranged("blk.0.attn_norm.weight", pairs), pairs - 1)

    def test_projections_of_a_key_head_are_together(self):
        layout = Layout(delta("qwen3next"), [])
        qkv = np.array([0, 1, 2, 3, 10, 11, 12, 13, *range(20, 32)])[:, None]
        whole = layout.joined("layers.0.linear_attn.in_proj_qkvz.weight", qkv, np.arange(40, 52)[:, None])
        np.testing.assert_array_equal(whole[:, 0], [0, 1, 10, 11, *range(20, 26), *range(40, 46), 2, 3, 12, 13, *range(26, 32), *range(46, 52)])
        parts = "attn_qkv", "attn_gate", "ssm_ba"
        self.assertEqual([layout.half(f"blk.0.{part}.weight") for part in parts], [0, 1, None])
        self.assertIsNone(Layout(delta("qwen35moe"), []).half("blk.0.attn_gate.weight"))
        self.assertIsNone(layout.half("blk.0.ssm_a"))

    def test_layers_with_a_state_have_their_places(self):
        for architecture, name, want in (
            ("qwen3next", "ssm_a", "linear_attn.A_log"), ("qwen3next", "ssm_dt.bias", "linear_attn.dt_bias"),
            ("qwen3next", "ssm_ba.weight", "linear_attn.in_proj_ba.weight"), ("qwen35moe", "ssm_beta.weight", "linear_attn.in_proj_b.weight"),
            ("qwen35moe", "ssm_norm.weight", "linear_attn.norm.weight"), ("qwen35moe", "ffn_up_exps.weight", "mlp.experts.gate_up_proj"),
        ):
            self.assertEqual(Layout(delta(architecture), []).parameters("blk.0." + name), ["layers.0." + want])
        layout = Layout(metadata("lfm2moe", **EXPERTS, **SHORT_CONVOLUTIONS), [])
        for name, want in (
            ("shortconv.in_proj.weight", "conv.in_proj.weight"), ("shortconv.conv.weight", "conv.conv.weight"),
            ("ffn_gate_exps.weight", "feed_forward.experts.gate_up_proj"), ("exp_probs_b.bias", "feed_forward.expert_bias"),
            ("ffn_down.weight", "feed_forward.w2.weight"), ("attn_q_norm.weight", "self_attn.q_layernorm.weight"),
        ):
            self.assertEqual(layout.parameters("blk.0." + name), ["layers.0." + want])
        self.assertEqual(layout.parameters("token_embd_norm.weight"), ["embedding_norm.weight"])
        self.assertEqual(layout.arranged("blk.0.shortconv.conv.weight", np.ones((12, 3))).shape, (12, 1, 3))

    def test_layers_with_a_state(self):
        model = Layout(delta("qwen35moe", **{"nextn_predict_layers": 1, "rope.dimension_count": 4, "full_attention_interval": 2}), []).model
        self.assertEqual((model.kind, model.config), ("Qwen3_5Moe", "Qwen3_5MoeTextConfig"))
        state, attention = "linear_attention", "full_attention"
        want = {
            "num_hidden_layers": 4, "layer_types": [state, attention, state, attention], "linear_conv_kernel_dim": 4, "linear_key_head_dim": 2,
            "linear_value_head_dim": 2, "linear_num_key_heads": 2, "linear_num_value_heads": 6, "num_experts": 4,
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 500000, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]},
        }
        self.assertEqual({key: model.fields[key] for key in want}, want)
        kinds = Layout(delta("qwen3next"), []).model.fields["layer_types"]
        self.assertEqual(kinds, [state, state, state, attention, state])
        listed = Layout(delta("qwen35", **{"expert_count": 0, "attention.recurrent_layers": [False, True, True, True, False]}), []).model
        self.assertEqual(listed.fields["layer_types"], [attention, state, state, state, attention])
        model = Layout(metadata("lfm2moe", **EXPERTS, **SHORT_CONVOLUTIONS), ["blk.1.exp_probs_b.bias"]).model
        want = {"num_key_value_heads": 1, "layer_types": ["conv", attention, "conv"], "conv_L_cache": 3, "norm_eps": 1e-5, "num_dense_layers": 1,
                "use_expert_bias": True}
        self.assertEqual({key: model.fields[key] for key in want}, want)


if __name__ == "__main__":
    unittest.main()
