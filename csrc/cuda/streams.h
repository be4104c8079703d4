// streams.h: which streams use the memory of a device.
//
// Torch's allocator takes a block back on the stream it was allocated for and
// knows of other streams only what record_stream() tells it, which ignores
// blocks that have a handle. So the streams of managed operators are remembered
// here, for each device. They are never forgotten: there are few, and torch's
// own live as long as the process. A stream of another library may no longer
// exist when it is needed: events remember what operators have started there.
#pragma once
#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <cuda_runtime_api.h>

#include <functional>

#include "cuda/devices.h"

namespace managed {

// Must be called before an operator of this thread uses memory of the device on its current stream. True: that is not
// torch's own, and this must be called again when the operator has returned. Never throws.
bool use_stream(int device);

// Must be called when the current stream of the device gets memory there. Never throws.
void know_stream(int device);
// This one is for a stream that need not be the current one and has got its memory.
void know_stream(int device, cudaStream_t stream);

// Calls f with each stream of torch's own that was used and, if streams of other libraries were used, with the current
// one. The caller must hold no lock.
void each_stream(int device, const std::function<void(cudaStream_t)>& f);
bool is_torchs(const c10::cuda::CUDAStream& stream); // another library may destroy its own at any time
bool is_recording(cudaStream_t stream); // into a graph; also true if the driver cannot tell

// Whether operators have used only streams of torch's own. A block belongs to its stream, and a stream of another
// library may no longer exist when the block is freed.
bool only_own_streams(int device);

// Returns when all that operators have started on the device is done. Throws c10::Error.
void wait_for_streams(int device);

// Must be called before the block is freed: the allocator then does not reuse it before the streams that may use it are
// done. Never throws and never waits.
void retire_block(const c10::DataPtr& block);

// Throws c10::Error if the current stream of the device records a CUDA graph.
void refuse_capture(int device);
// Returns whether it does; also true if the driver cannot tell.
bool is_capturing(int device);

} // namespace managed
