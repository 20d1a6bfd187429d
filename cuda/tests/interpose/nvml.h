// nvml: a driver's management library of one GPU that says what a test wants it to say. Linked to a test, it is what the engine
// finds instead of the driver's.
#pragma once

#include <cstdint>

// The driver reports an Xid to all that are registered for such events.
extern "C" void fake_nvml_report(uint64_t xid);
// From now on the driver refuses to register anyone for events, or no longer.
extern "C" void fake_nvml_refuse_events(bool refuse);
// How many sets of events there are.
extern "C" int fake_nvml_event_sets();
// From now on the function of this name answers with a status, 0 for success.
extern "C" void fake_nvml_answer(const char* function, int status);
// How often temperatures were asked for.
extern "C" int fake_nvml_asked();
