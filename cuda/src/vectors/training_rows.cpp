// The rows of a training, as they are written.
#include <algorithm>
#include <cstring>

#include "src/error.h"
#include "src/vectors/training.h"

namespace mr::cuda {

// Rows go through pinned memory to where they stay, or to where the device looks at them first: while it does, the next piece is
// put there.
void Training::write(uint64_t first, const void* rows, uint64_t count) {
  const auto ull = [](uint64_t v) { return static_cast<unsigned long long>(v); };
  if (begun()) fail(MR_FAILED_PRECONDITION, "the training has begun: its rows stay as they are");
  if (first != written_) fail(MR_INVALID_ARGUMENT, "first is %llu: %llu rows were written before", ull(first), ull(written_));
  if (count > config_.rows - first)
    fail(MR_INVALID_ARGUMENT, "count is %llu: %llu of %llu rows are missing", ull(count), ull(config_.rows - first), ull(config_.rows));
  if (count == 0) return;
  if (rows == nullptr) fail(MR_INVALID_ARGUMENT, "rows is null");
  device_.enter();
  const Rest rest(stream_);
  const bool cosine = config_.metric == MR_METRIC_COSINE;
  TrainingMemory& m = at_memory_;
  CUDA_CHECK(cudaMemsetAsync(m.bad, 0xff, sizeof *m.bad, stream_));
  CUDA_CHECK(cudaMemsetAsync(m.piece_largest, 0, static_cast<size_t>(shape_.full) * sizeof(uint32_t), stream_));
  uint64_t done = 0;
  for (int half = 0; done < count; half = (half + 1) % kRing) {
    const uint64_t some = std::min(static_cast<uint64_t>(plan_.piece), count - done), bytes = some * shape_.given_bytes;
    const int64_t piece = static_cast<int64_t>(some);
    const uint64_t place = (first + done) * shape_.row_bytes;  // among the rows kept
    const bool straight = !plan_.spooled && !cosine;
    uint8_t* const given = straight ? m.rows + place : m.pieces[half];
    CUDA_CHECK(cudaEventSynchronize(staged_[half]));  // the device is through with this half
    std::memcpy(staging_[half].data(), static_cast<const uint8_t*>(rows) + done * shape_.given_bytes, bytes);
    if (plan_.spooled && !cosine) std::memcpy(spool_.data() + place, staging_[half].data(), bytes);
    CUDA_CHECK(cudaMemcpyAsync(given, staging_[half].data(), bytes, cudaMemcpyHostToDevice, stream_));
    CUDA_CHECK(launch_inspect_rows(given, config_.element_type, piece, shape_.full, first + done, m.bad,
                                   cosine ? nullptr : m.piece_largest, on()));
    if (cosine) {
      float* const kept = reinterpret_cast<float*>(plan_.spooled ? m.ring[half] : m.rows + place);
      CUDA_CHECK(launch_normalise_rows(given, config_.element_type, piece, shape_.full, kept, on()));
      CUDA_CHECK(launch_inspect_rows(kept, MR_VECTOR_F32, piece, shape_.full, 0, nullptr, m.piece_largest, on()));
      if (plan_.spooled)
        CUDA_CHECK(cudaMemcpyAsync(spool_.data() + place, kept, some * shape_.row_bytes, cudaMemcpyDeviceToHost, stream_));
    }
    CUDA_CHECK(cudaEventRecord(staged_[half], stream_));
    done += some;
  }
  uint64_t* const bad = reinterpret_cast<uint64_t*>(told_.data() + kReports * sizeof(RoundReport));
  CUDA_CHECK(cudaMemcpyAsync(bad, m.bad, sizeof *bad, cudaMemcpyDeviceToHost, stream_));
  CUDA_CHECK(cudaStreamSynchronize(stream_));
  if (*bad != UINT64_MAX) fail(MR_INVALID_ARGUMENT, "row %llu has a NaN or an infinity: rows must be finite", ull(*bad));
  CUDA_CHECK(launch_raise_largest(m.largest, m.piece_largest, shape_.full, on()));
  CUDA_CHECK(cudaStreamSynchronize(stream_));
  written_ += count;
}

}  // namespace mr::cuda
