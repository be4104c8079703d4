// hold.cpp: see hold.h.
#include "torch/residency/hold.h"

#include <torch/csrc/autograd/variable.h>

#include "torch/api.h"
#include "torch/devices/devices.h"
#include "torch/residency/executor.h"
#include "torch/residency/garbage.h"
#include "torch/devices/graphs.h"
#include "torch/residency/transfer.h"
#include "torch/residency/out_of_memory.h"
#include "torch/residency/room.h"
#include "torch/tensor/state.h"
#include "torch/residency/steps.h"
#include "torch/devices/waiting.h"

namespace managed {

namespace {

constexpr int64_t kStuck = 60'000'000'000; // ns that another thread's copy may take

constinit thread_local Hold* innermost_hold __attribute__((tls_model("initial-exec"))) = nullptr;

// Whether other threads are freeing bytes, or have freed some since changes_by_others() was `freed`. Storages that are
// dying cannot be evicted, and their bytes do not count as free yet.
bool others_free(uint64_t freed) { return unfinished_deaths.load() > 0 || changes_by_others() != freed; }

// Whether another try makes sense: other threads free bytes (others_free), or use or move storages on the device.
bool others_use(int device, uint64_t freed) {
  return others_free(freed) || mgd_user_others(machine(), device, Hold::uses_of_this_thread(device)) == MGD_E_BUSY;
}

// Makes room on the device for one action of a plan, in addition to the bytes that are free.
void make_room_for(const mgd_action& a) {
  make_room(a.from, free_bytes(a.from) + a.bytes, Hold::uses_of_this_thread(a.from), Caller::BringsHome);
}

// Looking up a tangent takes a lock of torch, so this tests first whether t can have one. A view can have that of its
// base.
bool may_have_tangent(const at::TensorBase& t) {
  const auto* meta = torch::autograd::impl::get_autograd_meta(t);
  if (!meta || meta->fw_grad_) return meta;
  if (C10_LIKELY(!meta->is_view_)) return false;
  const auto* view = static_cast<const torch::autograd::DifferentiableViewMeta*>(meta);
  return view->has_fw_view() && may_have_tangent(view->get_forward_view().base_);
}

} // namespace

void keep_home(const at::Tensor& t, enum mgd_pin why) {
  const HeldTensor held(t, true);
  each_storage(t, [why](c10::StorageImpl* s) {
    if (StorageHandle* h = handle_of(s)) mgd_handle_pin(machine(), h, why, true);
  });
}

void keep_home_until_used(const at::Tensor& t) {
  const HeldTensor held(t, false);
  each_storage(t, [](c10::StorageImpl* s) {
    StorageHandle* h = handle_of(s);
    if (h && !h->waits_for_use.exchange(true)) mgd_handle_pin(machine(), h, MGD_PIN_GRADIENT, true);
  });
}

void Hold::add_tangent(const at::Tensor& t, bool written) {
  if (C10_LIKELY(!may_have_tangent(t))) return;
  const at::Tensor& tangent = t._fw_grad(0);
  if (C10_UNLIKELY(tangent.defined())) add(tangent, written);
}

void mark_tangent(const at::Tensor& view) {
  const auto* meta = torch::autograd::impl::get_autograd_meta(view);
  if (C10_LIKELY(!meta || !meta->fw_grad_)) return;
  const at::Tensor& tangent = view._fw_grad(0);
  each_storage(tangent, [&](c10::StorageImpl* s) {
    if (handle_of(s)) mark(tangent);
  });
}

void Hold::write_after_copy(StorageHandle* h) {
  CopyPtr last;
  {
    std::lock_guard<std::mutex> lock(h->mutex);
    last = h->last;
  }
  if (last) last->order(h->block);
}

void Hold::used_at_last(StorageHandle* h) {
  if (h->waits_for_use.exchange(false)) mgd_handle_pin(machine(), h, MGD_PIN_GRADIENT, false);
}

void let_leave(const at::Tensor& t, enum mgd_pin why) {
  each_storage(t, [why](c10::StorageImpl* s) {
    if (StorageHandle* h = handle_of(s)) mgd_handle_pin(machine(), h, why, false);
  });
}

void Hold::log_uses() const {
  const uint64_t call = next_tick();
  for (const Use& u : used_) log_use(u.handle, u.handle->bytes, call, u.written ? UseKind::Written : UseKind::Read);
}

// Tells each watched device that the operator runs next.
void Hold::begin_to_work() const {
  const mgd_mask watched = steps_watched.load(std::memory_order_relaxed);
  if (!turn_ || !watched) return;
  for (std::size_t i = 0; i < used_.size(); i++)
    if (const int home = used_[i].handle->home; (watched >> home & 1) && (i == 0 || home != used_[i - 1].handle->home))
      begin_work(home);
}

// Runs before the operands are restored, so that evictions of the plan make room for them.
void Hold::watch_uses(const char* operator_name) const {
  if (noting_uses.load(std::memory_order_relaxed)) log_uses();
  const mgd_mask watched = steps_watched.load(std::memory_order_relaxed);
  if (!turn_ || !watched) return;
  c10::SmallVector<mgd_step_use, 8> uses;
  mgd_mask seen = 0;
  for (const Use& first : used_) {
    const int device = first.handle->home;
    if ((seen | ~watched) >> device & 1) continue;
    seen |= mgd_mask{1} << device;
    uses.clear();
    for (const Use& u : used_)
      if (u.handle->home == device) uses.push_back({u.handle, u.written});
    follow_step(device, operator_name, uses);
  }
  if (!away_) begin_to_work();
}

void Hold::take_turn(Turn& turn, const StorageHandle* first) {
  if (C10_LIKELY(!room_is_short())) return;
  for (const Hold* h = innermost_hold; h; h = h->outer_)
    if (h->turn_) return; // the enclosing operator has its turn or goes on without
  turn.take(first->home);
}

void Hold::enter(const StorageHandle* first) {
  user_ = this_user();
  if (turn_) take_turn(*turn_, first);
  outer_ = innermost_hold;
  innermost_hold = this;
}

void Hold::record_streams() {
  for (std::size_t i = 0; i < used_.size(); i++)
    if (const int home = used_[i].handle->home; i == 0 || home != used_[i - 1].handle->home)
      tells_again_ |= record_stream_use(device_of(home));
}

void Hold::give_back() {
  if (std::exchange(given_, true)) return;
  for (const Use& u : used_) {
    note_points(*u.handle, u.handle->home);
    if (mgd_handle_unuse(u.handle, user_, 1)) delete u.handle;
  }
}

void Hold::let_go() {
  if (C10_UNLIKELY(tells_again_)) record_streams();
  if (C10_UNLIKELY(recording_graphs.load(std::memory_order_relaxed)))
    for (const Use& u : used_)
      mgd_handle_pin(machine(), u.handle, MGD_PIN_GRAPH, true); // each replay reads them where they are now
  give_back();
  innermost_hold = outer_;
  if (C10_UNLIKELY(has_waiters())) count_change();
}

bool Hold::is_written(const StorageHandle* handle) {
  for (const Hold* h = innermost_hold; h; h = h->outer_)
    for (const Use& u : h->used_)
      if (u.handle == handle && u.written) return true;
  return false;
}

void Hold::forget_other_threads() {
  mgd_handle_forget_uses(machine(), user_of_thread);
  mgd_mask turns = 0;
  for (Hold* h = innermost_hold; h; h = h->outer_) {
    if (!h->given_) h->use_again();
    if (h->turn_) turns |= h->turn_->has();
  }
  forget_turns(turns);
}

int64_t Hold::uses_of_this_thread(int device) {
  int64_t uses = 0;
  for (const Hold* h = innermost_hold; h; h = h->outer_)
    if (!h->given_) for (const Use& u : h->used_) uses += u.handle->home == device;
  return uses;
}

int64_t Hold::bytes_of_this_thread(int device) {
  int64_t bytes = 0;
  for (const Hold* h = innermost_hold; h; h = h->outer_)
    for (const Use& u : h->used_) bytes += u.handle->home == device ? u.handle->bytes : 0;
  return bytes;
}

// The operator's arguments keep the tensors alive, so their handles are still there after give_back().
void Hold::use_again() {
  for (const Use& u : used_) mgd_handle_use(u.handle, user_, tick());
  given_ = false;
}

// Ends the uses while it waits. Otherwise two operators could each hold what the other waits for.
void Hold::wait_for_others(uint64_t freed_before, int64_t deadline) {
  give_back();
  wait_for_change(freed_before, deadline);
  use_again();
}

// The Transfer includes the planning: a child of fork() must not find storages whose restore was begun by a thread that
// the child does not have.
int Hold::begin_to_bring_home(mgd_handle* const* handles, mgd_action* plan, std::size_t* n, int* device) {
  const Transfer moving;
  // Pending frees count as room: evicting next to a free fragment frees both, and the allocation waits for kernels. If
  // that makes no room after all, the allocation fails.
  int64_t room[MGD_MAX_DEVICES] = {};
  for (const Use& u : used_) {
    const int home = u.handle->home;
    if (mgd_handle_is_away(u.handle) && room[home] == 0) // arriving bytes have a block
      room[home] = bytes_free_soon(home); // takes the allocator's lock, hence once
  }
  const int code = mgd_restore_begin(machine(), handles, used_.size(), room, plan, n, device);
  if (code == MGD_OK) carry_out({plan, *n}, Purpose::Operator, make_room_for);
  return code;
}

// One try. True: all operands are home, and stay while they are held. False: another try makes sense. Throws when none
// does. What it does depends on the outcome of begin_to_bring_home(). The conditions of the third column are tested
// when the outcome is known; the fourth says what happens if they do not hold.
//
//   outcome           meaning                                waits and returns false  else
//   OK                all operands are home                  -                        returns true
//   WAIT              another thread moves an operand        before kStuck is over    throws
//   BUSY              no room while other threads use or     before the deadline, if  collects garbage: returns
//                     move storages of the device            others_use()             false, or throws if none
//   NO_ROOM           no room even when that has ended       before the deadline, if  collects garbage: returns
//                                                            others_free()            false, or throws if none
//   OutOfMemoryError  other threads took the room that the   before the deadline, if  collects garbage: waits and
//                     plan made, or victims could not leave  others_use()             returns false, or rethrows
//   another one       a device failed                        -                        rethrows
bool Hold::try_to_bring_home(mgd_handle* const* handles, mgd_action* plan, std::size_t room_in_plan, int64_t deadline,
                             const char* operator_name) {
  const uint64_t freed_before = change_count(), freed = changes_by_others();
  std::size_t n = room_in_plan;
  int device = 0;
  int code = MGD_E_WAIT; // also after an OutOfMemoryError that is not rethrown
  try {
    code = begin_to_bring_home(handles, plan, &n, &device);
  } catch (const c10::OutOfMemoryError&) {
    device = plan[0].kind == MGD_DO_RESTORE ? plan[0].to : plan[0].from;
    if ((now() >= deadline || !others_use(device, freed)) && !collect_garbage(now() + MGD_WAIT_FOR_GIL)) throw;
  }
  if (code == MGD_OK) return true;
  if (code == MGD_E_WAIT) {
    TORCH_CHECK(now() < deadline + kStuck,
                "managed: the bytes of an operand have been on their way in another thread for too long");
  } else {
    give_back();
    const bool is_hopeless = !(code == MGD_E_BUSY ? others_use(device, freed) : others_free(freed));
    use_again();
    if (is_hopeless || now() >= deadline) {
      if (collect_garbage(now() + MGD_WAIT_FOR_GIL)) return false;
      throw_no_room(device, handles, used_.size(), operator_name);
    }
  }
  wait_for_others(freed_before, deadline);
  return false;
}

void Hold::bring_home_slow(const char* operator_name) {
  c10::SmallVector<mgd_handle*, 8> handles;
  for (const Use& u : used_) handles.push_back(u.handle);
  c10::SmallVector<mgd_action, 8> plan(handles.size() + MGD_MAX_DEVICES);
  const int64_t deadline = now() + kPatience;
  while (!try_to_bring_home(handles.data(), plan.data(), plan.size(), deadline, operator_name)) {
  }
  away_ = false;
  begin_to_work();
  for (const Use& u : used_)
    if (u.written && mgd_handle_write(u.handle)) write_after_copy(u.handle);
}

} // namespace managed
