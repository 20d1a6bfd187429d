// step_phase: the loops of a step over threads, for the files that define StepForward.
#pragma once

#include <algorithm>

#include "step_forward.h"

namespace mr::cpu {

constexpr int64_t kTokensATask = 8;  // of embedding, norms and preparation

// Every thread runs prologue(thread) and then tasks until none is left: body(task, thread). A thread has a range of its own,
// so that what one task asks the memory for ahead of its end is what its next one reads; then it helps the others. A thread
// that comes too late for any of it is not waited for.
template <class Prologue, class Body>
void StepForward::phase(int64_t tasks, Prologue prologue, Body body) {
  const int count = threads_.size();
  for (int t = 0; t < count; ++t) {
    ranges_[t].next.store(tasks * t / count, std::memory_order_relaxed);
    ranges_[t].end = tasks * (t + 1) / count;
  }
  threads_.run_present([&](int thread) {
    prologue(thread);
    for (int i = 0; i < count; ++i) {
      Range& range = ranges_[thread + i < count ? thread + i : thread + i - count];
      for (int64_t task; (task = range.next.fetch_add(1, std::memory_order_relaxed)) < range.end;) body(task, thread);
    }
  });
}

// Returns the weights that the thread reads after a task: its next task's, or those of its first task of the next GEMM. Both cuts are a
// Cut or an ExpertCut.
template <class Now, class Then>
const uint8_t* StepForward::weights_after(const Now& cut, int64_t task, int thread, const Then& then) const {
  if (task + 1 != ranges_[thread].end && task + 1 < cut.tasks) return cut.begin(task + 1);
  return then.begin(then.tasks * thread / threads_.size());
}

// Calls body(token) for every token, on all threads where there are many.
template <class Body>
void StepForward::each_token(Body body) {
  if (few()) {
    for (int64_t t = 0; t < tokens_; ++t) body(t);
    return;
  }
  phase((tokens_ + kTokensATask - 1) / kTokensATask, [](int) {}, [&](int64_t task, int) {
    for (int64_t t = task * kTokensATask; t < std::min(tokens_, (task + 1) * kTokensATask); ++t) body(t);
  });
}

template <class Body>
void StepForward::with_prepared(const float* x, int64_t width, const float* weight, const Cut& cut, int64_t tasks, Body body) {
  const auto fill = [&](int64_t t0, int64_t t1, float* rows, const Prepared& into) {
    if (weight == nullptr) {
      prepare(x, width, cut, t0, t1, into);
      return;
    }
    for (int64_t t = t0; t < t1; ++t) ops_.rms_norm(x + t * width, weight, desc_.norm_eps, width, rows + t * width);
    prepare(rows, width, cut, t0, t1, into);
  };
  if (few()) {
    phase(tasks,
          [&](int thread) {
            const auto& own = space_.threads[static_cast<size_t>(thread)];
            fill(0, tokens_, own.rows, own.prepared);
          },
          [&](int64_t task, int thread) { body(task, thread, space_.threads[static_cast<size_t>(thread)].prepared); });
    return;
  }
  phase((tokens_ + kTokensATask - 1) / kTokensATask, [](int) {}, [&](int64_t task, int) {
    fill(task * kTokensATask, std::min(tokens_, (task + 1) * kTokensATask), space_.norm, space_.prepared);
  });
  phase(tasks, [](int) {}, [&](int64_t task, int thread) { body(task, thread, space_.prepared); });
}

}  // namespace mr::cpu
