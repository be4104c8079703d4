// steps.h: tells the core of the operators of a device that is short of room, and carries out what it has planned.
//
// What is learned and planned is core/step.h's. Off until something had to leave a device.
#pragma once
#include <c10/util/ArrayRef.h>

#include <atomic>
#include <cstdint>

#include "core/steps/step.h"

namespace managed {

extern std::atomic<uint64_t> steps_watched; // bit i: the device with that id logs, or follows a plan

void begin_steps(int device); // bytes had to leave it for the host
// An operator is about to use these storages, all of the device. Never throws: without a plan all goes on as before.
void follow_step(int device, const char* operator_name, c10::ArrayRef<mgd_step_use> uses) noexcept;
// The storages are at home, and the operator is about to run. Never throws.
void begin_work(int device) noexcept;
void learn_steps(bool on);
bool learns_steps();

} // namespace managed
