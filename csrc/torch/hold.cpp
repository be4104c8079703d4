// hold.cpp: see hold.h.
#include "hold.h"

#include "devices.h"
#include "out_of_memory.h"
#include "room.h"

namespace managed {

std::atomic<uint64_t> ticks{0};

namespace {

constexpr int64_t kPatience = 2'000'000'000; // ns to wait for others before an operator fails

constinit thread_local Hold* innermost __attribute__((tls_model("initial-exec"))) = nullptr;

// What was promised to come home and will not.
void give_up(const mgd_action* from, const mgd_action* end) {
  for (; from != end; from++) {
    void* left = nullptr;
    if (from->kind == MGD_DO_RESTORE) mgd_restore_end(machine(), from->handle, false, &left);
  }
  note_change();
}

bool others_use(const mgd_action& first) {
  const int device = first.kind == MGD_DO_RESTORE ? first.to : first.from;
  mgd_residency_usage usage{};
  mgd_residency_read(machine(), device, &usage);
  return usage.in_use + usage.moving > 0 && Hold::uses_of_this_thread(device) == 0;
}

void carry_out_all(const mgd_action* actions, std::size_t n) {
  for (const mgd_action* a = actions; a != actions + n; a++) {
    try {
      if (a->kind == MGD_DO_MAKE_ROOM) make_room(a->from, free_bytes(a->from) + a->bytes);
      else bring(*a);
    } catch (...) {
      give_up(a + 1, actions + n);
      throw;
    }
  }
}

} // namespace

void keep_home(const at::Tensor& t) {
  Hold hold;
  hold.add(t, true);
  hold.bring_home();
  each_storage(t, [](c10::StorageImpl* s) {
    if (Block* b = block_of(s)) mgd_handle_pin(machine(), b, true);
  });
}

void keep_home_until_used(const at::Tensor& t) {
  Hold hold;
  hold.add(t, false);
  hold.bring_home();
  each_storage(t, [](c10::StorageImpl* s) {
    Block* b = block_of(s);
    if (b && !b->waits_for_use.exchange(true)) mgd_handle_pin(machine(), b, true);
  });
}

void Hold::used_at_last(Block* b) {
  if (b->waits_for_use.exchange(false)) mgd_handle_pin(machine(), b, false);
}

void let_leave(const at::Tensor& t) {
  each_storage(t, [](c10::StorageImpl* s) {
    if (Block* b = block_of(s)) mgd_handle_pin(machine(), b, false);
  });
}

void Hold::enter() {
  outer_ = innermost;
  innermost = this;
}

void Hold::give_back() {
  if (std::exchange(given_, true)) return;
  for (const Use& u : used_)
    if (mgd_handle_put(u.block, 1)) delete u.block;
}

void Hold::let_go() {
  give_back();
  innermost = outer_;
  if (C10_UNLIKELY(somebody_waits())) note_change();
}

int64_t Hold::uses_of_this_thread(int device) {
  int64_t uses = 0;
  for (const Hold* h = innermost; h; h = h->outer_)
    if (!h->given_) for (const Use& u : h->used_) uses += u.block->home == device;
  return uses;
}

// The tensors live as long as the operator's arguments do, so their handles can be used again after they were given back.
void Hold::use_again() {
  for (const Use& u : used_) mgd_handle_use(u.block, next_tick());
  given_ = false;
}

void Hold::bring_home_slow() {
  c10::SmallVector<mgd_handle*, 8> handles;
  for (const Use& u : used_) handles.push_back(u.block);
  c10::SmallVector<mgd_action, 8> plan(handles.size() + MGD_MAX_DEVICES);
  const int64_t deadline = now() + kPatience;
  for (;;) {
    const uint64_t seen = freed_count();
    int64_t room[MGD_MAX_DEVICES];
    read_room(room);
    std::size_t n = plan.size();
    int device = 0;
    const int code = mgd_acquire_begin(machine(), handles.data(), handles.size(), room, plan.data(), &n, &device);
    if (code == MGD_OK) {
      if (n == 0) break;
      try {
        carry_out_all(plan.data(), n);
      } catch (const c10::OutOfMemoryError&) { // others took the room, or hold what should have left
        give_back();
        if (now() >= deadline || !others_use(plan[0])) throw;
        wait_for_change(seen, deadline);
        use_again();
      }
      continue;
    }
    if (code == MGD_E_NO_ROOM || now() >= deadline) throw_no_room(device, handles.data(), handles.size());
    if (code == MGD_E_BUSY) give_back();
    wait_for_change(seen, deadline);
    if (code == MGD_E_BUSY) use_again();
  }
  away_ = false;
  for (const Use& u : used_)
    if (u.written) mgd_handle_write(u.block);
}

} // namespace managed
