// The counters of a ledger if the system refuses to free blocks without an owner.
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "ledger.h"

namespace {

using mr::cpu::Ledger;
using mr::cpu::LedgerCounts;
using mr::cpu::Memory;

#define CHECK(condition)                                                       \
  do {                                                                         \
    if (!(condition)) {                                                        \
      std::fprintf(stderr, "%s:%d: %s is false\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                            \
    }                                                                          \
  } while (0)

constexpr uint64_t kMiB = uint64_t{1} << 20;

void what_has_no_owner_stays_counted() {
  Ledger ledger(64 * kMiB, UINT64_MAX);
  ledger.refuse(MR_FAULT_REFUSE_FREE, 1, 2);
  for (int i = 0; i < 4; ++i) { const Memory memory = ledger.allocate(10 * kMiB, MR_PURPOSE_WEIGHTS, false); }
  LedgerCounts counts = ledger.counts();
  CHECK(counts.used[MR_PURPOSE_WEIGHTS] == 20 * kMiB && counts.held == 20 * kMiB && counts.failed_frees == 2);
  CHECK(counts.free() == 44 * kMiB && counts.stuck == 0);
  { const Memory most = ledger.allocate(60 * kMiB, MR_PURPOSE_KV, false); }  // offers both again
  counts = ledger.counts();
  CHECK(counts.free() == counts.total && counts.held == 0 && counts.failed_frees == 2);
}

void a_refused_reset_changes_nothing() {
  Ledger ledger(64 * kMiB, 32 * kMiB);
  Memory memory = ledger.allocate(3 * kMiB, MR_PURPOSE_KV, true);
  void* const data = memory.data();
  ledger.refuse(MR_FAULT_REFUSE_FREE, 0, 2);
  CHECK(memory.reset() != 0 && memory.reset() != 0);
  CHECK(memory.data() == data && memory.size() == 3 * kMiB);
  CHECK(ledger.counts().used[MR_PURPOSE_KV] == 3 * kMiB && ledger.counts().pooled == 0);
  CHECK(memory.reset() == 0 && memory.data() == nullptr);
  CHECK(ledger.counts().free() == 64 * kMiB && ledger.counts().pooled == 3 * kMiB);
}

void many_threads_agree() {
  Ledger ledger(256 * kMiB, 16 * kMiB);
  ledger.refuse(MR_FAULT_REFUSE_FREE, 0, 200);  // at once: how often memory is freed later depends on the content of the pool
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&ledger, i] {
      for (uint64_t k = 0; k < 400; ++k)
        const Memory memory = ledger.allocate(1 + (k * 7919 + static_cast<uint64_t>(i)) % (6 * kMiB), MR_PURPOSE_STAGING, false);
    });
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < 300 && ledger.counts().held != 0; ++i) ledger.trim();
  const LedgerCounts counts = ledger.counts();
  CHECK(counts.held == 0 && counts.pooled == 0 && counts.free() == counts.total && counts.failed_frees == 200);
}

}  // namespace

int main() {
  what_has_no_owner_stays_counted();
  a_refused_reset_changes_nothing();
  many_threads_agree();
}
