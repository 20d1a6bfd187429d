// The runtime of the emulated device: memory, streams, graphs, and blocks of fibers.
#include <cuda_runtime.h>
#include <setjmp.h>
#include <ucontext.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

namespace emulated {

thread_local Index thread_index, block_index, block_size, grid_size;
uint64_t graphs_launched = 0;

struct Work {
  std::vector<std::function<void()>> all;
};
struct Happened {
  std::chrono::steady_clock::time_point when;
};

namespace {

thread_local Work* kept = nullptr;

constexpr size_t kStack = 64 << 10;
constexpr int kMostThreads = 1024;

// Fiber is a thread of a block. Its stack is reused by later threads.
struct Fiber {
  ucontext_t first;
  jmp_buf at;
  std::unique_ptr<char[]> stack{new char[kStack]};
  bool begun = false, ended = true;
  int waits = 0;  // 0: runs, 1: for its warp, 2: for its block
};

// Block is the fibers that a host thread runs; there is one for each host thread.
struct Block {
  std::vector<std::unique_ptr<Fiber>> fibers;
  ucontext_t outside;
  jmp_buf scheduler;
  int current = 0;
  const std::function<void()>* thread = nullptr;
  uint64_t slots[kMostThreads] = {};
};
thread_local Block block;

void main_of_fiber() {
  for (;;) {
    (*block.thread)();
    Fiber& mine = *block.fibers[static_cast<size_t>(block.current)];
    mine.ended = true;
    if (_setjmp(mine.at) == 0) _longjmp(block.scheduler, 1);
  }
}

void pause(int waits) {
  Fiber& mine = *block.fibers[static_cast<size_t>(block.current)];
  mine.waits = waits;
  if (_setjmp(mine.at) == 0) _longjmp(block.scheduler, 1);
}

void resume(int i) {
  Fiber& fiber = *block.fibers[static_cast<size_t>(i)];
  block.current = i;
  thread_index.x = static_cast<unsigned>(i);
  if (_setjmp(block.scheduler) != 0) return;
  if (fiber.begun) _longjmp(fiber.at, 1);
  fiber.begun = true;
  getcontext(&fiber.first);
  fiber.first.uc_stack.ss_sp = fiber.stack.get();
  fiber.first.uc_stack.ss_size = kStack;
  fiber.first.uc_link = nullptr;
  makecontext(&fiber.first, main_of_fiber, 0);
  setcontext(&fiber.first);
}

// Releases the threads whose barrier is complete; returns false if no thread was released.
bool release(int threads) {
  bool any = false;
  int alive = 0, at_block = 0;
  for (int first = 0; first < threads; first += 32) {
    int at_warp = 0, ended = 0;
    const int last = std::min(first + 32, threads);
    for (int i = first; i < last; ++i) {
      const Fiber& fiber = *block.fibers[static_cast<size_t>(i)];
      alive += fiber.ended ? 0 : 1;
      ended += fiber.ended ? 1 : 0;
      at_warp += !fiber.ended && fiber.waits == 1 ? 1 : 0;
      at_block += !fiber.ended && fiber.waits == 2 ? 1 : 0;
    }
    if (at_warp > 0 && (ended > 0 || last - first < 32)) {
      std::fprintf(stderr, "a warp of %d threads, %d of them ended, exchanges values\n", last - first, ended);
      std::abort();
    }
    if (at_warp == 0 || at_warp < last - first) continue;
    any = true;
    for (int i = first; i < last; ++i) block.fibers[static_cast<size_t>(i)]->waits = 0;
  }
  if (alive > 0 && at_block == alive) {
    any = true;
    for (int i = 0; i < threads; ++i) block.fibers[static_cast<size_t>(i)]->waits = 0;
  }
  return any;
}

void run_block(int threads, bool ascending) {
  while (static_cast<int>(block.fibers.size()) < threads) block.fibers.push_back(std::make_unique<Fiber>());
  for (int i = 0; i < threads; ++i) {
    block.fibers[static_cast<size_t>(i)]->ended = false;
    block.fibers[static_cast<size_t>(i)]->waits = 0;
  }
  for (;;) {
    for (int turn = 0; turn < threads; ++turn) {
      const int i = ascending ? turn : threads - 1 - turn;
      Fiber& fiber = *block.fibers[static_cast<size_t>(i)];
      if (!fiber.ended && fiber.waits == 0) resume(i);
    }
    bool alive = false, runs = false;
    for (int i = 0; i < threads; ++i) {
      const Fiber& fiber = *block.fibers[static_cast<size_t>(i)];
      alive = alive || !fiber.ended;
      runs = runs || (!fiber.ended && fiber.waits == 0);  // it yielded
    }
    if (!alive) return;
    if (!release(threads) && !runs) {
      std::fprintf(stderr, "the threads of a block wait for each other\n");
      std::abort();
    }
  }
}

}  // namespace

cudaError_t put(std::function<void()> work) {
  if (kept != nullptr) kept->all.push_back(std::move(work));
  else work();
  return cudaSuccess;
}

cudaError_t run_grid(dim3 grid, dim3 threads, std::function<void()> thread) {
  if (threads.x == 0 || threads.x > kMostThreads || threads.y != 1 || grid.x == 0 || grid.y == 0 || grid.z == 0) {
    std::fprintf(stderr, "a grid of %u by %u by %u blocks of %u threads\n", grid.x, grid.y, grid.z, threads.x);
    std::abort();
  }
  grid_size = {grid.x, grid.y, grid.z};
  const unsigned blocks = grid.x * grid.y * grid.z;
  block_size = {threads.x, 1, 1};
  block.thread = &thread;
  for (unsigned i = 0; i < blocks; ++i) {
    const bool ascending = i % 2 == 0;
    const unsigned turn = ascending ? i / 2 : blocks - 1 - i / 2;
    block_index = {turn % grid.x, turn / grid.x % grid.y, turn / grid.x / grid.y};
    run_block(static_cast<int>(threads.x), ascending);
  }
  return cudaSuccess;
}

void yield() { pause(0); }
void barrier() { pause(2); }
void warp_barrier() { pause(1); }
uint64_t* warp_slots() { return block.slots + thread_index.x / 32 * 32; }

}  // namespace emulated

namespace {
size_t taken = 0;
}

cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t) { return "an error of the emulated device"; }
const char* cudaGetErrorString(cudaError_t) { return "it is told by its number"; }
// Fresh memory has arbitrary contents.
cudaError_t cudaMalloc(void** data, size_t bytes) {
  *data = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (*data == nullptr) return cudaErrorMemoryAllocation;
  memset(*data, 0xa5, bytes);
  taken += bytes;
  return cudaSuccess;
}
cudaError_t cudaFree(void* data) {
  std::free(data);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned) { return cudaMalloc(data, bytes); }
cudaError_t cudaFreeHost(void* data) { return cudaFree(data); }
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = *total = size_t{1} << 40;
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  memset(to, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t) {
  return emulated::put([=] { memcpy(to, from, bytes); });
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) {
  return emulated::put([=] { memset(to, value, bytes); });
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t*, unsigned, int) { return cudaSuccess; }
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new emulated::Happened{};
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  event->when = std::chrono::steady_clock::now();
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  *milliseconds = std::chrono::duration<float, std::milli>(end->when - begin->when).count();
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  emulated::kept = new emulated::Work;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  *graph = emulated::kept;
  emulated::kept = nullptr;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = new emulated::Work(*graph);
  return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t) {
  for (const auto& work : graph->all) work();
  ++emulated::graphs_launched;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) { return cudaGraphDestroy(graph); }
