#include "kv.h"

#include <cstring>

#include "runner_config.h"

namespace mr::cpu {
namespace {

KvLayout layout_of(const Description& model, const mr_mixer_desc& m, const mr_runner_config& config) {
  const int32_t dim = by_latent(m) ? cached_width(model, m) : m.key_dim;
  return KvLayout{config.kv_type, config.block_size, m.kv_heads, dim, pad_dim(dim), m.latent};
}

}  // namespace

uint64_t KvCache::bytes_per_block(const Description& model, const mr_runner_config& config) {
  uint64_t bytes = 0;
  for (const mr_layer_desc& layer : model.layers)
    if (keeps_keys(layer.mixer) && layer.mixer.kv_layer == 0)
      bytes += static_cast<uint64_t>(layout_of(model, layer.mixer, config).block_bytes());
  return bytes;
}

KvCache::KvCache(Ledger& ledger, const Description& model, const mr_runner_config& config)
    : memory_(ledger.allocate(pool_bytes(config, bytes_per_block(model, config)), MR_PURPOSE_KV, false)) {
  uint64_t begin = 0;
  for (const mr_layer_desc& layer : model.layers) {
    if (!keeps_keys(layer.mixer)) {
      layers_.push_back(Layer{});
      continue;
    }
    if (layer.mixer.kv_layer != 0) {
      Layer shared = layers_[layers_.size() - static_cast<size_t>(layer.mixer.kv_layer)];
      shared.own = false;
      layers_.push_back(shared);
      continue;
    }
    const KvLayout layout = layout_of(model, layer.mixer, config);
    const uint64_t blocks = static_cast<uint64_t>(config.kv_blocks), plane = blocks * static_cast<uint64_t>(layout.block_stride());
    layers_.push_back(Layer{layout, begin, layout.latent == 0 ? plane : 0, true});
    begin += blocks * static_cast<uint64_t>(layout.block_bytes());
  }
}

// Calls copy(place, size) with the block's bytes in each plane.
template <class Copy>
void KvCache::each_plane(int32_t block, Copy copy) const {
  for (const Layer& layer : layers_) {
    if (!layer.own) continue;
    const uint64_t size = static_cast<uint64_t>(layer.layout.block_stride());
    uint8_t* const keys = memory_.as<uint8_t>() + layer.begin + static_cast<uint64_t>(block) * size;
    copy(keys, size);
    if (layer.plane != 0) copy(keys + layer.plane, size);
  }
}

void KvCache::copy_block(int32_t src, int32_t dst) {
  if (src == dst) return;
  each_plane(dst, [&](uint8_t* to, uint64_t size) {
    std::memcpy(to, to + (src - static_cast<int64_t>(dst)) * static_cast<int64_t>(size), size);
  });
}

void KvCache::copy_out(int32_t src, uint8_t* host) const {
  each_plane(src, [&](const uint8_t* from, uint64_t size) {
    std::memcpy(host, from, size);
    host += size;
  });
}

void KvCache::copy_in(const uint8_t* host, int32_t dst) {
  each_plane(dst, [&](uint8_t* to, uint64_t size) {
    std::memcpy(to, host, size);
    host += size;
  });
}

}  // namespace mr::cpu
