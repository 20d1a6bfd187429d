// bench: shared by the benchmarks of this folder: two threads, their time, and memory in huge pages.
#pragma once

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <functional>
#include <thread>
#include <vector>

namespace {

constexpr int thread_count = 2;

double now(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}

// Seconds until every thread has run work(thread).
double timed(const std::function<void(int)>& work) {
  const double start = now(CLOCK_MONOTONIC);
  std::thread other(work, 1);
  work(0);
  other.join();
  return now(CLOCK_MONOTONIC) - start;
}

uint8_t* huge(uint64_t bytes) {
  constexpr uint64_t page = 2 << 20;
  bytes = (bytes + page - 1) / page * page + page;
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) { perror("mmap"); exit(1); }
  uint8_t* at = reinterpret_cast<uint8_t*>((reinterpret_cast<uint64_t>(p) + page - 1) / page * page);
  madvise(at, bytes - page, MADV_HUGEPAGE);
  return at;
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

} // namespace
