// group.cpp: torch.distributed for tensors of simulated devices, between processes that each have devices of their own.
//
// A group hands the twins of its tensors to the backend that the host has (gloo), so nothing is copied. Owns which
// collective of that backend stands for which, and what passes the links meanwhile.
//
// Traffic is that of ring algorithms: P. Patarasu, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
// workstations", J. Parallel Distrib. Comput. 69 (2009), and PERFORMANCE.md of NVIDIA's nccl-tests.
#include <ATen/ops/from_blob.h>
#include <ATen/record_function.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <memory>
#include <utility>
#include <vector>

#include "sim/group/work.h"
#include "sim/device/timeline.h"
#include "sim/kernels/alias.h"
#include "sim/operators.h"
#include "sim/storage.h"

namespace managed::sim {
namespace {

using TensorLists = std::vector<Tensors>;
using c10d::OpType;
using Milliseconds = std::chrono::milliseconds;

double bytes_of(const Tensors &tensors) {
  double bytes = 0;
  for (const at::Tensor &t : tensors) bytes += static_cast<double>(t.nbytes());
  return bytes;
}

Tensors flat(const TensorLists &lists) {
  Tensors all;
  for (const Tensors &tensors : lists) all.insert(all.end(), tensors.begin(), tensors.end());
  return all;
}

// Shows the operands of a collective to the host's backend. `flat`: in one dimension, since gloo cuts along the first
// one, and NCCL takes tensors of any shape that have the right size (nn.SyncBatchNorm gathers into one row).
class Twins {
 public:
  explicit Twins(bool flat = false) : flat_(flat) {}

  template <class T>
  T written(const T &operands) {
    return seen(operands, true);
  }
  template <class T>
  T read(const T &operands) {
    return seen(operands, false);
  }

  int device() const { return device_; }
  const std::vector<std::shared_ptr<Operand>> &operands() const { return operands_; }

 private:
  at::Tensor seen(const at::Tensor &t, bool written) {
    if (!on_device(t)) return t;
    TORCH_CHECK_NOT_IMPLEMENTED(
        holds_values(), "simulated devices without values (values=False) have nothing to send to other processes");
    TORCH_CHECK(device_ < 0 || device_ == t.device().index(),
                "the tensors of a collective are on one device: these are on ", device_at(device_), " and ",
                t.device());
    device_ = t.device().index();
    const auto operand = std::make_shared<Operand>(Operand{t, aliases_.to_cpu(t), written});
    operands_.push_back(operand);
    // Gloo's threads drop their tensors a moment after a work has ended. The bytes may leave then, so the tensors share
    // the twin in a way that the work can end.
    const at::Tensor &twin = operand->twin;
    const at::Tensor shared =
        at::from_blob(twin.data_ptr(), twin.sizes(), twin.strides(), [operand](void *) {}, twin.options());
    return flat_ && shared.is_contiguous() ? shared.view({-1}) : shared;
  }
  template <class T>
  std::vector<T> seen(const std::vector<T> &operands, bool written) {
    std::vector<T> twins;
    for (const T &t : operands) twins.push_back(seen(t, written));
    return twins;
  }

  Aliases aliases_;
  std::vector<std::shared_ptr<Operand>> operands_;
  int device_ = -1;
  const bool flat_;
};

class Group final : public c10d::Backend {
 public:
  explicit Group(c10::intrusive_ptr<c10d::Backend> host)
      : Backend(host->getRank(), host->getSize()), host_(std::move(host)) {}

  const std::string getBackendName() const override { return kName; }
  void setSequenceNumberForGroup() override { host_->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return host_->getSequenceNumberForGroup(); }
  void setTimeout(Milliseconds timeout) override { host_->setTimeout(timeout); }
  void abort() override { host_->abort(); }
  void shutdown() override { host_->shutdown(); }

  WorkPtr allreduce(Tensors &tensors, const c10d::AllreduceOptions &options) override {
    return in_place(OpType::ALLREDUCE, &Backend::allreduce, tensors, all_reduced(tensors), options);
  }
  WorkPtr allreduce_coalesced(Tensors &tensors, const c10d::AllreduceCoalescedOptions &options) override {
    return in_place(OpType::ALLREDUCE_COALESCED, &Backend::allreduce_coalesced, tensors, all_reduced(tensors), options);
  }
  // The tensors of all ranks but the root are scratch.
  WorkPtr reduce(Tensors &tensors, const c10d::ReduceOptions &options) override {
    return in_place(OpType::REDUCE, &Backend::reduce, tensors, passed_on(tensors), options);
  }
  WorkPtr broadcast(Tensors &tensors, const c10d::BroadcastOptions &options) override {
    return in_place(OpType::BROADCAST, &Backend::broadcast, tensors, passed_on(tensors), options);
  }

  WorkPtr allgather(TensorLists &outputs, Tensors &inputs, const c10d::AllgatherOptions &options) override {
    return between(OpType::ALLGATHER, &Backend::allgather, outputs, inputs, exchanged(flat(outputs)), options);
  }
  WorkPtr allgather_coalesced(TensorLists &outputs, Tensors &inputs, const c10d::AllgatherOptions &options) override {
    return between(OpType::ALLGATHER_COALESCED, &Backend::allgather_coalesced, outputs, inputs,
                   exchanged(flat(outputs)), options);
  }
  WorkPtr _allgather_base(at::Tensor &output, at::Tensor &input, const c10d::AllgatherOptions &options) override {
    return between(OpType::_ALLGATHER_BASE, &Backend::_allgather_base, output, input, exchanged({output}), options,
                   Twins(true));
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                          const c10d::AllgatherOptions &options) override {
    return between(OpType::COALESCED, &Backend::allgather_into_tensor_coalesced, outputs, inputs, exchanged(outputs),
                   options, Twins(true));
  }

  WorkPtr reduce_scatter(Tensors &outputs, TensorLists &inputs, const c10d::ReduceScatterOptions &options) override {
    return between(OpType::REDUCE_SCATTER, &Backend::reduce_scatter, outputs, inputs, exchanged(flat(inputs)), options);
  }
  WorkPtr _reduce_scatter_base(at::Tensor &output, at::Tensor &input,
                               const c10d::ReduceScatterOptions &options) override {
    return between(OpType::_REDUCE_SCATTER_BASE, &Backend::_reduce_scatter_base, output, input, exchanged({input}),
                   options, Twins(true));
  }
  WorkPtr reduce_scatter_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                          const c10d::ReduceScatterOptions &options) override {
    return between(OpType::COALESCED, &Backend::reduce_scatter_tensor_coalesced, outputs, inputs, exchanged(inputs),
                   options, Twins(true));
  }

  WorkPtr gather(TensorLists &outputs, Tensors &inputs, const c10d::GatherOptions &options) override {
    return between(OpType::GATHER, &Backend::gather, outputs, inputs, at_root(inputs), options);
  }
  WorkPtr scatter(Tensors &outputs, TensorLists &inputs, const c10d::ScatterOptions &options) override {
    return between(OpType::SCATTER, &Backend::scatter, outputs, inputs, at_root(outputs), options);
  }
  WorkPtr alltoall(Tensors &outputs, Tensors &inputs, const c10d::AllToAllOptions &options) override {
    return between(OpType::ALLTOALL, &Backend::alltoall, outputs, inputs, exchanged(inputs), options);
  }
  WorkPtr alltoall_base(at::Tensor &output, at::Tensor &input, std::vector<int64_t> &output_sizes,
                        std::vector<int64_t> &input_sizes, const c10d::AllToAllOptions &options) override {
    Twins twins;
    at::Tensor to = twins.written(output), from = twins.read(input);
    return begin(OpType::ALLTOALL_BASE, twins, exchanged({input}), options,
                 [&](const auto &asked) { return host_->alltoall_base(to, from, output_sizes, input_sizes, asked); });
  }

  WorkPtr barrier(const c10d::BarrierOptions &options) override {
    Operands none{
        .device = options.device_ids.empty() ? current_device() : static_cast<int>(options.device_ids.front()),
        .is_barrier = true,
        .all = {}};
    check_device(none.device);
    auto work = c10::make_intrusive<Collective>(OpType::BARRIER, line_, std::move(none), all_reduced({}));
    follow(*work, options.timeout, [&] { return host_->barrier(options); });
    return work;
  }
  void monitoredBarrier(const c10d::BarrierOptions &options, bool all) override {
    host_->monitoredBarrier(options, all);
  }

  WorkPtr send(Tensors &tensors, int rank, int tag) override {
    Twins twins;
    Tensors host = twins.read(tensors);
    return message(OpType::SEND, twins, host, [&](Tensors &packed) { return host_->send(packed, rank, tag); });
  }
  WorkPtr recv(Tensors &tensors, int rank, int tag) override {
    Twins twins;
    Tensors host = twins.written(tensors);
    return message(OpType::RECV, twins, host, [&](Tensors &packed) { return host_->recv(packed, rank, tag); });
  }
  WorkPtr recvAnysource(Tensors &tensors, int tag) override {
    Twins twins;
    Tensors host = twins.written(tensors);
    return message(OpType::RECVANYSOURCE, twins, host,
                   [&](Tensors &packed) { return host_->recvAnysource(packed, tag); });
  }

 private:
  // N - 1 of N parts of the bytes pass each port, once, or twice for a sum that all ranks get.
  Traffic exchanged(const Tensors &all) const { return {bytes_of(all) * (getSize() - 1) / getSize(), getSize() - 1}; }
  Traffic all_reduced(const Tensors &tensors) const { return {2 * exchanged(tensors).bytes, 2 * (getSize() - 1)}; }
  // Each rank hands all bytes on to the next.
  Traffic passed_on(const Tensors &tensors) const { return {getSize() > 1 ? bytes_of(tensors) : 0, getSize() - 1}; }
  Traffic at_root(const Tensors &of_a_rank) const { return {bytes_of(of_a_rank) * (getSize() - 1), getSize() - 1}; }

  Operands operands(const Twins &twins, int divisor) {
    const int device = twins.device();
    const std::lock_guard<std::mutex> lock(line_->mutex);
    int &stream = line_->stream[device];
    if (!stream) stream = new_stream(device);
    for (const auto &operand : twins.operands()) note_use(operand->sim.storage().unsafeGetStorageImpl(), stream);
    return {.device = device, .all = twins.operands(), .divisor = divisor};
  }

  template <class Start>
  WorkPtr message(OpType type, const Twins &twins, Tensors &host, const Start &start) {
    if (twins.device() < 0) return start(host);
    TORCH_CHECK(host.size() == 1, "a message has one tensor, and here are ", host.size());
    await_users_of(twins);
    auto work = c10::make_intrusive<Message>(type, line_, operands(twins, 1), Traffic{bytes_of(host), 1});
    Tensors packed{work->packed()};
    work->follow(start(packed));
    return work;
  }

  // Waits until no collective of this group uses the operands. Gloo itself begins one when the one before has ended,
  // but a mean is divided, and a message is packed, outside of gloo.
  void await_users_of(const Twins &twins) {
    std::vector<c10::intrusive_ptr<Collective>> begun;
    {
      const std::lock_guard<std::mutex> lock(line_->mutex);
      begun.assign(line_->begun.begin(), line_->begun.end());
    }
    for (const auto &work : begun)
      for (const auto &operand : twins.operands())
        if (work->uses(operand->twin)) work->await_gloo();
  }

  // All ranks begin the two works in this order. If gloo refuses the first, nothing has begun.
  template <class Start>
  void follow(Collective &work, Milliseconds timeout, const Start &start) {
    Tensors times{work.times()};
    c10d::AllreduceOptions latest;
    latest.reduceOp = c10d::ReduceOp::MAX;
    latest.timeout = timeout;
    const std::lock_guard<std::mutex> lock(order_);
    const WorkPtr values = start();
    const at::RecordFunctionGuard unseen(false); // a profile shows the program's collectives alone
    work.follow(values, host_->allreduce(times, latest));
  }

  // Calls start(options) for a collective, or gloo alone if all tensors are on the host. Gloo's mean takes no integers,
  // so a mean is a sum that is divided.
  template <class Options, class Start>
  WorkPtr begin(OpType type, const Twins &twins, const Traffic &traffic, const Options &options, const Start &start) {
    if (twins.device() < 0) return start(options);
    Options asked = options;
    int divisor = 1;
    if constexpr (requires { asked.reduceOp; }) {
      if (asked.reduceOp == c10d::ReduceOp::AVG) {
        asked.reduceOp = c10d::ReduceOp::SUM;
        divisor = getSize();
      }
    }
    auto work = c10::make_intrusive<Collective>(type, line_, operands(twins, divisor), traffic);
    await_users_of(twins);
    follow(*work, options.timeout, [&] { return start(asked); });
    return work;
  }

  template <class Options>
  WorkPtr in_place(OpType type, WorkPtr (Backend::*call)(Tensors &, const Options &), const Tensors &tensors,
                   const Traffic &traffic, const Options &options) {
    Twins twins;
    Tensors host = twins.written(tensors);
    return begin(type, twins, traffic, options, [&](const Options &asked) { return (*host_.*call)(host, asked); });
  }

  template <class To, class From, class Options>
  WorkPtr between(OpType type, WorkPtr (Backend::*call)(To &, From &, const Options &), const To &outputs,
                  const From &inputs, const Traffic &traffic, const Options &options, Twins twins = Twins()) {
    To to = twins.written(outputs);
    From from = twins.read(inputs);
    return begin(type, twins, traffic, options, [&](const Options &asked) { return (*host_.*call)(to, from, asked); });
  }

  const c10::intrusive_ptr<c10d::Backend> host_;
  const std::shared_ptr<Line> line_ = std::make_shared<Line>();
  std::mutex order_; // of what is begun by gloo
};

using GroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;

GroupPtr process_group(const GroupPtr &host) {
  auto group = c10::make_intrusive<c10d::ProcessGroup>(host->getRank(), host->getSize());
  group->setBackend(kDevice, c10d::ProcessGroup::BackendType::CUSTOM,
                    c10::make_intrusive<Group>(host->getBackend(c10::kCPU)));
  return group;
}

} // namespace

void register_group(torch::Library &m) {
  m.def("process_group(__torch__.torch.classes.c10d.ProcessGroup host) -> __torch__.torch.classes.c10d.ProcessGroup",
        &process_group);
}

} // namespace managed::sim
