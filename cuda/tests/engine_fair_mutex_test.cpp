// The order in which waiting threads get a fair mutex. No GPU is needed.
#include "src/fair_mutex.h"

#include <gtest/gtest.h>

#include <vector>

namespace mr::cuda::test {
namespace {

void until_waiting(const FairMutex& mutex, uint64_t count) {
  while (mutex.waiting() < count) std::this_thread::yield();
}

TEST(FairMutex, ComesToWaitersInTheirOrder) {
  FairMutex mutex;
  std::vector<int> order;
  mutex.lock();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      const std::lock_guard<FairMutex> lock(mutex);
      order.push_back(i);
    });
    until_waiting(mutex, static_cast<uint64_t>(i) + 1);
  }
  mutex.unlock();
  mutex.lock();  // again at once: after all that waited
  order.push_back(4);
  mutex.unlock();
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4}));
  EXPECT_EQ(mutex.waiting(), 0u);
}

TEST(FairMutex, MayBeTakenAgainByItsHolder) {
  FairMutex mutex;
  mutex.lock();
  mutex.lock();
  bool held = false;
  std::thread other([&] {
    const std::lock_guard<FairMutex> lock(mutex);
    held = true;
  });
  until_waiting(mutex, 1);
  mutex.unlock();
  EXPECT_EQ(mutex.waiting(), 1u);
  mutex.lock();  // the same holder
  mutex.unlock();
  mutex.unlock();
  other.join();
  EXPECT_TRUE(held);
}

TEST(FairMutex, LetsOneInAtATime) {
  FairMutex mutex;
  int count = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 2000; ++n) {
        const std::lock_guard<FairMutex> lock(mutex);
        ++count;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(count, 8000);
}

}  // namespace
}  // namespace mr::cuda::test
