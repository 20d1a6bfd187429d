#include "slices.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "error.h"

namespace mr {

Slices::Slices(std::function<void()> begin, std::function<void(Slice*, const std::atomic<bool>&)> run)
    : begin_(std::move(begin)), run_(std::move(run)), thread_([this] { work(); }) {}

Slices::~Slices() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Slices::work() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stop_ || done_ < submitted_; });
    if (stop_) return;
    Slice& slice = slices_[done_ % kInFlight];
    const bool skip = broken_;
    lock.unlock();
    std::string trouble;
    if (!skip) {
      try {
        run_(&slice, stop_);
      } catch (const Error& e) {
        trouble = e.message;
      } catch (const std::exception& e) {
        trouble = e.what();
      }
    }
    lock.lock();
    if (!trouble.empty()) {
      broken_ = true;
      failure_ = trouble;
    }
    ++done_;
    changed_.notify_all();
  }
}

void Slices::check_at_rest() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (broken_) report_failure();
  if (submitted_ != collected_)
    fail(MR_FAILED_PRECONDITION, "%llu slices are in flight; wait for them first",
         static_cast<unsigned long long>(submitted_ - collected_));
}

void Slices::report_failure() const { fail(MR_INTERNAL, "a slice failed: %s; destroy the trainer", failure_.c_str()); }

void Slices::submit(const mr_slice& slice) {
  if (slice.max_rounds < 1) fail(MR_INVALID_ARGUMENT, "max_rounds is %d: want at least 1", slice.max_rounds);
  if (slice.reserved0 != 0) fail(MR_INVALID_ARGUMENT, "reserved0 is %d: want 0", slice.reserved0);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (broken_) report_failure();
    if (submitted_ - collected_ >= kInFlight)
      fail(MR_FAILED_PRECONDITION, "%llu slices are in flight; wait for one first", static_cast<unsigned long long>(kInFlight));
    if (told_done_) fail(MR_FAILED_PRECONDITION, "the training is done");
  }
  if (submitted_ == 0) begin_();
  Slice& to = slices_[submitted_ % kInFlight];
  to.budget_ns = slice.budget_ns;
  to.most_rounds = slice.max_rounds;
  to.rounds.clear();
  to.told = mr_training{};
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++submitted_;
  }
  changed_.notify_all();
}

void Slices::wait(uint64_t timeout_ns, mr_training* out) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (collected_ == submitted_) fail(MR_FAILED_PRECONDITION, "no slice is in flight");
  Slice& slice = slices_[collected_ % kInFlight];
  if (out->round_capacity < slice.most_rounds)
    fail(MR_INVALID_ARGUMENT, "round_capacity is %d: want %lld, as the slice has max_rounds", out->round_capacity,
         static_cast<long long>(slice.most_rounds));
  if (out->rounds == nullptr) fail(MR_INVALID_ARGUMENT, "rounds is null");
  // A wait of a century is one without end, and stays clear of the clock's own limit.
  const uint64_t limit = std::min<uint64_t>(timeout_ns, 3'000'000'000'000'000'000u);
  if (!changed_.wait_for(lock, std::chrono::nanoseconds(limit), [this] { return done_ > collected_; }))
    fail(MR_DEADLINE_EXCEEDED, "the oldest slice is not done after %llu ns; wait again", static_cast<unsigned long long>(timeout_ns));
  ++collected_;
  if (broken_) report_failure();
  out->round_count = static_cast<int32_t>(slice.rounds.size());
  for (size_t i = 0; i < slice.rounds.size(); ++i)
    std::memcpy(reinterpret_cast<uint8_t*>(out->rounds) + i * out->round_stride, &slice.rounds[i],
                std::min(out->round_stride, sizeof(mr_round)));
  out->phase = slice.told.phase;
  out->reason = slice.told.reason;
  out->rows_done = slice.told.rows_done;
  out->rows_total = slice.told.rows_total;
  out->computed = slice.told.computed;
  out->recomputed = slice.told.recomputed;
  out->device_ns = slice.told.device_ns;
  told_done_ = told_done_ || slice.told.phase == MR_TRAINING_DONE;
}

}  // namespace mr
