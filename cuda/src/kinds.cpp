#include "src/kinds.h"

#include "cpu/error.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/latent.h"
#include "kernels/kv.h"
#include "kernels/rows.h"
#include "kernels/states/states.h"

namespace mr::cuda {
namespace {

[[noreturn]] void refuse(int32_t layer, const char* block) {
  fail(MR_UNIMPLEMENTED, "model layer %d has %s, which this engine has no kernels for", layer, block);
}

void check_latent(const Description& d, int32_t layer, int32_t shared_bytes) {
  const mr_mixer_desc& m = d.mixer(layer);
  const int32_t rotated = rotated_dims(d, m), padded = pad_latent(m.latent, rotated);
  if (padded == 0)
    fail(MR_UNIMPLEMENTED,
         "model layer %d has a latent of %d dims and a rotated key of %d: this engine runs latents of 1 to %d dims, and up to %d dims of "
         "both",
         layer, m.latent, rotated, kMostLatent, kMostLatentRow);
  if (latent_shared_bytes(padded) > shared_bytes)
    fail(MR_UNIMPLEMENTED,
         "model layer %d has attention over a latent, which needs %d bytes of shared memory in a block, and this GPU has %d: load the "
         "model on a GPU of compute capability 8.0, 9.0 or 10.0, or on a CPU worker",
         layer, latent_shared_bytes(padded), shared_bytes);
}

void check_attention(const mr_mixer_desc& m, int32_t layer, int32_t shared_bytes) {
  if ((m.flags & MR_MIX_BIDIRECTIONAL) != 0) refuse(layer, "attention that sees later positions");
  if (m.key_dim != m.value_dim) refuse(layer, "heads whose keys and values differ in width");
  if (pad_head_dim(m.key_dim) == 0)
    fail(MR_UNIMPLEMENTED, "model layer %d: head_dim is %d: this engine runs heads of 1 to 512 dims", layer, m.key_dim);
  if (attention_shared_bytes(m.key_dim) > shared_bytes)
    fail(MR_UNIMPLEMENTED,
         "model layer %d: head_dim is %d: its attention needs %d bytes of shared memory in a block, and this GPU has %d: load the model on "
         "a GPU of compute capability 8.0, 9.0 or 10.0, or on a CPU worker",
         layer, m.key_dim, attention_shared_bytes(m.key_dim), shared_bytes);
}

// A delta net that no kernel runs. Values are of any width, and convolutions of any length that a description may have.
void check_delta(const mr_mixer_desc& m, int32_t layer) {
  if (m.key_dim > kMostDeltaKeys)
    fail(MR_UNIMPLEMENTED, "model layer %d: key_dim is %d: this engine runs gated delta nets of 1 to %d keys a head", layer, m.key_dim,
         kMostDeltaKeys);
}

// Devices share attention by heads and all else by rows of weights. States stay on one device.
void check_shared(const Description& d, int32_t layer) {
  const auto refuse_shared = [&](const char* block) {
    fail(MR_UNIMPLEMENTED, "model layer %d has %s, which several GPUs do not divide: use one", layer, block);
  };
  const mr_mixer_desc& m = d.mixer(layer);
  if (m.kind == MR_MIX_DELTA) refuse_shared("a gated delta rule");
  if (m.kind == MR_MIX_CONV) refuse_shared("a short convolution");
  if (by_latent(m)) refuse_shared("attention over a latent");
}

}  // namespace

Kinds::Kinds(const Description& desc) {
  for (int32_t i = 0; i < desc.layer_count(); ++i) {
    const mr_mixer_desc& m = desc.mixer(i);
    if (!keeps_keys(m)) {
      of_layer.push_back(-1);
      continue;
    }
    const AttentionKind own{m.heads, m.kv_heads, m.key_dim, m.window, m.latent, by_latent(m) ? rotated_dims(desc, m) : 0};
    size_t kind = 0;
    while (kind < kinds.size() && !(kinds[kind] == own)) ++kind;
    if (kind == kinds.size()) kinds.push_back(own);
    of_layer.push_back(static_cast<int32_t>(kind));
  }
}

bool ends_mixer(const Description& desc, int32_t layer) {
  return (desc.mixer(layer).flags & MR_MIX_END_NORM) != 0 || desc.residual_scale != 1;
}

bool ends_mlp(const Description& desc, int32_t layer) {
  return (desc.mlp(layer).flags & MR_MLP_END_NORM) != 0 || desc.residual_scale != 1;
}

void check_description(const Description& desc, int32_t ranks, int32_t shared_bytes) {
  if (static_cast<int32_t>(desc.ropes.size()) > kMostRopes)
    fail(MR_UNIMPLEMENTED, "model has %zu rotations: this engine computes at most %d", desc.ropes.size(), kMostRopes);
  for (int32_t i = 0; i < desc.layer_count(); ++i) {
    if (by_latent(desc.mixer(i))) check_latent(desc, i, shared_bytes);
    if (attends(desc.mixer(i))) check_attention(desc.mixer(i), i, shared_bytes);
    if (desc.mixer(i).kind == MR_MIX_DELTA) check_delta(desc.mixer(i), i);
    if (ranks > 1) check_shared(desc, i);
  }
  const Kinds kinds(desc);
  if (kinds.count() > kMostKinds)
    fail(MR_UNIMPLEMENTED, "model layers have %d kinds of attention (heads, their width, window): this engine computes at most %d",
         kinds.count(), kMostKinds);
  if (ranks > 1 && desc.layer_input_width != 0)
    fail(MR_UNIMPLEMENTED, "model layer_input_width is %d: several GPUs do not divide inputs of layers: use one", desc.layer_input_width);
}

}  // namespace mr::cuda
