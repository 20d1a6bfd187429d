// spin: waits without sleep, for events that are expected within microseconds: a thread that sleeps takes longer to wake than
// a phase of a step takes.
#pragma once

#include <sched.h>

#include <chrono>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace mr::cpu {

// A waiting thread keeps its processor until the first limit, which covers the serial parts within a step. Until the second
// limit, which covers the time between two steps, it yields after every check. Then it sleeps, so that idle devices cost nothing.
constexpr auto spin_alone = std::chrono::microseconds(30);
constexpr auto spin_yielding = std::chrono::microseconds(300);

inline void pause_cpu() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waits until ready() or the time is over; true when ready.
template <class Ready>
bool spin(Ready ready) {
  const auto begin = std::chrono::steady_clock::now();
  for (;;) {
    for (int i = 0; i < 64; ++i) {
      if (ready()) return true;
      pause_cpu();
    }
    const auto waited = std::chrono::steady_clock::now() - begin;
    if (waited >= spin_yielding) return ready();
    if (waited >= spin_alone) sched_yield();
  }
}

}  // namespace mr::cpu
