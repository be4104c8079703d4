// hold.h: begins an operator's uses of its storages, restores those whose bytes are elsewhere, and ends the uses.
//
// Hold is for one operator. HeldTensor does the same for one tensor that is read or written without an operator.
// keep_home() keeps a storage at home for longer. room.h and core/evict.c decide which storages leave to make room.
#pragma once
#include <c10/util/SmallVector.h>

#include "core/core.h"
#include "torch/tensor/adopt.h"
#include "torch/devices/devices.h"
#include "torch/tensor/storage.h"
#include "torch/residency/admission.h"
#include "torch/tensor/uses.h"

namespace managed {

// Brings the bytes home and keeps them there until let_leave() has been called as often, with the same reason.
void keep_home(const at::Tensor& t, enum mgd_pin why);
void let_leave(const at::Tensor& t, enum mgd_pin why);
// Brings the bytes home and keeps them there until an operator uses them: for code in between that reads them without
// an operator.
void keep_home_until_used(const at::Tensor& t);

// Makes the tangent of a view managed if its bytes may leave: some view operators make the tangent below the key.
void mark_tangent(const at::Tensor& view);

// The uses of one operator. add() counts a use of each storage; bring_home() brings those that are away home; the
// destructor ends the uses. The first add() links the hold into the list of this thread's holds, and takes the turn if
// room is short. give_back() ends the uses early, while it waits for other threads; use_again() begins them anew.
class Hold {
 public:
  // `turn`: the operator's turn, taken before its first use if room is short. Null if operators run inside this hold (a
  // backward pass, a compiled graph): they take turns of their own.
  explicit Hold(Turn* turn) : turn_(turn) {}
  ~Hold() {
    if (C10_UNLIKELY(!used_.empty())) let_go();
  }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

  void add(const at::Tensor& t, bool written) {
    each_storage(t, [this, &t, written](c10::StorageImpl* s) {
      StorageHandle* h = handle_of(s);
      if (C10_UNLIKELY(!h)) h = give_operand_handle(t, s);
      if (h) add(h, written);
    });
    if (C10_UNLIKELY(t.unsafeGetTensorImpl()->autograd_meta() != nullptr)) add_tangent(t, written);
  }
  void add(StorageHandle* h, bool written) {
    if (used_.empty()) enter(h);
    if (C10_UNLIKELY(h->waits_for_use.load(std::memory_order_relaxed))) used_at_last(h);
    const bool home = mgd_handle_use(h, user_, tick());
    used_.push_back({h, written});
    if (C10_LIKELY(home && !written)) return;
    if (!home) away_ = true;
    else if (C10_UNLIKELY(mgd_handle_write(h))) write_after_copy(h);
  }
  // Brings home all storages that were added, or none; throws managed's OutOfMemoryError. Add all operands first: a
  // storage that is in use is not evicted for one that is added later. `operator_name` may be null.
  void bring_home(const char* operator_name = nullptr) {
    if (C10_UNLIKELY(kernels_are_async.load(std::memory_order_relaxed))) record_streams();
    if (C10_UNLIKELY(watching_uses.load(std::memory_order_relaxed))) watch_uses(operator_name);
    if (C10_UNLIKELY(away_)) bring_home_slow(operator_name);
  }

  // Takes the turn for an operator whose first use will be `first`, or which reads the bytes of `first` where they are.
  // Does nothing if room is not short, or inside another operator of this thread.
  static void take_turn(Turn& turn, const StorageHandle* first);

  bool is_away() const { return away_; } // whether an operand is away; false after bring_home()

  // Whether an operator that this thread is running, perhaps around inner ones, writes the storage.
  static bool is_written(const StorageHandle* handle);

  // Called in a child of fork(): ends the uses and the turns of the threads that it lacks.
  static void forget_other_threads();

  // How many uses this thread has of storages whose home is the device, and the bytes of these uses.
  static int64_t uses_of_this_thread(int device);
  static int64_t bytes_of_this_thread(int device);

 private:
  struct Use {
    StorageHandle* handle;
    bool written;
  };
  void log_uses() const;
  void watch_uses(const char* operator_name) const;
  void begin_to_work() const;
  void enter(const StorageHandle* first);
  void record_streams(); // for each device of the operands: those of a copy are on two
  void add_tangent(const at::Tensor& t,
                   bool written); // adds the forward-mode tangent, which kernels read beside the tensor
  static void used_at_last(StorageHandle* h);
  static void write_after_copy(StorageHandle* h); // orders writes after a copy that may still read the bytes
  void let_go();
  void give_back();
  void use_again();
  void bring_home_slow(const char* operator_name);
  int begin_to_bring_home(mgd_handle* const* handles, mgd_action* plan, std::size_t* n, int* device);
  bool try_to_bring_home(mgd_handle* const* handles, mgd_action* plan, std::size_t room_in_plan, int64_t deadline,
                         const char* operator_name);
  void wait_for_others(uint64_t freed_before, int64_t deadline);

  uint64_t tick() { return C10_LIKELY(tick_ % MGD_TICKS != 0) ? tick_++ : (tick_ = next_tick(), tick_++); }

  c10::SmallVector<Use, 6> used_;
  mgd_user* user_ = nullptr; // the thread that called enter()
  uint64_t tick_ = 0;        // of the next use; at a multiple of MGD_TICKS new ticks are taken
  Turn* const turn_;
  bool away_ = false;        // an operand is away
  bool given_ = false;       // the uses have been ended (give_back)
  bool tells_again_ = false; // record_streams() is due again when the operator has returned
  Hold* outer_ = nullptr;    // the hold of this thread that encloses it
};

// Keeps one tensor at home for code that reads or writes it without an operator. `target`: the device that it is copied
// to, or the host.
class HeldTensor {
 public:
  HeldTensor(const at::Tensor& t, bool written, int target = MGD_HOST) : turn_(target), hold_(&turn_) {
    hold_.add(t, written);
    came_ = hold_.is_away();
    hold_.bring_home();
  }
  bool came() const { return came_; } // whether its bytes were away and were brought home

 private:
  Turn turn_;
  Hold hold_;
  bool came_ = false;
};

} // namespace managed
