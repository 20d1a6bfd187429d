// What is read of the driver's management library, from one that the test speaks through.
#include "src/nvml.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/interpose/nvml.h"

namespace mr::cuda {
namespace {

constexpr char kPci[] = "0000:01:00.0";

TEST(Readings, AreUnknownWhereTheDriverHasNone) {
  const Readings here = read_nvml(kPci), nowhere = read_nvml("");
  EXPECT_EQ(here.temperature_c, 41);
  EXPECT_EQ(here.power_mw, INT32_MIN);  // refused
  EXPECT_EQ(here.errors, 0u);           // no such function
  EXPECT_EQ(here.bytes_total, 0u);
  EXPECT_EQ(nowhere.temperature_c, INT32_MIN);
}

TEST(XidWatch, TellsTheLastOfWhatItHeard) {
  fake_nvml_report(79);  // of the time before
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
