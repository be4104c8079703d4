// buckets.cpp: see buckets.h.
#include "torch/align/buckets.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "core/bucket.h"
#include "torch/align/trips.h"
#include "torch/align/values.h"
#include "torch/devices/devices.h"
#include "torch/residency/hold.h"
#include "torch/tensor/adopt.h"
#include "torch/tensor/state.h"

namespace managed {
namespace {

using torch::autograd::variable_list;

constexpr std::size_t kLag = 8; // buckets; how much later than its gradients a sum is issued

const Cause kSpread{"data parallel", MGD_EV_COPY, MGD_WHY_PLACED};
const Cause kReturn{"gradient", MGD_EV_COPY, MGD_WHY_GRADIENT};

// Returns another tensor over the bytes of `flat`, which torch does not know as a view: its version is its own, since
// no other piece has its bytes.
at::Tensor part_of(const at::Tensor& flat, at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const c10::impl::ExcludeDispatchKeyGuard plain(kKey);
  at::Tensor r = at::as_strided(flat, sizes, strides, flat.storage_offset() + offset);
  mark(r);
  return r;
}

at::Tensor part_of(const at::Tensor& flat, int64_t offset, int64_t numel) {
  const int64_t size[] = {numel}, stride[] = {1};
  return part_of(flat, size, stride, offset);
}

// The numbers of t, which has the sizes of the member, in the member's order and in one dimension.
at::Tensor flattened(const at::Tensor& t, const Member& m) {
  if (t.strides() == m.strides) return part_of(t, 0, m.numel);
  const at::Tensor r = at::empty_strided(m.sizes, m.strides, t.options());
  r.copy_(t);
  return part_of(r, 0, m.numel);
}

// Where part `number` of a relayed bucket begins; the last one ends at numel.
int64_t begin_of(const BucketLayout& layout, std::size_t number) {
  const auto parts = static_cast<int64_t>(layout.devices.size());
  return layout.numel / parts * static_cast<int64_t>(number);
}

at::Tensor part_for(const at::Tensor& flat, const BucketLayout& layout, std::size_t number) {
  const int64_t begin = begin_of(layout, number);
  const int64_t end = number + 1 == layout.devices.size() ? layout.numel : begin_of(layout, number + 1);
  return part_of(flat, begin, end - begin);
}

// Calls f with each number below `count`, from `first` on and around.
template <class F>
void around(std::size_t first, std::size_t count, const F& f) {
  for (std::size_t k = 0; k < count; k++) f((first + k) % count);
}

at::Tensor sent_to(const at::Tensor& t, c10::Device to, const Cause& cause) {
  return t.device() == to ? t : send_values(t, to, cause);
}

// ---- gradients

// What has come from one device in a backward pass.
struct FromDevice {
  std::size_t device;
  int pass; // the engine's number of the pass; passes through one graph may run at once (checkpoints)
  at::Tensor flat; // at home; undefined if the bucket is relayed, or if nothing dense came
  std::vector<at::Tensor> parts; // of a relayed bucket, each on its device
  std::vector<bool> came; // by member
  std::vector<std::pair<std::size_t, at::Tensor>> sparse; // (member, gradient at home)
};

// What the pieces that one call of spread() has made of a bucket give back.
class Returns {
 public:
  explicit Returns(std::shared_ptr<const BucketLayout> l) : layout(std::move(l)) {}
  void add(FromDevice from) {
    std::lock_guard<std::mutex> lock(mutex_);
    all_.push_back(std::move(from));
  }
  // Takes what has come in a pass, in the order of the devices.
  std::vector<FromDevice> take(int pass) {
    std::vector<FromDevice> found, others;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      for (FromDevice& from : all_) (from.pass == pass ? found : others).push_back(std::move(from));
      all_.swap(others);
    }
    std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.device < b.device; });
    return found;
  }
  const std::shared_ptr<const BucketLayout> layout;

 private:
  std::mutex mutex_; // a leaf; guards all_
  std::vector<FromDevice> all_;
};

// The gradients in one tensor with a handle, zeros where there is none. Takes them.
at::Tensor joined(variable_list& grads, const BucketLayout& layout, c10::Device here) {
  std::vector<at::Tensor> flat;
  for (std::size_t i = 0; i < grads.size(); i++) {
    const Member& m = layout.members[i];
    at::Tensor g = std::move(grads[i]);
    flat.push_back(g.defined() ? flattened(g, m) : at::zeros({m.numel}, at::device(here).dtype(layout.type)));
  }
  at::Tensor r = flat.size() == 1 ? std::move(flat[0]) : at::cat(flat);
  if (r.storage().use_count() != 1) r = r.clone(); // a node may give one gradient to several parameters
  mark(r);
  give_handle(r, flat.size() != 1); // without one, its device would wait for the copy
  return r;
}

struct GradientHere : torch::autograd::Node {
  GradientHere(std::shared_ptr<Returns> returns, std::size_t number)
      : Node(kRunsFirst), returns_(std::move(returns)), number_(number) {}

  variable_list apply(variable_list&& grads) override {
    TORCH_CHECK_NOT_IMPLEMENTED(!c10::GradMode::is_enabled(),
                                "managed: gradients of a DataParallel model's parameters have no gradients "
                                "themselves (create_graph=True). Use the module on one device, or "
                                "cuda(disperse=True), for steps that need them.");
    if (!is_wanted()) return variable_list(num_outputs());
    const BucketLayout& layout = *returns_->layout;
    FromDevice from{number_, torch::autograd::get_current_graph_task_id(), {}, {}, {}, {}};
    bool any = false;
    for (std::size_t i = 0; i < grads.size(); i++) {
      from.came.push_back(grads[i].defined());
      if (!grads[i].defined()) continue;
      if (grads[i].layout() == at::kStrided) any = true;
      else from.sparse.emplace_back(i, cross_values(std::exchange(grads[i], {}), layout.home, kReturn));
    }
    if (any) send(joined(grads, layout, layout.devices[number_]), from);
    returns_->add(std::move(from));
    return variable_list(num_outputs());
  }
  std::string name() const override { return "ManagedGradientHere"; }

 private:
  // Whether this pass goes on to the home of the bucket: one that was asked for some inputs may only lead to a later
  // bucket from here.
  bool is_wanted() const {
    const auto* asked = torch::autograd::get_current_graph_task_exec_info();
    if (!asked || asked->empty()) return true;
    const auto found = asked->find(next_edge(0).function.get());
    return found != asked->end() && found->second.should_execute();
  }

  void send(const at::Tensor& flat, FromDevice& from) const {
    const BucketLayout& layout = *returns_->layout;
    if (!layout.relayed) {
      from.flat = sent_to(flat, layout.home, kReturn);
      return;
    }
    from.parts.resize(layout.devices.size());
    around(number_, layout.devices.size(),
           [&](std::size_t i) { from.parts[i] = sent_to(part_for(flat, layout, i), layout.devices[i], kReturn); });
  }

  std::shared_ptr<Returns> returns_;
  std::size_t number_; // of its device
};

struct GradientHome : torch::autograd::Node {
  explicit GradientHome(std::shared_ptr<Returns> returns) : Node(kRunsFirst), returns_(std::move(returns)) {}

  variable_list apply(variable_list&& /*none*/) override {
    const BucketLayout& layout = *returns_->layout;
    const std::vector<FromDevice> all = returns_->take(torch::autograd::get_current_graph_task_id());
    variable_list out(layout.members.size());
    const at::Tensor total = sum(all);
    if (total.defined()) keep_home_until_used(total); // the engine reads its pointer
    for (std::size_t i = 0; i < out.size(); i++) {
      bool dense = false;
      for (const FromDevice& from : all) {
        const at::Tensor* sparse = nullptr;
        for (const auto& [member, g] : from.sparse)
          if (member == i) sparse = &g;
        if (sparse) out[i] = out[i].defined() ? out[i].add(*sparse) : *sparse;
        else dense |= from.came[i];
      }
      if (!dense) continue;
      const Member& m = layout.members[i];
      const at::Tensor part = part_of(total, m.sizes, m.strides, m.offset);
      out[i] = out[i].defined() ? part.add(out[i]) : part;
    }
    return out;
  }
  std::string name() const override { return "ManagedGradientHome"; }

 private:
  // Adds what `tensor_in` finds, in the order of the devices. Undefined: nothing dense has come.
  template <class F>
  static at::Tensor sum_of(const std::vector<FromDevice>& all, const F& tensor_in) {
    at::Tensor total;
    bool is_own = false; // total is a result of this function
    for (const FromDevice& from : all) {
      const at::Tensor* t = tensor_in(from);
      if (!t || !t->defined()) continue;
      if (is_own) total.add_(*t);
      else {
        is_own = total.defined();
        total = is_own ? total.add(*t) : *t;
      }
    }
    return total;
  }

  at::Tensor sum(const std::vector<FromDevice>& all) const {
    const BucketLayout& layout = *returns_->layout;
    if (!layout.relayed) {
      at::Tensor total = sum_of(all, [](const FromDevice& from) { return &from.flat; });
      if (total.defined()) give_handle(total, false);
      return total;
    }
    std::vector<at::Tensor> parts;
    for (std::size_t i = 0; i < layout.devices.size(); i++) {
      at::Tensor part =
          sum_of(all, [i](const FromDevice& from) { return from.parts.empty() ? nullptr : &from.parts[i]; });
      if (!part.defined()) return {};
      give_handle(part, false);
      parts.push_back(sent_to(part, layout.home, kReturn));
    }
    at::Tensor total = at::cat(parts);
    give_handle(total, false);
    return total;
  }

  std::shared_ptr<Returns> returns_;
};

// Whether t can cross in a bucket: one dense piece of numbers, which the hook sees.
bool may_join(const at::Tensor& t) {
  return t.defined() && has_key(t.unsafeGetTensorImpl()) && t.layout() == at::kStrided && t.has_storage() &&
      !needs_torch(t) && !t.is_conj() && !t.is_neg() && !t.is_quantized() && !has_names(t) && t.numel() > 0 &&
      t.is_non_overlapping_and_dense() && id_of(t.device()) >= 0;
}

bool is_like(const at::Tensor& t, const BucketLayout& layout, const Member& m) {
  return may_join(t) && t.device() == layout.home && t.scalar_type() == layout.type && t.sizes() == m.sizes &&
      t.strides() == m.strides;
}

} // namespace

// ---- copies

bool Buckets::is_grouped(const std::vector<at::Tensor>& tensors) const {
  if (alone_.size() != tensors.size()) return false;
  for (std::size_t i = 0; i < tensors.size(); i++)
    if (alone_[i] == may_join(tensors[i])) return false;
  for (const Bucket& b : buckets_)
    for (const Member& m : b.layout->members)
      if (!is_like(tensors[m.index], *b.layout, m)) return false;
  return true;
}

void Buckets::group(const std::vector<at::Tensor>& tensors) {
  std::vector<mgd_bucket_item> items;
  std::vector<std::size_t> index_of;
  buckets_.clear();
  alone_.clear();
  std::vector<bool> alone(tensors.size(), true);
  for (std::size_t i = 0; i < tensors.size(); i++) {
    const at::Tensor& t = tensors[i];
    if (!may_join(t)) continue;
    alone[i] = false;
    items.push_back({id_of(t.device()), static_cast<int>(t.scalar_type()), static_cast<int64_t>(t.nbytes())});
    index_of.push_back(i);
  }
  std::vector<uint32_t> bucket_of(items.size());
  const int code = mgd_bucket_group(items.data(), items.size(), least_bytes_with_handle, bucket_of.data());
  TORCH_CHECK(code == MGD_OK, "managed: parameters cannot be grouped: ", mgd_text_error(code));
  std::vector<std::shared_ptr<BucketLayout>> layouts(items.size()); // by the number of the bucket
  for (std::size_t i = 0; i < items.size(); i++) {
    const at::Tensor& t = tensors[index_of[i]];
    auto& layout = layouts[bucket_of[i]];
    if (!layout) {
      layout = std::make_shared<BucketLayout>(BucketLayout{t.device(), t.scalar_type(), 0, false, {}, devices_});
      buckets_.push_back({layout, {}, {}, {}});
    }
    layout->members.push_back({index_of[i], t.sizes().vec(), t.strides().vec(), layout->numel, t.numel()});
    layout->numel += t.numel();
  }
  int64_t total = 0;
  for (const mgd_bucket_item& item : items) total += item.bytes;
  for (Bucket& b : buckets_) {
    const int64_t bytes = b.layout->numel * static_cast<int64_t>(c10::elementSize(b.layout->type));
    b.layout->relayed = mgd_bucket_is_relayed(bytes, total, devices_.size());
  }
  alone_ = std::move(alone);
}

bool Buckets::is_sent(const Bucket& bucket, const std::vector<at::Tensor>& tensors) const {
  if (bucket.of_members.empty()) return false;
  for (std::size_t i = 0; i < bucket.of_members.size(); i++)
    if (!is_current(bucket.of_members[i], tensors[bucket.layout->members[i].index])) return false;
  for (std::size_t i = 0; i < bucket.flats.size(); i++)
    if (bucket.flats[i].defined() && !is_current(bucket.of_flats[i], bucket.flats[i])) return false;
  return true;
}

void Buckets::send(Bucket& bucket, const std::vector<at::Tensor>& tensors) {
  const c10::InferenceMode no_inference(false); // turns grad mode on, so it comes first
  const c10::AutoGradMode no_grad(false);
  const BucketLayout& layout = *bucket.layout;
  bucket.of_members.clear();
  bucket.flats.assign(devices_.size(), {});
  std::vector<SourceMark> marks;
  std::vector<at::Tensor> members;
  for (const Member& m : layout.members) {
    marks.push_back(mark_source(tensors[m.index], {}));
    members.push_back(part_of(tensors[m.index], 0, m.numel));
  }
  const at::Tensor flat = members.size() == 1 ? members[0] : at::cat(members);
  mark(flat);
  give_handle(flat, members.size() != 1);
  std::size_t home = 0;
  while (home < devices_.size() && devices_[home] != layout.home) home++;
  if (!layout.relayed) {
    around(home, devices_.size(), [&](std::size_t i) {
      if (i != home) bucket.flats[i] = send_values(flat, devices_[i], kSpread);
    });
  } else {
    std::vector<at::Tensor> first(devices_.size()); // each part where it crosses first
    around(home, devices_.size(),
           [&](std::size_t i) { first[i] = sent_to(part_for(flat, layout, i), devices_[i], kSpread); });
    std::vector<std::vector<at::Tensor>> parts(devices_.size(), first); // by device
    // A device passes its part on to those that got theirs before it, so that no two send to one at a time.
    for (std::size_t step = 1; step < devices_.size(); step++)
      around(home, devices_.size(), [&](std::size_t i) {
        const std::size_t to = (i + devices_.size() - step) % devices_.size();
        if (to != home) parts[to][i] = sent_to(first[i], devices_[to], kSpread);
      });
    around(home, devices_.size(), [&](std::size_t i) {
      if (i != home) bucket.flats[i] = at::cat(parts[i]);
    });
  }
  bucket.of_flats.clear();
  for (const at::Tensor& t : bucket.flats) bucket.of_flats.push_back(t.defined() ? mark_source(t, {}) : SourceMark{});
  bucket.of_members = std::move(marks);
}

void Buckets::hand_out(const Bucket& bucket, std::vector<std::vector<at::Tensor>>& pieces) const {
  const c10::InferenceMode no_inference(false); // turns grad mode on, so it comes first
  const c10::AutoGradMode no_grad(false);
  const BucketLayout& layout = *bucket.layout;
  for (const Member& m : layout.members)
    for (std::size_t i = 0; i < devices_.size(); i++) {
      const at::Tensor& flat = bucket.flats[i];
      at::Tensor& piece = pieces[i][m.index];
      if (!flat.defined()) {
        piece = piece.detach();
      } else {
        piece = part_of(flat, m.sizes, m.strides, m.offset);
        TensorState& state = make_state(piece);
        state.in_module = true;
        state.placed = !flat.is_cpu();
      }
    }
}

namespace {

// The nodes of a bucket, whose order is that in which buckets are used.
class Connection {
 public:
  Connection(const std::shared_ptr<BucketLayout>& layout, const std::vector<at::Tensor>& tensors)
      : returns_(std::make_shared<Returns>(layout)), home_(make_node<GradientHome>(returns_)) {
    for (const Member& m : layout->members)
      home_->add_next_edge(torch::autograd::impl::gradient_edge(tensors[m.index]));
  }
  // Connects the pieces with the tensors. `later`: a bucket that is used later, or null. Its sum waits until this
  // bucket's gradients have been sent, since the device at its home would wait for copies that are under way.
  void connect(const std::vector<at::Tensor>& tensors, const std::vector<std::vector<at::Tensor>>& pieces,
               const Connection* later) const {
    for (std::size_t i = 0; i < pieces.size(); i++) {
      const NodePtr here = make_node<GradientHere>(returns_, i);
      add_edge(here, home_);
      if (later) add_edge(here, later->home_);
      for (const Member& m : returns_->layout->members) {
        const at::Tensor& piece = pieces[i][m.index];
        const uint32_t number = here->add_input_metadata(piece);
        if (tensors[m.index].requires_grad()) torch::autograd::impl::set_gradient_edge(piece, {here, number});
      }
    }
  }

 private:
  static void add_edge(const NodePtr& from, const NodePtr& to) {
    from->add_next_edge({to, to->add_input_metadata(torch::autograd::Node::undefined_input())});
  }
  std::shared_ptr<Returns> returns_;
  NodePtr home_;
};

bool any_requires_grad(const BucketLayout& layout, const std::vector<at::Tensor>& tensors) {
  return std::any_of(layout.members.begin(), layout.members.end(),
                     [&](const Member& m) { return tensors[m.index].requires_grad(); });
}

} // namespace

std::vector<std::vector<at::Tensor>> Buckets::spread(const std::vector<at::Tensor>& tensors) {
  if (!is_grouped(tensors)) group(tensors);
  std::vector<std::vector<at::Tensor>> pieces(devices_.size(), tensors);
  for (Bucket& b : buckets_)
    if (!is_sent(b, tensors)) send(b, tensors);
  std::vector<Connection> connected;
  for (const Bucket& b : buckets_) {
    hand_out(b, pieces);
    if (c10::GradMode::is_enabled() && any_requires_grad(*b.layout, tensors)) connected.emplace_back(b.layout, tensors);
  }
  for (std::size_t i = 0; i < connected.size(); i++)
    connected[i].connect(tensors, pieces, i + kLag < connected.size() ? &connected[i + kLag] : nullptr);
  return pieces;
}

} // namespace managed
