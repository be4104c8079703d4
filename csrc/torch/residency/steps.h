// steps.h: reports the operators of a device that is short of room to the core, and carries out the core's plans.
//
// core/step.h learns and plans. It is off until a storage is evicted to the host or learned steps are loaded.
#pragma once
#include <c10/util/ArrayRef.h>

#include <atomic>
#include <cstdint>

#include "core/steps/step.h"

namespace managed {

extern std::atomic<uint64_t> steps_watched; // bit i: the device with that id logs, or follows a plan

void begin_steps(int device); // call it when bytes had to leave the device for the host
// Called when an operator is about to use these storages, all of the device. Never throws: on an error nothing is done
// ahead of need.
void follow_step(int device, const char* operator_name, c10::ArrayRef<mgd_step_use> uses) noexcept;
// Called when this thread has got bytes of the device's allocator for an operator. Throws nothing.
void note_request(int device, const void* at, int64_t bytes);
// Called when the storages are at home and the operator is about to run. Never throws.
void begin_work(int device) noexcept;
// What a plan has laid out on the device (close_arenas: on all devices) leaves, and the block is given back unless some
// of it is in use. Never throws.
void close_arena(int device);
void close_arenas();
void learn_steps(bool on);
bool learns_steps();

} // namespace managed
