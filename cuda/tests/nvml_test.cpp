// What the engine reads from the driver's management library, for which a fake library stands in.
#include "src/nvml.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "tests/interpose/nvml.h"

namespace mr::cuda {
namespace {

constexpr char kPci[] = "0000:01:00.0";

constexpr int kNotSupported = 3, kGpuIsLost = 15, kResetRequired = 16, kUnknown = 999;

// Answer makes a function return a status during its lifetime.
class Answer {
 public:
  Answer(const char* function, int status) : function_(function) { fake_nvml_answer(function, status); }
  ~Answer() { fake_nvml_answer(function_, 0); }

 private:
  const char* const function_;
};

TEST(Readings, AreWhatTheDriverSays) {
  const Answer power("nvmlDeviceGetPowerUsage", 0);
  const Readings here = read_nvml(kPci);
  EXPECT_EQ(here.temperature_c, 41);
  EXPECT_EQ(here.power_mw, 123'456);
  EXPECT_EQ(here.errors, 2u);
  EXPECT_EQ(here.corrected_errors, 70u);
  EXPECT_EQ(here.bytes_total, 1000u);
  EXPECT_EQ(here.bytes_free, 400u);
  EXPECT_STREQ(here.problem, "");
  EXPECT_STREQ(here.lost, "");
}

TEST(Readings, ThatADeviceDoesNotHaveAreUnknownAndNoProblem) {
  const Answer power("nvmlDeviceGetPowerUsage", kNotSupported), ecc("nvmlDeviceGetTotalEccErrors", kNotSupported);
  const Readings here = read_nvml(kPci);
  EXPECT_EQ(here.temperature_c, 41);
  EXPECT_EQ(here.power_mw, INT32_MIN);
  EXPECT_EQ(here.errors, UINT64_MAX);
  EXPECT_EQ(here.corrected_errors, UINT64_MAX);
  EXPECT_STREQ(here.problem, "");
}

TEST(Readings, ThatFailAreUnknownAndTheirFunctionIsNamed) {
  const Answer memory("nvmlDeviceGetMemoryInfo", kUnknown);
  const Readings here = read_nvml(kPci);
  EXPECT_EQ(here.temperature_c, 41);
  EXPECT_EQ(here.bytes_total, UINT64_MAX);
  EXPECT_EQ(here.bytes_free, UINT64_MAX);
  EXPECT_STREQ(here.problem, "nvml: nvmlDeviceGetMemoryInfo: error 999");
  EXPECT_STREQ(here.lost, "");
}

TEST(Readings, OfAnotherDeviceAreUnknown) {
  const Readings nowhere = read_nvml("");
  EXPECT_EQ(nowhere.temperature_c, INT32_MIN);
  EXPECT_EQ(nowhere.errors, UINT64_MAX);
  EXPECT_STREQ(nowhere.problem, "nvml: nvmlDeviceGetHandleByPciBusId_v2: error 2");
}

TEST(Readings, AreUnknownWithoutTheLibraryWhichIsNamed) {
  const Readings none = read_nvml(kPci, "libnowhere.so.1");
  EXPECT_EQ(none.temperature_c, INT32_MIN);
  EXPECT_EQ(none.bytes_total, UINT64_MAX);
  EXPECT_STREQ(none.problem, "nvml: libnowhere.so.1 cannot be opened");
}

TEST(Readings, NameALibraryThatLacksWhatIsAskedOf) {
  const Readings none = read_nvml(kPci, "libm.so.6");
  EXPECT_STREQ(none.problem, "nvml: the library has no nvmlInit_v2 or nvmlDeviceGetHandleByPciBusId_v2");
}

TEST(Readings, TellALostGpuAndOneThatHasToBeReset) {
  for (const int status : {kGpuIsLost, kResetRequired})
    for (const char* function : {"nvmlDeviceGetHandleByPciBusId_v2", "nvmlDeviceGetTemperature", "nvmlDeviceGetMemoryInfo"}) {
      const Answer lost(function, status);
      const std::string said = read_nvml(kPci).lost;
      EXPECT_NE(said.find(std::string(function) + ": error " + std::to_string(status)), std::string::npos) << said;
      EXPECT_NE(said.find(status == kGpuIsLost ? "lost" : "reset"), std::string::npos) << said;
    }
  EXPECT_STREQ(read_nvml(kPci).lost, "");
}

TEST(Management, AsksOnceHoweverManyWant) {
  Management management([] { return read_nvml(kPci); }, std::chrono::hours(1));
  const int before = fake_nvml_asked();
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (int i = 0; i < 16; ++i)
    threads.emplace_back([&] {
      for (int k = 0; k < 100; ++k) good += management.read().temperature_c == 41 ? 1 : 0;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good.load(), 1600);
  EXPECT_EQ(fake_nvml_asked(), before + 1);
}

TEST(Management, AsksAgainWhenItsReadingsAreOld) {
  Management management([] { return read_nvml(kPci); }, std::chrono::milliseconds(0));
  EXPECT_EQ(management.read().bytes_free, 400u);
  const Answer memory("nvmlDeviceGetMemoryInfo", kUnknown);
  EXPECT_EQ(management.read().bytes_free, UINT64_MAX);
}

TEST(Management, GivesTheLastReadingsWhileSomebodyAsks) {
  std::atomic<int> asked{0};
  std::atomic<bool> entered{false}, answer{false};
  Management management([&] {
    Readings readings;
    readings.temperature_c = ++asked;
    if (asked == 2) {
      entered = true;
      while (!answer) std::this_thread::yield();
    }
    return readings;
  }, std::chrono::milliseconds(0));
  EXPECT_EQ(management.read().temperature_c, 1);
  std::thread slow([&] { EXPECT_EQ(management.read().temperature_c, 2); });
  while (!entered) std::this_thread::yield();
  EXPECT_EQ(management.read().temperature_c, 1);
  answer = true;
  slow.join();
  EXPECT_EQ(asked.load(), 2);
}

TEST(XidWatch, TellsTheLastOfWhatItHeard) {
  fake_nvml_report(79);  // an event from before
  XidWatch watch(kPci);
  EXPECT_EQ(watch.last(0), 0u);
  fake_nvml_report(13);
  fake_nvml_report(31);
  EXPECT_EQ(watch.last(0), 31u);
  EXPECT_EQ(watch.last(0), 31u);
  fake_nvml_report(48);
  watch.listen();
  EXPECT_EQ(watch.last(0), 48u);
}

TEST(XidWatch, WaitsForTheReportOfWhatHappensNow) {
  XidWatch watch(kPci);
  std::thread driver([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    fake_nvml_report(79);
  });
  EXPECT_EQ(watch.last(60'000), 79u);
  driver.join();
}

TEST(XidWatch, TakesAnOldReportForNoReason) {
  XidWatch watch(kPci, std::chrono::milliseconds(1));
  fake_nvml_report(13);
  watch.listen();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(watch.last(0), 0u);
}

TEST(XidWatch, EndsItsEvents) {
  {
    const XidWatch one(kPci), other(kPci);
    EXPECT_EQ(fake_nvml_event_sets(), 2);
  }
  EXPECT_EQ(fake_nvml_event_sets(), 0);
}

TEST(XidWatch, HearsNothingWhereEventsAreRefused) {
  fake_nvml_refuse_events(true);
  XidWatch watch(kPci), nowhere("");
  fake_nvml_refuse_events(false);
  EXPECT_EQ(fake_nvml_event_sets(), 0);
  fake_nvml_report(13);
  EXPECT_EQ(watch.last(0), 0u);
  EXPECT_EQ(nowhere.last(0), 0u);
}

}  // namespace
}  // namespace mr::cuda
