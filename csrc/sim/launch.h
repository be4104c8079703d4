// launch.h: reports a kernel to the simulator's clock, or to the streams of a virtual GPU.
//
// There is one object for each operator call. Each backend implements these few functions; see backend.h.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "sim/cost.h"
#include "sim/facts.h"
#ifdef MANAGED_VIRTUAL_GPU
#include <optional>

#include "sim/kernels.h"
#endif

namespace managed::sim {

class Launch {
 public:
  // The arguments are still the device's tensors.
  Launch(const OperatorFacts &facts, c10::ArrayRef<c10::IValue> arguments);
  ~Launch();
  Launch(const Launch &) = delete;
  Launch &operator=(const Launch &) = delete;

  void operand(const at::Tensor &t, bool written);
  // Follows operand() for all operands. The kernel runs until ran(); nothing may be allocated on the device meanwhile.
  void begin(int device);
  void ran();
  void result(const at::Tensor &t, bool first);
  void end(); // the operator has ended; not called if it failed

 private:
  const OperatorFacts &facts_;
  int device_ = -1;
#ifdef MANAGED_VIRTUAL_GPU
  struct Access {
    const void *address;
    std::size_t bytes;
    bool written;
  };
  void members(const at::Tensor &t, bool written);
  c10::SmallVector<Access, 8> accesses_;
  std::optional<Kernel> kernel_;
#else
  Arithmetic arithmetic_;
  double bytes_ = 0, outputs_ = 0;
  void writes(const at::Tensor &t);
  c10::SmallVector<c10::StorageImpl *, 4> written_; // empty if there is one device only
#endif
};

}  // namespace managed::sim
