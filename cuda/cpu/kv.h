// kv: the pool of key-value blocks of one runner.
#pragma once

#include <cstdint>

#include "attention.h"
#include "ledger.h"
#include "millrace/engine.h"

namespace mr::cpu {

// Memory: layers x {keys, values} x blocks x block_stride bytes. Block b of a layer's keys begins at
// keys(layer) + b * layout.block_stride(). Fresh blocks hold anything: attention reads only what was stored.
class KvCache {
 public:
  static KvLayout layout(const mr_model_desc& model, const mr_runner_config& config);
  static uint64_t bytes_per_block(const mr_model_desc& model, const mr_runner_config& config);  // over all layers

  KvCache(Ledger& ledger, const mr_model_desc& model, const mr_runner_config& config);  // throws RESOURCE_EXHAUSTED

  const KvLayout& layout() const { return layout_; }
  uint8_t* keys(int32_t layer) const { return memory_.as<uint8_t>() + 2 * static_cast<uint64_t>(layer) * plane_; }
  uint8_t* values(int32_t layer) const { return keys(layer) + plane_; }
  void copy_block(int32_t src, int32_t dst);  // ids 0 .. blocks-1; src == dst does nothing
  // The bytes_per_block of a block lie at `host` plane by plane: keys and values of layer 0, of layer 1, ...
  void copy_out(int32_t src, uint8_t* host) const;
  void copy_in(const uint8_t* host, int32_t dst);

 private:
  const KvLayout layout_;
  const int32_t layers_;
  const uint64_t plane_;  // bytes of all keys of one layer
  const Memory memory_;
};

}  // namespace mr::cpu
