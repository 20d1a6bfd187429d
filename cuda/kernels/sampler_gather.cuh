// sampler_gather: the few tokens of a row that matter, put into every block of a team.
#pragma once

#include "kernels/sampler_space.cuh"

namespace mr::cuda {

struct Entry {
  uint64_t key, value;
  int bin;
};

// Bounds on what may lie in a bin, by numbers that need not be exact: looked at before the exact ones are worked out.
struct Band {
  float centre, factor;  // of |x * factor - centre|
  float low, high;

  __device__ __forceinline__ bool may_have(float x) const {
    const float at = fabsf(x * factor - centre);
    return !(at < low) && !(at > high);  // of -inf by nothing
  }
  __device__ static Band everything() { return Band{0, 0, 0, INFINITY}; }
};

struct Gathered {
  uint32_t count;           // more than kListed: nothing is listed
  uint64_t least, greatest;  // keys
};

// look(id, x, entry) says whether a token counts, and then makes its entry. Lists all that count in s.list, in any order,
// in every block, where they are at most kListed.
template <class Look>
__device__ Gathered gather(SamplerSpace& s, Team& team, const Part& part, const float* x, Look look) {
  __syncthreads();
  if (threadIdx.x == 0) s.own_count = 0;
  __syncthreads();
  uint64_t least = kNoKey, greatest = 0;
  uint32_t count = 0;
  part.each(x, [&](int32_t id, float logit) {
    Entry entry;
    if (!look(id, logit, entry)) return;
    ++count;
    least = min(least, entry.key);
    greatest = max(greatest, entry.key);
    const uint32_t at = atomicAdd(&s.own_count, 1u);
    if (at < kListed) s.own[at] = id;
  });
  count = __reduce_add_sync(0xffffffffu, count);
  const Note* const notes = team.tell(Note{count, warp_least_u64(least), warp_least_u64(~greatest)}, CountAndLeasts{});
  const Note all = team.all(notes, CountAndLeasts{});
  const Gathered gathered{static_cast<uint32_t>(all.a), all.b, ~all.c};
  if (gathered.count > kListed) return gathered;
  int32_t before = 0;
  for (int32_t block = 0; block < team.rank; ++block) before += static_cast<int32_t>(notes[block].a);
  const int32_t copies = static_cast<int32_t>(notes[team.rank].a) * team.size;
  for (int32_t i = threadIdx.x; i < copies; i += kThreads) {
    const int32_t place = i >> team.bits, id = s.own[place];
    Entry entry{};
    look(id, x[id - part.begin], entry);
    Listed* const list = team.at(&s.list, i & (team.size - 1));
    list->keys[before + place] = entry.key;
    list->values[before + place] = entry.value;
  }
  team.sync();
  return gathered;
}

// Gives, in every thread of the team, the greatest key of the shortest run of least keys whose values reach `target` >= 1:
// all keys <= it form the run; kNoKey when the whole does not reach it. Tokens are split into bins, which ascend with keys;
// the bin that the run ends in is listed and selected from, after it was split further by bits of its keys if it is long.
// view: look(id, x, entry) as for gather; band(bin) bounds the bin's logits;
// add(histogram, entry) adds an entry to bin entry.bin. filled: the histogram has the row already.
template <class View>
__device__ __noinline__ uint64_t select_run(SamplerSpace& s, Team& team, const Part& part, const float* x, const View& given,
                                            uint64_t target, bool filled) {
  const View view = given;  // of this thread's own, which no store to memory changes
  const auto fill = [&](auto look) {
    __syncthreads();
    clear_bins(s.histogram);
    __syncthreads();
    part.each(x, [&](int32_t id, float logit) {
      Entry entry;
      if (look(id, logit, entry)) view.add(s.histogram, entry);
    });
  };
  if (!filled) fill([&](int32_t id, float logit, Entry& entry) { return view.look(id, logit, entry); });
  Bin found = find_bin(s.histogram, s.bins, team, target);
  if (!found.reached) return kNoKey;
  const int bin = found.index;
  const Band band = view.band(bin);
  uint64_t first = 0, last = kNoKey;  // keys in question
  const auto within = [&](int32_t id, float logit, Entry& entry) {
    return band.may_have(logit) && view.look(id, logit, entry) && entry.bin == bin && entry.key >= first && entry.key <= last;
  };
  for (;;) {
    target -= found.before;
    const Gathered gathered = gather(s, team, part, x, within);
    if (gathered.count <= kListed)
      return select_least(s.select, target, s.list.keys, s.list.values, gathered.count);
    const int top_bit = 63 - __clzll(static_cast<long long>(gathered.least ^ gathered.greatest));
    const int shift = max(0, top_bit - 7);
    fill([&](int32_t id, float logit, Entry& entry) {
      if (!within(id, logit, entry)) return false;
      entry.bin = static_cast<int>(entry.key >> shift & (kBins - 1));
      return true;
    });
    found = find_bin(s.histogram, s.bins, team, target);
    first = gathered.least >> shift >> 8 << 8 << shift | static_cast<uint64_t>(found.index) << shift;
    last = first | ((1ull << shift) - 1);
  }
}

}  // namespace mr::cuda
