// SLOT_SET of slots with a history: the tokens are written to their positions, and other slots and later positions do
// not change.
#include <algorithm>
#include <memory>

#include "kernel_fixture.h"
#include "kernels/sampler/state.h"

namespace mr::cuda::testing {
namespace {

constexpr int32_t kVocab = 77, kWords = 3, kBiases = 4, kStride = 3 * 4096 + 5;

// Returns the histories after setting slots of these lengths, from slot 1 on in descending order; slot 0 is never set.
std::vector<int32_t> histories_after(const std::vector<int32_t>& lengths, const std::vector<bool>& lists) {
  const size_t slots = lengths.size() + 1;
  Guarded<SlotParams> params(slots);
  Guarded<SlotFeed> feeds(slots);
  Guarded<uint32_t> allowed(slots * kWords), suppressed(slots * kWords);
  Guarded<int32_t> bias_ids(slots * kBiases), history(slots * kStride);
  Guarded<float> bias_values(slots * kBiases);
  const SlotTables tables{params, feeds, allowed, suppressed, bias_ids, bias_values, history, kStride, kWords, kBiases};
  const int32_t ids[3] = {5, 70, 5};
  const float values[3] = {1, 2, 3};
  std::vector<SlotSet> sets;
  std::vector<std::unique_ptr<Guarded<uint8_t>>> records;
  for (size_t i = lengths.size(); i-- > 0;) {
    std::vector<int32_t> tokens(static_cast<size_t>(lengths[i]));
    for (size_t t = 0; t < tokens.size(); ++t) tokens[t] = static_cast<int32_t>((t * 31 + i) % kVocab);
    SlotSource source{};
    source.params.seed = i;
    source.params.all_allowed = 1;
    if (lists[i]) {
      source.params.bias_count = 3;
      source.params.all_allowed = 0;
      source.params.has_suppressed = 1;
      source.bias_ids = source.allowed_ids = source.suppressed_ids = ids;
      source.bias_values = values;
      source.allowed_count = source.suppressed_count = 3;
    }
    source.history = tokens.data();
    source.history_count = lengths[i];
    std::vector<uint8_t> record(static_cast<size_t>(slot_record_bytes(source, kVocab)));
    pack_slot_record(source, kVocab, record.data());
    records.push_back(std::make_unique<Guarded<uint8_t>>(record));
    sets.push_back({static_cast<int32_t>(i) + 1, lengths[i], records.back()->data()});
  }
  Guarded<SlotSet> device_sets(sets);
  MUST(launch_slot_sets(tables, device_sets, static_cast<int32_t>(sets.size()), *std::max_element(lengths.begin(), lengths.end()),
                        Stream{}));
  synchronize();
  const std::vector<SlotParams> after = params.read();
  for (size_t i = 0; i < lengths.size(); ++i) {
    EXPECT_EQ(after[i + 1].seed, i);
    EXPECT_EQ(after[i + 1].bias_count, lists[i] ? 3 : 0);
  }
  const std::vector<uint32_t> open = allowed.read(), closed = suppressed.read();
  for (size_t i = 0; i < lengths.size(); ++i)
    for (int32_t w = 0; w < kWords; ++w) {
      const uint32_t want = !lists[i] ? 0xffffffffu : w == 0 ? 1u << 5 : w == 2 ? 1u << (70 - 64) : 0u;
      EXPECT_EQ(open[(i + 1) * kWords + static_cast<size_t>(w)], want) << i;
      EXPECT_EQ(closed[(i + 1) * kWords + static_cast<size_t>(w)], want) << i;
    }
  return history.read();
}

TEST(Slots, TakeHistoriesOfEveryLength) {
  const std::vector<int32_t> lengths{0, 1, 3, 4, 255, 4095, 4096, 4097, 8192, kStride};
  std::vector<bool> lists;
  for (size_t i = 0; i < lengths.size(); ++i) lists.push_back(i % 2 == 1);
  const std::vector<int32_t> all = histories_after(lengths, lists);
  for (size_t slot = 0; slot <= lengths.size(); ++slot)
    for (size_t t = 0; t < kStride; ++t) {
      const bool set = slot > 0 && t < static_cast<size_t>(lengths[slot - 1]);
      const int32_t want = set ? static_cast<int32_t>((t * 31 + slot - 1) % kVocab) : -1;
      ASSERT_EQ(all[slot * kStride + t], want) << "slot " << slot << ", position " << t;
    }
}

TEST(Slots, WithoutAHistoryLeaveTheOldOne) {
  const std::vector<int32_t> all = histories_after({0, 0}, {true, false});
  EXPECT_EQ(std::count(all.begin(), all.end(), -1), static_cast<int64_t>(all.size()));
}

TEST(Slots, RefuseAHistoryLongerThanTheirRoom) {
  SlotTables tables{};
  tables.history_stride = 16;
  EXPECT_EQ(launch_slot_sets(tables, nullptr, 1, 17, Stream{}), cudaErrorInvalidValue);
  EXPECT_EQ(launch_slot_sets(tables, nullptr, 1, -1, Stream{}), cudaErrorInvalidValue);
  EXPECT_EQ(launch_slot_sets(tables, nullptr, 0, 16, Stream{}), cudaSuccess);
}

}  // namespace
}  // namespace mr::cuda::testing
