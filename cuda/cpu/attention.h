// attention: attention over a paged key-value cache, and how that cache lies in memory.
//
// A key block holds, for each kv head, (padded_dim, block_size): the tokens of one dim lie together, so that a vector
// holds one dim of as many keys. A value block holds, for each kv head, (block_size, padded_dim). Dims beyond head_dim
// are zero in values and never read in keys. A latent is key and value at once: its blocks are those of values alone, and the
// value of a token is the first dims of its key.
//
// Bits: a row sees keys first .. visible-1, cut into chunks of 256 absolute positions. A score is the
// sum of the products of even dims plus that of odd dims, each in ascending order, times the scale, then capped. With a latent it is the
// sum over the lanes of a vector, each of which adds its dims in ascending order. Each chunk has
// its own maximum, sum of exponentials and weighted values (tokens ascending); chunks are merged in ascending order, from the
// first that has a key the row sees, on any thread. A first key masks those before it and moves no chunk. Neither the other rows of a
// call nor the ids of the blocks have any influence.
#pragma once

#include <stdint.h>

namespace mr::cpu {

constexpr int32_t attention_chunk = 256;

// Returns the number of chunks that hold `keys` keys.
constexpr int32_t attention_chunks(int32_t keys) { return (keys + attention_chunk - 1) / attention_chunk; }

constexpr int32_t pad_dim(int32_t head_dim) { return (head_dim + 15) / 16 * 16; }

struct KvLayout {
  int32_t type;        // MR_KV_*
  int32_t block_size;  // 16 or 32 tokens
  int32_t kv_heads;
  int32_t head_dim;
  int32_t padded_dim;  // pad_dim(head_dim)
  int32_t latent = 0;  // dims of a value, which are the first of its key; 0 = keys and values lie apart, head_dim wide

  int32_t value_dim() const { return latent == 0 ? head_dim : latent; }
  int32_t padded_value() const { return pad_dim(value_dim()); }
  int64_t element() const { return type == 0 ? 4 : 2; }                                          // bytes
  int64_t head_stride() const { return static_cast<int64_t>(padded_dim) * block_size * element(); }  // bytes
  int64_t block_stride() const { return head_stride() * kv_heads; }  // bytes of keys, and of values, in one layer, or of both in one
  int64_t block_bytes() const { return latent == 0 ? 2 * block_stride() : block_stride(); }  // of keys and values in one layer
};

struct AttentionArgs {
  const float* const* q;   // rows: head_dim floats each; with a latent padded_dim, those beyond head_dim 0
  float* const* out;       // rows: value_dim floats each; with a latent they may be those of q
  const int32_t* visible;  // the end of the keys that each row sees: >= 1, ascending
  int32_t rows;            // <= attention_rows
  float scale;
  float cap;               // scores become cap * tanh(score / cap); 0 = no cap
  const int32_t* first;    // the first key that each row sees: < visible, ascending; null = 0
  const float* sinks;      // (heads of the kv head): one more score of each, whose value is nothing; null = none
  int32_t group;           // query heads of the kv head; row r is of head r % group
  KvLayout layout;
  int32_t kv_head;
  const int32_t* blocks;   // block table of the sequence
  const uint8_t* keys;     // block 0 of the layer
  const uint8_t* values;   // with a latent those of keys
  float* scratch;          // attention_scratch(rows, padded_value) floats, 64-byte aligned

  // The first key that a row sees, and its chunk.
  int32_t first_key(int32_t row) const { return first == nullptr ? 0 : first[row]; }
  int32_t first_chunk(int32_t row) const { return first_key(row) / attention_chunk; }
};

// Floats of the partial results of a call's rows for one chunk: a multiple of 16.
constexpr int64_t attention_record(int64_t rows, int64_t padded_value) {
  return rows * padded_value + (2 * rows + 15) / 16 * 16;
}

constexpr int64_t attention_scratch(int64_t rows, int64_t padded_value) {
  return rows * attention_chunk + 2 * attention_record(rows, padded_value);
}

}  // namespace mr::cpu
