"""Tests of how attention over a latent is described and arranged."""

import unittest

import numpy as np

from layout import Layout
from unit_test import EXPERTS, metadata

LATENT = {
    "attention.kv_lora_rank": 6, "attention.q_lora_rank": 5, "attention.key_length": 8, "attention.value_length": 6,
    "attention.key_length_mla": 5, "attention.value_length_mla": 4, "rope.dimension_count": 2, "expert_shared_count": 2,
}


def deepseek(**changed):
    return metadata("deepseek2", **{**EXPERTS, **LATENT, **changed})


class LatentTest(unittest.TestCase):
    def test_keys_and_values_of_a_head_are_together(self):
        layout = Layout(deepseek(), [])
        keys = np.arange(3 * 6 * 3.0).reshape(3, 6, 3)  # head, latent, columns without rotation
        values = 100 + np.arange(3 * 4 * 6.0).reshape(3, 4, 6)
        self.assertEqual([layout.half(f"blk.0.attn_{part}_b.weight") for part in "kvq"], [0, 1, None])
        whole = layout.joined("layers.0.self_attn.kv_b_proj.weight", keys, values)
        self.assertEqual(whole.shape, (3 * (3 + 4), 6))
        for head in range(3):
            np.testing.assert_array_equal(whole[7 * head:7 * head + 3], keys[head].T)
            np.testing.assert_array_equal(whole[7 * head + 3:7 * head + 7], values[head])

    def test_latents_have_their_places(self):
        layout = Layout(deepseek(), [])
        for name, want in (
            ("attn_q_a.weight", "self_attn.q_a_proj.weight"), ("attn_q_a_norm.weight", "self_attn.q_a_layernorm.weight"),
            ("attn_kv_a_mqa.weight", "self_attn.kv_a_proj_with_mqa.weight"), ("attn_k_b.weight", "self_attn.kv_b_proj.weight"),
            ("ffn_up_exps.weight", "mlp.experts.gate_up_proj"), ("exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),
        ):
            self.assertEqual(layout.parameters("blk.0." + name), ["layers.0." + want])

    def test_latents(self):
        groups = {"expert_group_count": 2, "expert_group_used_count": 1}
        yarn = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.yarn_log_multiplier": 0.08}
        sigmoid = {"expert_gating_func": 2, "expert_weights_norm": True}
        model = Layout(deepseek(**groups, **yarn, **sigmoid), []).model
        want = {
            "kv_lora_rank": 6, "q_lora_rank": 5, "qk_nope_head_dim": 3, "qk_rope_head_dim": 2, "head_dim": 2, "v_head_dim": 4,
            "num_key_value_heads": 3, "n_group": 2, "topk_group": 1, "norm_topk_prob": True, "rope_interleave": True,
        }
        self.assertEqual((model.kind, {key: model.fields[key] for key in want}), ("DeepseekV3", want))
        rope = model.fields["rope_parameters"]
        self.assertEqual((rope["mscale"], rope["mscale_all_dim"]), (0.8, 0.8))
        self.assertNotIn("partial_rotary_factor", rope)
        model = Layout(deepseek(**groups, **{"attention.q_lora_rank": 0}), []).model
        want = {"q_lora_rank": None, "topk_method": "group_limited_greedy", "norm_topk_prob": False}
        self.assertEqual((model.kind, {key: model.fields[key] for key in want}), ("DeepseekV2", want))
        self.assertEqual(Layout(deepseek(), []).model.fields["topk_method"], "greedy")
        with self.assertRaisesRegex(ValueError, "deepseek2 with YaRN and a softmax of experts"):
            Layout(deepseek(**yarn), [])


if __name__ == "__main__":
    unittest.main()
