#include "kv.h"

#include <cstring>

#include "error.h"
#include "runner_config.h"

namespace mr::cpu {
namespace {

KvLayout layout_of(const Description& model, const mr_mixer_desc& m, const mr_runner_config& config) {
  const int32_t dim = by_latent(m) ? cached_width(model, m) : m.key_dim;
  return KvLayout{config.kv_type, config.block_size, m.kv_heads, dim, pad_dim(dim), m.latent};
}

// Whether the blocks of a layer are those of the window group.
bool grouped(const Description& model, const mr_runner_config& config, int32_t layer) {
  return config.window_blocks != 0 && in_window_group(model, layer);
}

}  // namespace

uint64_t KvCache::bytes_per_block(const Description& model, const mr_runner_config& config, bool window) {
  uint64_t bytes = 0;
  for (int32_t i = 0; i < model.layer_count(); ++i) {
    const mr_mixer_desc& m = model.mixer(i);
    if (keeps_keys(m) && m.kv_layer == 0 && grouped(model, config, i) == window)
      bytes += static_cast<uint64_t>(layout_of(model, m, config).block_bytes());
  }
  return bytes;
}

uint64_t KvCache::bytes(const Description& model, const mr_runner_config& config) {
  uint64_t bytes = 0;
  if (__builtin_add_overflow(pool_bytes(config, false, bytes_per_block(model, config, false)),
                             pool_bytes(config, true, bytes_per_block(model, config, true)), &bytes))
    fail(MR_RESOURCE_EXHAUSTED, "runner configuration: its blocks are beyond any memory");
  return bytes;
}

KvCache::KvCache(Ledger& ledger, const Description& model, const mr_runner_config& config)
    : memory_(ledger.allocate(bytes(model, config), MR_PURPOSE_KV, false)) {
  uint64_t begin = 0;
  for (int32_t i = 0; i < model.layer_count(); ++i) {
    const mr_mixer_desc& m = model.mixer(i);
    if (!keeps_keys(m)) {
      layers_.push_back(Layer{});
      continue;
    }
    if (m.kv_layer != 0) {
      Layer shared = layers_[layers_.size() - static_cast<size_t>(m.kv_layer)];
      shared.own = false;
      layers_.push_back(shared);
      continue;
    }
    const KvLayout layout = layout_of(model, m, config);
    const bool window = grouped(model, config, i);
    const uint64_t block = static_cast<uint64_t>(layout.block_stride()), blocks = static_cast<uint64_t>(pool_blocks(config, window));
    const uint64_t plane = blocks * block;
    if (window) {
      std::memset(memory_.as<uint8_t>() + begin + plane - block, 0, block);
      std::memset(memory_.as<uint8_t>() + begin + 2 * plane - block, 0, block);
    }
    layers_.push_back(Layer{layout, begin, layout.latent == 0 ? plane : 0, true, window});
    begin += blocks * static_cast<uint64_t>(layout.block_bytes());
  }
}

// Calls copy(place, size) with the block's bytes in each plane of its group.
template <class Copy>
void KvCache::each_plane(bool window, int32_t block, Copy copy) const {
  for (const Layer& layer : layers_) {
    if (!layer.own || layer.window != window) continue;
    const uint64_t size = static_cast<uint64_t>(layer.layout.block_stride());
    uint8_t* const keys = memory_.as<uint8_t>() + layer.begin + static_cast<uint64_t>(block) * size;
    copy(keys, size);
    if (layer.plane != 0) copy(keys + layer.plane, size);
  }
}

void KvCache::copy_block(bool window, int32_t src, int32_t dst) {
  if (src == dst) return;
  each_plane(window, dst, [&](uint8_t* to, uint64_t size) {
    std::memcpy(to, to + (src - static_cast<int64_t>(dst)) * static_cast<int64_t>(size), size);
  });
}

void KvCache::copy_out(bool window, int32_t src, uint8_t* host) const {
  each_plane(window, src, [&](const uint8_t* from, uint64_t size) {
    std::memcpy(host, from, size);
    host += size;
  });
}

void KvCache::copy_in(bool window, const uint8_t* host, int32_t dst) {
  each_plane(window, dst, [&](uint8_t* to, uint64_t size) {
    std::memcpy(to, host, size);
    host += size;
  });
}

}  // namespace mr::cpu
