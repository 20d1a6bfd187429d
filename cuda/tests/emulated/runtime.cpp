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
constexpr size_t kStackStep = kStack + 17 * 64;  // the frames of a block's threads are in different sets of the processor's caches
constexpr int kMostThreads = 1024, kWarp = 32;

enum State : uint8_t { kRuns, kYields, kAtWarp, kAtBlock, kEnded };

// Fiber is a thread of a block. Its stack is reused by later threads.
struct Fiber {
  ucontext_t first;
  jmp_buf at;
  bool begun = false;
};

// Block is the fibers that a host thread runs; there is one for each host thread. A fiber that pauses switches to the next one itself.
struct Block {
  Fiber fibers[kMostThreads];
  State states[kMostThreads];
  uint8_t turns[kMostThreads];
  int at_warp[kMostThreads / kWarp], ended_of_warp[kMostThreads / kWarp];
  std::vector<int> complete;  // warps whose threads are all at a barrier of the warp
  int threads, current, at_block, yielding, ended;
  bool ascending;
  jmp_buf outside;
  const std::function<void()>* thread = nullptr;
  std::unique_ptr<char[]> stacks{new char[kMostThreads * kStackStep]};
};
thread_local std::unique_ptr<Block> owner;
thread_local Block* block = nullptr;

// The next thread of this pass that runs, after or before thread i; -1: none.
int next_of_pass(int i) {
  const void* at = nullptr;
  if (block->ascending) {
    if (i + 1 < block->threads) at = memchr(block->states + i + 1, kRuns, static_cast<size_t>(block->threads - i - 1));
  } else if (i > 0) {
    at = memrchr(block->states, kRuns, static_cast<size_t>(i));
  }
  return at == nullptr ? -1 : static_cast<int>(static_cast<const State*>(at) - block->states);
}

void release(State waiting) {
  for (int i = 0; i < block->threads; ++i)
    if (block->states[i] == waiting) block->states[i] = kRuns;
}

// The thread that runs next; -1: all have ended. When no thread of a pass is left, barriers that are complete are released. Threads that
// yielded run again when all others wait or have ended.
int next_thread() {
  for (int i = block->current;; i = block->ascending ? -1 : block->threads) {
    const int next = next_of_pass(i);
    if (next >= 0) return next;
    if (block->ended == block->threads) return -1;
    bool released = !block->complete.empty();
    for (const int warp : block->complete) {
      block->at_warp[warp] = 0;
      memset(block->states + warp * kWarp, kRuns, kWarp);
    }
    block->complete.clear();
    if (block->at_block > 0 && block->at_block == block->threads - block->ended) {
      block->at_block = 0;
      release(kAtBlock);
      released = true;
    }
    if (released) continue;
    if (block->yielding == 0) {
      std::fprintf(stderr, "the threads of a block wait for each other\n");
      std::abort();
    }
    block->yielding = 0;
    release(kYields);
  }
}

void main_of_fiber();

[[noreturn]] void resume(int i) {
  Fiber& fiber = block->fibers[i];
  block->current = i;
  thread_index.x = static_cast<unsigned>(i);
  if (fiber.begun) _longjmp(fiber.at, 1);
  fiber.begun = true;
  getcontext(&fiber.first);
  fiber.first.uc_stack.ss_sp = block->stacks.get() + static_cast<size_t>(i) * kStackStep;
  fiber.first.uc_stack.ss_size = kStack;
  fiber.first.uc_link = nullptr;
  makecontext(&fiber.first, main_of_fiber, 0);
  setcontext(&fiber.first);
  std::abort();
}

void check_warp(int warp) {
  const int threads = std::min(kWarp, block->threads - warp * kWarp), ended = block->ended_of_warp[warp];
  if (block->at_warp[warp] == 0 || (ended == 0 && threads == kWarp)) return;
  std::fprintf(stderr, "a warp of %d threads, %d of them ended, exchanges values\n", threads, ended);
  std::abort();
}

void main_of_fiber() {
  for (;;) {
    (*block->thread)();
    const int mine = block->current, warp = mine / kWarp;
    block->states[mine] = kEnded;
    ++block->ended;
    ++block->ended_of_warp[warp];
    check_warp(warp);
    const int next = next_thread();
    if (_setjmp(block->fibers[mine].at) != 0) continue;
    if (next < 0) _longjmp(block->outside, 1);
    resume(next);
  }
}

void pause(State state) {
  const int mine = block->current, warp = mine / kWarp;
  block->states[mine] = state;
  if (state == kYields) ++block->yielding;
  if (state == kAtBlock) ++block->at_block;
  if (state == kAtWarp) {
    if (++block->at_warp[warp] == kWarp) block->complete.push_back(warp);
    check_warp(warp);
  }
  const int next = next_thread();
  if (next == mine) return;
  if (_setjmp(block->fibers[mine].at) == 0) resume(next);
}

void run_block(int threads, bool ascending) {
  block->threads = threads;
  block->ascending = ascending;
  block->at_block = block->yielding = block->ended = 0;
  memset(block->states, kRuns, static_cast<size_t>(threads));
  memset(block->turns, 0, sizeof block->turns);
  memset(block->at_warp, 0, sizeof block->at_warp);
  memset(block->ended_of_warp, 0, sizeof block->ended_of_warp);
  if (_setjmp(block->outside) == 0) resume(ascending ? 0 : threads - 1);
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
  if (block == nullptr) {
    owner = std::make_unique<Block>();
    block = owner.get();
  }
  block->thread = &thread;
  for (unsigned i = 0; i < blocks; ++i) {
    const bool ascending = i % 2 == 0;
    const unsigned turn = ascending ? i / 2 : blocks - 1 - i / 2;
    block_index = {turn % grid.x, turn / grid.x % grid.y, turn / grid.x / grid.y};
    run_block(static_cast<int>(threads.x), ascending);
  }
  return cudaSuccess;
}

void yield() { pause(kYields); }
void barrier() { pause(kAtBlock); }
void warp_barrier() { pause(kAtWarp); }
uint32_t next_turn() { return block->turns[block->current] ^= 1; }

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
