// streams.h: which streams use the memory of a device.
//
// Torch's allocator takes a block back on the stream it was allocated for and
// knows of other streams only what record_stream() tells it, which ignores
// blocks that have a handle. So the streams of managed operators are remembered
// here, a device at a time. They are never forgotten: there are few, and torch's
// own live as long as the process. A stream of another library may be gone when it
// is needed: what operators have started there is remembered by events.
#pragma once
#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <cuda_runtime_api.h>

#include <functional>

#include "cuda/devices.h"

namespace managed {

// An operator of this thread is about to use memory of the device on its current stream. True: that is not torch's own,
// and this is to be called again when the operator has returned. Never throws.
bool use_stream(int device);

// The current stream of the device gets memory there. Never throws.
void know_stream(int device);
// The same for a stream that need not be the current one and has got its memory.
void know_stream(int device, cudaStream_t stream);

// Calls f with each stream of torch's own that was used, and with the current one whosever it is. It may be called
// under no lock.
void each_stream(int device, const std::function<void(cudaStream_t)>& f);
bool is_recording(cudaStream_t stream); // a graph; also true when the driver cannot tell

// Whether nothing but streams of torch's own was used: a block belongs to its stream, and those of others may be gone
// when it is freed.
bool only_own_streams(int device);

// Returns when all that operators have started on the device is done; throws c10::Error.
void wait_for_streams(int device);

// The block may be freed after this: the allocator waits for the streams that may use it. Never throws and never waits.
void retire_block(const c10::DataPtr& block);

// Throws c10::Error where the current stream of the device records a CUDA graph.
void refuse_capture(int device);
// The same as an answer; also true when the driver cannot tell.
bool is_capturing(int device);

} // namespace managed
