// kv: the pool of key-value blocks of one runner.
#pragma once

#include <cstdint>
#include <vector>

#include "attention.h"
#include "ledger.h"
#include "millrace/engine.h"
#include "shape.h"

namespace mr::cpu {

// Memory: for each layer with keys of its own, the keys of all blocks of its group and then their values, or latents, which are both. Block
// b of a layer's keys begins at keys(layer) + b * layout(layer).block_stride(). Fresh blocks hold anything: attention reads only what was
// stored. A layer that reads the keys of another has that layer's layout and planes, and a layer without attention has neither.
class KvCache {
 public:
  static uint64_t bytes_per_block(const Description& model, const mr_runner_config& config, bool window);  // over all layers of a group
  static uint64_t bytes(const Description& model, const mr_runner_config& config);  // of both pools. Throws RESOURCE_EXHAUSTED

  KvCache(Ledger& ledger, const Description& model, const mr_runner_config& config);  // throws RESOURCE_EXHAUSTED

  const KvLayout& layout(int32_t layer) const { return at(layer).layout; }
  uint8_t* keys(int32_t layer) const { return memory_.as<uint8_t>() + at(layer).begin; }
  uint8_t* values(int32_t layer) const { return keys(layer) + at(layer).plane; }
  bool windowed(int32_t layer) const { return at(layer).window; }  // whether its blocks are those of the window group
  // Of a group; ids 0 .. blocks-1; src == dst does nothing
  void copy_block(bool window, int32_t src, int32_t dst);
  // The bytes_per_block of a block lie at `host` plane by plane: keys and values of the first layer that has its own, and so on.
  void copy_out(bool window, int32_t src, uint8_t* host) const;
  void copy_in(bool window, const uint8_t* host, int32_t dst);

 private:
  struct Layer {
    KvLayout layout;
    uint64_t begin;  // of its keys
    uint64_t plane;  // bytes of its keys, and of its values; 0 of latents, whose values are in their keys
    bool own;        // has keys of its own
    bool window;     // is in the window group
  };
  const Layer& at(int32_t layer) const { return layers_[static_cast<size_t>(layer)]; }
  template <class Copy>
  void each_plane(bool window, int32_t block, Copy copy) const;

  std::vector<Layer> layers_;
  const Memory memory_;
};

}  // namespace mr::cpu
