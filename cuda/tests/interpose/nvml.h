// nvml: a fake of the driver's management library with one GPU, which returns values set by a test. Linked to a test,
// the engine finds it instead of the driver's.
#pragma once

#include <cstdint>

// The driver reports an Xid to all that are registered for such events.
extern "C" void fake_nvml_report(uint64_t xid);
// From now on the driver refuses event registrations, or accepts them again.
extern "C" void fake_nvml_refuse_events(bool refuse);
// Returns the number of event sets that exist.
extern "C" int fake_nvml_event_sets();
// From now on the function of this name returns a status, 0 for success.
extern "C" void fake_nvml_answer(const char* function, int status);
// Returns how often temperatures were read.
extern "C" int fake_nvml_asked();
