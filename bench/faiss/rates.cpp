// rates: how fast a faiss that was built from source assigns and encodes, for compare.py.
//
//     rates flat|product ROWS.fvecs CODEWORDS.fvecs SUBSPACES THREADS
//
// reads both files, computes once, and then once more for each line of standard input, answering with the wall seconds and the
// processor seconds of all threads that it took.
#include <faiss/IndexFlat.h>
#include <faiss/impl/ProductQuantizer.h>
#include <omp.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

static std::vector<float> read_vectors(const char* path, int32_t* dimension) {
  std::ifstream in(path, std::ios::binary);
  std::vector<float> all, row;
  for (int32_t d; in.read(reinterpret_cast<char*>(&d), 4);) {
    row.resize(size_t(d));
    in.read(reinterpret_cast<char*>(row.data()), std::streamsize(4) * d);
    all.insert(all.end(), row.begin(), row.end());
    *dimension = d;
  }
  if (all.empty()) {
    std::fprintf(stderr, "%s: no vectors\n", path);
    std::exit(1);
  }
  return all;
}

static double processor_seconds() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fprintf(stderr, "usage: rates flat|product ROWS.fvecs CODEWORDS.fvecs SUBSPACES THREADS\n");
    return 2;
  }
  omp_set_num_threads(std::atoi(argv[5]));
  int32_t d = 0;
  const std::vector<float> rows = read_vectors(argv[2], &d), codewords = read_vectors(argv[3], &d);
  const faiss::idx_t n = faiss::idx_t(rows.size()) / d;
  faiss::IndexFlatL2 flat(d);
  faiss::ProductQuantizer product(size_t(d), size_t(std::atoi(argv[4])), 8);
  std::vector<faiss::idx_t> labels(static_cast<size_t>(n));
  std::vector<uint8_t> codes(static_cast<size_t>(n) * product.code_size);
  std::function<void()> once;
  if (std::strcmp(argv[1], "flat") == 0) {
    flat.add(faiss::idx_t(codewords.size()) / d, codewords.data());
    once = [&] { flat.assign(n, rows.data(), labels.data()); };
  } else {
    if (codewords.size() != product.centroids.size()) {
      std::fprintf(stderr, "a product codebook has 256 codewords\n");
      return 1;
    }
    product.centroids = codewords;
    product.sync_transposed_centroids();
    once = [&] { product.compute_codes(rows.data(), codes.data(), size_t(n)); };
  }
  once();
  for (std::string line; std::getline(std::cin, line);) {
    const double before = processor_seconds();
    const auto begin = std::chrono::steady_clock::now();
    once();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    std::cout << took.count() << " " << processor_seconds() - before << std::endl;
  }
}
