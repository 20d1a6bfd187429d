#include "vector_config.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "error.h"

namespace mr {
namespace {

void check_field(const char* field, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high)
    fail(MR_INVALID_ARGUMENT, "%s is %lld: want %lld to %lld", field, static_cast<long long>(value), static_cast<long long>(low),
         static_cast<long long>(high));
}

void check_number(const char* field, double value, double low, double high, const char* wanted) {
  if (!(value >= low && value <= high)) fail(MR_INVALID_ARGUMENT, "%s is %g: want %s", field, value, wanted);  // nor a NaN
}

void check_annealing(const mr_trainer_config& c) {
  const double least = DBL_TRUE_MIN, below_one = std::nextafter(1.0, 0.0);
  check_number("temperature", c.temperature, least, 1, "above 0, to 1");
  check_number("cooling_rate", c.cooling_rate, 0, below_one, "0 to below 1");
  check_number("learning_rate", c.learning_rate, least, 1, "above 0, to 1");
  check_number("momentum", c.momentum, 0, below_one, "0 to below 1");
  check_number("trim", c.trim, 0, 0.5, "0 to 0.5");
  check_number("step_limit", c.step_limit, 0, DBL_MAX, "a finite number above 0, or 0 for none");
  check_field("maintenance_interval", c.maintenance_interval, 0, 1'000'000);
  check_number("merge_distance", c.merge_distance, 0, DBL_MAX, "a finite number above 0, or 0 for none");
  if (c.split_load != 0)
    check_number("split_load", c.split_load, std::nextafter(1.0, 2.0), DBL_MAX, "a finite number above 1, or 0 for none");
}

}  // namespace

mr_codebook_desc codebook_of(const mr_trainer_config& c) {
  return {sizeof(mr_codebook_desc), c.kind, c.metric, c.dimension, c.codewords, c.subspaces, c.codeword_type};
}

uint64_t codebook_size(const mr_codebook_desc& d) {
  return static_cast<uint64_t>(d.codewords) * static_cast<uint64_t>(d.dimension) * element_size(d.codeword_type);
}

void check_codebook(const mr_codebook_desc& d) {
  check_field("kind", d.kind, MR_CODEBOOK_FLAT, MR_CODEBOOK_PRODUCT);
  check_field("metric", d.metric, MR_METRIC_L2, MR_METRIC_COSINE);
  check_field("dimension", d.dimension, 1, MR_VECTOR_MAX_DIMENSION);
  check_field("codewords", d.codewords, 1, MR_VECTOR_MAX_CODEWORDS);
  if (d.subspaces < 1 || d.dimension % d.subspaces != 0)
    fail(MR_INVALID_ARGUMENT, "subspaces is %d: want a divisor of the dimension %d", d.subspaces, d.dimension);
  if (d.kind == MR_CODEBOOK_FLAT && d.subspaces != 1)
    fail(MR_INVALID_ARGUMENT, "subspaces is %d: a flat codebook has 1", d.subspaces);
  if (d.kind == MR_CODEBOOK_PRODUCT && d.metric != MR_METRIC_L2)
    fail(MR_INVALID_ARGUMENT, "metric is %d: a product codebook knows L2 (0) alone", d.metric);
  check_field("codeword_type", d.codeword_type, MR_VECTOR_F32, MR_VECTOR_BF16);
  if (int64_t{d.codewords} * d.dimension > INT32_MAX)
    fail(MR_INVALID_ARGUMENT, "codewords is %d: of dimension %d that is more than 2^31 - 1 values", d.codewords, d.dimension);
}

void check_trainer(const mr_trainer_config& c) {
  check_codebook(codebook_of(c));
  check_field("element_type", c.element_type, MR_VECTOR_F32, MR_VECTOR_I8);
  if (c.rows < static_cast<uint64_t>(c.codewords) || c.rows > UINT32_MAX)
    fail(MR_INVALID_ARGUMENT, "rows is %llu: want %d, one for each codeword, to %u", static_cast<unsigned long long>(c.rows),
         c.codewords, UINT32_MAX);
  check_field("algorithm", c.algorithm, MR_ALGORITHM_LLOYD, MR_ALGORITHM_ANNEALED);
  if (c.algorithm == MR_ALGORITHM_ANNEALED && c.metric != MR_METRIC_L2)
    fail(MR_INVALID_ARGUMENT, "metric is %d: the annealed algorithm knows L2 (0) alone", c.metric);
  check_field("init", c.init, MR_INIT_RANDOM, MR_INIT_GIVEN);
  if (c.init == MR_INIT_KMEANS_PLUS_PLUS || c.init == MR_INIT_FARTHEST) {
    if (c.codewords > MR_VECTOR_MAX_SEQUENTIAL)
      fail(MR_INVALID_ARGUMENT, "codewords is %d: init %d takes one step each and at most %d", c.codewords, c.init,
           MR_VECTOR_MAX_SEQUENTIAL);
    if (c.metric == MR_METRIC_INNER_PRODUCT)
      fail(MR_INVALID_ARGUMENT, "init is %d: an inner product is no distance to spread codewords by, want 0 (random) or 3 (given)",
           c.init);
  }
  check_field("max_iterations", c.max_iterations, 0, kMostIterations);
  check_field("stable_iterations", c.stable_iterations, 1, 1'000'000);
  check_field("min_changes", c.min_changes, -1, INT64_MAX);
  if (c.energy_tolerance != -1)
    check_number("energy_tolerance", c.energy_tolerance, 0, DBL_MAX, "a finite number of 0 or more, or -1");
  if (c.algorithm == MR_ALGORITHM_ANNEALED) check_annealing(c);
}

void check_codewords(const cpu::VectorKernels& kernels, const mr_codebook_desc& d, const void* codewords) {
  const int64_t width = d.dimension / d.subspaces, count = int64_t{d.codewords} * d.subspaces;
  const uint64_t bytes = static_cast<uint64_t>(width) * element_size(d.codeword_type);
  for (int64_t c = 0; c < count; ++c)
    if (!kernels.finite(d.codeword_type, static_cast<const uint8_t*>(codewords) + static_cast<uint64_t>(c) * bytes, width))
      fail(MR_INVALID_ARGUMENT, "codeword %lld has a NaN or an infinity: codewords must be finite", static_cast<long long>(c));
}

void check_encoding(const mr_codebook_desc& d, const mr_encode_args& a) {
  check_field("element_type", a.element_type, MR_VECTOR_F32, MR_VECTOR_I8);
  check_field("neighbours", a.neighbours, 1, d.kind == MR_CODEBOOK_FLAT ? std::min<int>(MR_VECTOR_MAX_NEIGHBOURS, d.codewords) : 1);
  if (a.count == 0) return;
  if (a.count > kMostRows)
    fail(MR_INVALID_ARGUMENT, "count is %llu: want at most 2^40 rows", static_cast<unsigned long long>(a.count));
  if (a.rows == nullptr) fail(MR_INVALID_ARGUMENT, "rows is null");
  if (a.codes == nullptr) fail(MR_INVALID_ARGUMENT, "codes is null");
}

}  // namespace mr
