// leaving.cpp: see leaving.h.
#include "cuda/leaving.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <mutex>
#include <utility>

#include "cuda/arena.h"
#include "cuda/copies.h"
#include "cuda/devices.h"

namespace managed {
namespace {

struct Leaving {
  c10::DataPtr block;
  CopyPtr copy;   // null: the block is set aside
  PointPtr users; // work on the block that began after the copy; null: there is none
  std::size_t bytes;
  bool is_dead;       // its storage has died, and no plan waits for its room
  bool serves = true; // a new copy may take it
  bool is_aside() const { return !copy; }
};

struct LeavingQueue {
  std::mutex mutex;          // a leaf: nothing that waits is called in it
  std::deque<Leaving> there; // the oldest first
  std::atomic<std::size_t> count{0}, bytes{0}, dead{0}; // dead: bytes
};
LeavingQueue& leaving_of(int device) {
  // Never destroyed: tensors may outlive static destructors.
  static auto* all = new std::array<LeavingQueue, kMostDevices>;
  return (*all)[device];
}

struct Taken {
  const void* block = nullptr;
  CopyPtr copy;
  PointPtr users;
};
thread_local Taken taken;

// Calls torch's deleter directly: the process would end if it threw in a unique_ptr.
void give_back(Leaving&& l) {
  const c10::DeleterFnPtr deleter = l.block.get_deleter();
  try {
    if (l.copy) l.copy->order(l.block); // no effect if it has ended
    void* context = l.block.release_context();
    deleter(context);
  } catch (const std::exception&) {
    // A device that has failed reports that at the next call.
    (void)l.block.release_context();
  }
}

// Takes the blocks that `which` accepts out of the queue, until they have so many bytes or `goes_on` is false.
template <class Which>
std::deque<Leaving> take_out(LeavingQueue& d, std::size_t bytes, const Which& which, const bool& goes_on = true) {
  std::deque<Leaving> out;
  std::lock_guard<std::mutex> lock(d.mutex);
  std::size_t found = 0;
  for (auto l = d.there.begin(); l != d.there.end() && found < bytes && goes_on;) {
    if (!which(*l)) {
      ++l;
      continue;
    }
    found += l->bytes;
    d.bytes -= l->bytes;
    d.dead -= l->is_dead ? l->bytes : 0;
    out.push_back(std::move(*l));
    l = d.there.erase(l);
  }
  d.count.store(d.there.size(), std::memory_order_relaxed);
  return out;
}

// No plan asks for the blocks of dead storages. So they are given back when their copies have ended, the oldest first,
// and earlier if they are more than a part of the device: a program with many operands must not hold much more for it.
void give_back_dead(int device) {
  constexpr std::size_t kPart = 32;
  LeavingQueue& d = leaving_of(device);
  bool goes_on = true;
  const auto has_ended = [&goes_on](const Leaving& l) { return l.is_dead && (goes_on = l.copy->has_ended()); };
  for (Leaving& l : take_out(d, kAll, has_ended, goes_on)) give_back(std::move(l));
  const std::size_t most = capacity(device) / kPart, dead = d.dead;
  if (dead <= most) return;
  for (Leaving& l : take_out(d, dead - most, [](const Leaving& one) { return one.is_dead; })) give_back(std::move(l));
}

} // namespace

void give_up_block(c10::DataPtr& block, const CopyPtr& copy, bool last, std::size_t bytes) {
  if (is_range(block)) return free_range(block, copy->has_ended() ? nullptr : copy, last);
  const int device = block.device().index();
  Leaving l{std::move(block), copy, nullptr, bytes, !last};
  block.clear();
  try {
    if (copy->has_ended()) return give_back(std::move(l));
    if (!last) l.users = point(device);
    l.serves = last || l.users;
    LeavingQueue& d = leaving_of(device);
    {
      std::lock_guard<std::mutex> lock(d.mutex);
      d.there.push_back(std::move(l));
      d.bytes += bytes;
      d.dead += last ? 0 : bytes;
      d.count.store(d.there.size(), std::memory_order_relaxed);
    }
  } catch (const std::exception&) {
    return give_back(std::move(l));
  }
  try {
    if (!last) give_back_dead(device);
  } catch (const std::exception&) {
    // The host is out of memory: the next dead block tries again.
  }
}

bool give_back_blocks(int device, std::size_t bytes) {
  LeavingQueue& d = leaving_of(device);
  if (C10_LIKELY(d.count.load(std::memory_order_relaxed) == 0)) return false;
  std::size_t given = 0;
  bool any = false;
  const auto give = [&](std::deque<Leaving> blocks) {
    for (Leaving& l : blocks) {
      given += l.bytes;
      give_back(std::move(l));
      any = true;
    }
  };
  give(take_out(d, bytes, [](const Leaving& l) { return l.is_aside() || l.copy->has_ended(); }));
  if (given < bytes) give(take_out(d, bytes - given, [](const Leaving&) { return true; }));
  return any;
}

void set_block_aside(c10::DataPtr block, PointPtr users, std::size_t bytes) {
  constexpr std::ptrdiff_t kMost = 8; // blocks; older ones have sizes that come no more
  const int device = block.device().index();
  LeavingQueue& d = leaving_of(device);
  std::ptrdiff_t aside = 0;
  {
    std::lock_guard<std::mutex> lock(d.mutex);
    aside = std::count_if(d.there.begin(), d.there.end(), [](const Leaving& l) { return l.is_aside(); });
    d.there.push_back({std::move(block), nullptr, std::move(users), bytes, false});
    d.bytes += bytes;
    d.count.store(d.there.size(), std::memory_order_relaxed);
  }
  if (aside >= kMost)
    for (Leaving& l : take_out(d, 1, [](const Leaving& one) { return one.is_aside(); })) give_back(std::move(l));
}

bool has_block_for_copy(int device, std::size_t bytes) {
  LeavingQueue& d = leaving_of(device);
  std::lock_guard<std::mutex> lock(d.mutex);
  return std::any_of(d.there.begin(), d.there.end(),
                     [bytes](const Leaving& l) { return l.serves && l.bytes == bytes; });
}

std::size_t bytes_given_up(int device) { return leaving_of(device).bytes.load(std::memory_order_relaxed); }

c10::DataPtr take_block_for_copy(int device, std::size_t bytes) {
  taken = {};
  LeavingQueue& d = leaving_of(device);
  if (bytes == 0 || d.count.load(std::memory_order_relaxed) == 0) return {};
  auto one = take_out(d, 1, [bytes](const Leaving& l) { return l.serves && l.bytes == bytes; });
  if (one.empty()) return {};
  Leaving& l = one.front();
  taken = {l.block.get(), std::move(l.copy), std::move(l.users)};
  return std::move(l.block);
}

bool comes_after(const void* block, CopyPtr* copy, PointPtr* users) {
  const Taken last = std::exchange(taken, {});
  if (!last.block || last.block != block) return false;
  *copy = last.copy;
  *users = last.users;
  return true;
}

} // namespace managed
