// streams.cpp: record_stream for tensors whose storage has a handle.
//
// Torch's allocator ignores pointers with a deleter that is not its own, so it is
// told of the block inside. This kernel is registered where operators meet the hook.
#include <ATen/core/Tensor.h>
#include <ATen/ops/record_stream.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include "torch/residency/hold.h"
#include "torch/facts/key.h"
#include "torch/entry/register.h"
#include "torch/threads/threads.h"

namespace managed {
namespace {

void record_stream(at::Tensor& self, c10::Stream stream) {
  const OperatorSection visit;
  const HeldTensor held(self, false);
  each_storage(self, [&](c10::StorageImpl* s) {
    if (const StorageHandle* h = handle_of(s))
      c10::getDeviceAllocator(s->device().type())->recordStream(h->block, stream);
  });
  const c10::impl::ExcludeDispatchKeyGuard below(kKey);
  self.record_stream(stream); // for parts without a handle; it ignores those that have one
}

} // namespace

void register_record_stream() {
  static auto* library = new torch::Library(torch::Library::IMPL, "aten", kKey, __FILE__, __LINE__);
  library->impl(kRecordStream, TORCH_FN(record_stream));
}

} // namespace managed
