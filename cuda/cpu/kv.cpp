#include "kv.h"

#include <cstring>

#include "runner_config.h"

namespace mr::cpu {

KvLayout KvCache::layout(const mr_model_desc& model, const mr_runner_config& config) {
  return KvLayout{config.kv_type, config.block_size, model.kv_heads, model.head_dim, pad_dim(model.head_dim)};
}

uint64_t KvCache::bytes_per_block(const mr_model_desc& model, const mr_runner_config& config) {
  return 2 * static_cast<uint64_t>(model.layers) * static_cast<uint64_t>(layout(model, config).block_stride());
}

KvCache::KvCache(Ledger& ledger, const mr_model_desc& model, const mr_runner_config& config)
    : layout_(layout(model, config)),
      layers_(model.layers),
      plane_(static_cast<uint64_t>(config.kv_blocks) * static_cast<uint64_t>(layout_.block_stride())),
      memory_(ledger.allocate(pool_bytes(config, bytes_per_block(model, config)), MR_PURPOSE_KV, false)) {}

void KvCache::copy_block(int32_t src, int32_t dst) {
  if (src == dst) return;
  const uint64_t size = static_cast<uint64_t>(layout_.block_stride());
  for (uint64_t plane = 0; plane < 2 * static_cast<uint64_t>(layers_); ++plane) {
    uint8_t* base = memory_.as<uint8_t>() + plane * plane_;
    std::memcpy(base + static_cast<uint64_t>(dst) * size, base + static_cast<uint64_t>(src) * size, size);
  }
}

void KvCache::copy_out(int32_t src, uint8_t* host) const {
  const uint64_t size = static_cast<uint64_t>(layout_.block_stride());
  for (uint64_t plane = 0; plane < 2 * static_cast<uint64_t>(layers_); ++plane)
    std::memcpy(host + plane * size, memory_.as<uint8_t>() + plane * plane_ + static_cast<uint64_t>(src) * size, size);
}

void KvCache::copy_in(const uint8_t* host, int32_t dst) {
  const uint64_t size = static_cast<uint64_t>(layout_.block_stride());
  for (uint64_t plane = 0; plane < 2 * static_cast<uint64_t>(layers_); ++plane)
    std::memcpy(memory_.as<uint8_t>() + plane * plane_ + static_cast<uint64_t>(dst) * size, host + plane * size, size);
}

}  // namespace mr::cpu
