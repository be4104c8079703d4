// arena.cpp: see arena.h.
#include "cuda/arena.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "cuda/copies.h"
#include "cuda/devices.h"
#include "cuda/streams.h"
#include "cuda/times.h"

namespace managed {
namespace {

using c10::cuda::CUDAStream;

struct Range {
  std::size_t bytes;
  std::vector<CUDAStream> streams; // that use it beside the arena's
};

// What the next user of bytes [from, to) has to come after. Two of them have no byte in common: the bytes of a range
// that is taken are in none.
struct Earlier {
  std::size_t from, to;
  CopyPtr copy;   // may be null
  PointPtr users; // null: none beside the copy, or unknown
  bool crosses;   // streams beside the arena's are among the users
  bool unknown;   // some users are not in `users`: all that the arena's stream has been given counts
};

// Invariants: the ranges taken do not overlap; `used` is the sum of their bytes.
struct Arena {
  std::mutex mutex; // a leaf: nothing that waits is called in it
  c10::DataPtr block;
  char* base = nullptr;
  std::size_t bytes = 0, used = 0;
  std::optional<CUDAStream> stream;
  std::map<std::size_t, Range> taken; // by offset
  std::deque<Earlier> earlier;
};

Arena& arena_of(int device) {
  static auto* all = new std::array<Arena, kMostDevices>; // never destroyed: tensors may outlive static destructors
  return (*all)[device];
}
std::atomic<std::uint64_t> devices_with_arena{0};

// Returns the device whose arena has the address, or -1.
int device_at(const void* address) {
  const std::uint64_t there = devices_with_arena.load(std::memory_order_acquire);
  for (int device = 0; device < kMostDevices && there >> device; device++) {
    if (!has_arena(device)) continue;
    Arena& a = arena_of(device);
    std::lock_guard<std::mutex> lock(a.mutex);
    const auto* p = static_cast<const char*>(address);
    if (p >= a.base && p < a.base + a.bytes) return device;
  }
  return -1;
}

struct TakenRange {
  const void* range = nullptr;
  std::vector<Earlier> after;
};
thread_local TakenRange taken_range;

void delete_range(void* range) { free_range(range); }

std::size_t rounded(std::size_t bytes) {
  return (bytes + MGD_PLACE_ALIGNMENT - 1) / MGD_PLACE_ALIGNMENT * MGD_PLACE_ALIGNMENT;
}

// Returns the highest offset for so many bytes that is free and meets no place; a.bytes: there is none. Layouts take
// the lowest offsets first.
std::size_t highest_gap(const Arena& a, std::size_t bytes, c10::ArrayRef<mgd_step_place> places) {
  std::map<std::size_t, std::size_t> ends; // of what is in the way, by its offset
  for (const auto& [offset, range] : a.taken) ends[offset] = offset + range.bytes;
  for (const mgd_step_place& p : places) {
    std::size_t& end = ends[static_cast<std::size_t>(p.offset)];
    end = std::max(end, static_cast<std::size_t>(p.offset + p.bytes));
  }
  std::size_t best = a.bytes, before = 0;
  for (const auto& [offset, end] : ends) {
    if (offset > before && offset - before >= bytes) best = offset - bytes;
    before = std::max(before, end);
  }
  return a.bytes >= before + bytes ? a.bytes - bytes : best;
}

bool is_free(const Arena& a, std::size_t offset, std::size_t bytes) {
  if (offset > a.bytes || a.bytes - offset < bytes) return false;
  const auto next = a.taken.lower_bound(offset);
  if (next != a.taken.end() && next->first < offset + bytes) return false;
  return next == a.taken.begin() || std::prev(next)->first + std::prev(next)->second.bytes <= offset;
}

// Divides the list into what concerns bytes [from, to), and the rest; what lies beside them is in the rest.
std::pair<std::vector<Earlier>, std::deque<Earlier>> divided(const Arena& a, std::size_t from, std::size_t to) {
  std::pair<std::vector<Earlier>, std::deque<Earlier>> found;
  for (const Earlier& e : a.earlier) {
    if (e.to <= from || e.from >= to) {
      found.second.push_back(e);
      continue;
    }
    for (const auto& [begin, end] : {std::pair{e.from, from}, std::pair{to, e.to}})
      if (begin < end) found.second.push_back({begin, end, e.copy, e.users, e.crosses, e.unknown});
    found.first.push_back(e);
  }
  return found;
}

// Orders a stream; the arena's own comes after what it has been given itself.
void order(int device, const std::vector<Earlier>& after, const CUDAStream& owner, const CUDAStream& stream) {
  const c10::cuda::CUDAGuard guard(index_of(device));
  std::optional<Pause> pause;
  const bool other = stream != owner;
  for (const Earlier& e : after) {
    const bool waits = e.copy && !e.copy->has_ended();
    if ((waits || e.crosses || other) && !pause) pause.emplace(device);
    if (waits) move_of(e.copy).lead(stream.stream());
    if ((e.crosses || other) && e.users) static_cast<Streams&>(*e.users).lead(stream.stream());
    if (other && e.unknown && !is_recording(owner.stream())) order_streams(device, owner.stream(), stream.stream());
  }
}

// What has been issued on the arena's stream and on those that use the range; recorded work uses other memory. Null:
// the device has failed.
PointPtr users_of(const Arena& a, int device, const std::vector<CUDAStream>& streams) try {
  const c10::cuda::CUDAGuard guard(index_of(device));
  auto made = std::make_shared<Streams>();
  if (!is_recording(a.stream->stream())) made->add(device, a.stream->stream());
  for (const CUDAStream& s : streams)
    if (!is_recording(s.stream())) made->add(device, s.stream());
  return made;
} catch (const std::exception&) { return nullptr; }

Range range_at(Arena& a, std::size_t offset) {
  std::lock_guard<std::mutex> lock(a.mutex);
  const auto found = a.taken.find(offset);
  return found == a.taken.end() ? Range{0, {}} : found->second;
}

std::atomic<void (*)(int, std::size_t)> freed{nullptr};

void end_range(int device, std::size_t offset, std::size_t bytes, const CopyPtr& copy, const PointPtr& users,
               bool crosses, bool unknown) {
  Arena& a = arena_of(device);
  {
    std::lock_guard<std::mutex> lock(a.mutex);
    if (copy || users || unknown) a.earlier.push_back({offset, offset + bytes, copy, users, crosses, unknown});
    a.taken.erase(offset);
    a.used -= bytes;
  }
  if (const auto tell = freed.load(std::memory_order_acquire)) tell(device, bytes);
}

} // namespace

bool has_arena(int device) {
  return device >= 0 && device < kMostDevices && devices_with_arena.load(std::memory_order_acquire) >> device & 1;
}

bool set_arena(int device, c10::DataPtr& block, std::size_t bytes) {
  Arena& a = arena_of(device);
  const CUDAStream stream = c10::cuda::getCurrentCUDAStream(index_of(device));
  if (!is_torchs(stream)) return false;
  const PointPtr users = point(device);
  std::lock_guard<std::mutex> lock(a.mutex);
  if (a.block) return false;
  a.earlier.push_back({0, bytes, nullptr, users, false, !users});
  a.base = static_cast<char*>(block.mutable_get());
  a.bytes = bytes;
  a.stream = stream;
  a.block = std::move(block);
  devices_with_arena.fetch_or(std::uint64_t{1} << device, std::memory_order_release);
  return true;
}

c10::DataPtr take_arena(int device) {
  if (!has_arena(device)) return {};
  Arena& a = arena_of(device);
  std::deque<Earlier> earlier;
  c10::DataPtr block;
  std::optional<CUDAStream> stream;
  {
    std::lock_guard<std::mutex> lock(a.mutex);
    if (!a.taken.empty() || !a.block) return {};
    devices_with_arena.fetch_and(~(std::uint64_t{1} << device), std::memory_order_release);
    earlier = std::exchange(a.earlier, {});
    block = std::move(a.block);
    a.block.clear();
    stream = a.stream;
    a.bytes = a.used = 0;
    a.base = nullptr;
  }
  const std::vector<Earlier> all(std::make_move_iterator(earlier.begin()), std::make_move_iterator(earlier.end()));
  order(device, all, *stream, *stream); // torch gives the block to that stream next
  return block;
}

std::size_t size_of_arena(int device) {
  if (!has_arena(device)) return 0;
  Arena& a = arena_of(device);
  std::lock_guard<std::mutex> lock(a.mutex);
  return a.bytes;
}

std::size_t idle_in_arena(int device) {
  if (!has_arena(device)) return 0;
  Arena& a = arena_of(device);
  std::lock_guard<std::mutex> lock(a.mutex);
  return a.bytes - a.used;
}

namespace {

// `find` returns the offset for a size.
template <class Find>
c10::DataPtr take(int device, std::size_t bytes, bool for_copy, const Find& find) {
  taken_range = {};
  if (!has_arena(device) || bytes == 0 || bytes > size_of_arena(device)) return {};
  Arena& a = arena_of(device);
  const CUDAStream stream = c10::cuda::getCurrentCUDAStream(index_of(device));
  if (!is_torchs(stream) || is_recording(stream.stream())) return {};
  const std::size_t size = rounded(bytes);
  std::vector<Earlier> after;
  std::optional<CUDAStream> owner;
  void* range = nullptr;
  {
    std::lock_guard<std::mutex> lock(a.mutex);
    if (!a.block || size > a.bytes) return {};
    const std::size_t at = find(a, size);
    if (!is_free(a, at, size)) return {};
    owner = a.stream;
    auto [concerned, rest] = divided(a, at, at + size);
    Range made{size, {}};
    if (stream != *owner) made.streams.push_back(stream);
    a.taken.emplace(at, std::move(made));
    a.earlier.swap(rest);
    after = std::move(concerned);
    a.used += size;
    range = a.base + at;
  }
  c10::DataPtr made(range, range, &delete_range, c10::Device(c10::kCUDA, index_of(device)));
  const bool unknown = std::any_of(after.begin(), after.end(), [](const Earlier& e) { return e.unknown; });
  if (!for_copy || unknown) order(device, after, *owner, stream);
  else taken_range = {range, std::move(after)};
  return made;
}

} // namespace

c10::DataPtr take_range(int device, std::int64_t offset, std::size_t bytes, bool for_copy) {
  return take(device, bytes, for_copy, [=](const Arena&, std::size_t) { return static_cast<std::size_t>(offset); });
}

c10::DataPtr take_gap(int device, std::size_t bytes, c10::ArrayRef<mgd_step_place> places) {
  return take(device, bytes, false, [=](const Arena& a, std::size_t size) { return highest_gap(a, size, places); });
}

bool lead_after_arena(const void* range, cudaStream_t stream) {
  const TakenRange last = std::exchange(taken_range, {});
  if (!last.range || last.range != range) return false;
  for (const Earlier& e : last.after) {
    if (e.copy) move_of(e.copy).lead(stream);
    if (e.users) static_cast<Streams&>(*e.users).lead(stream);
  }
  return true;
}

const void* arena_at(const void* address) {
  const int device = device_at(address);
  return device < 0 ? nullptr : arena_of(device).base;
}

bool is_range(const c10::DataPtr& p) { return p.get_deleter() == &delete_range; }

// Without memory of the host a range stays taken.
void free_range(c10::DataPtr& range, const CopyPtr& copy, bool last) try {
  const int device = range.device().index();
  Arena& a = arena_of(device);
  const std::size_t offset = static_cast<std::size_t>(static_cast<char*>(range.release_context()) - a.base);
  range.clear();
  const Range ended = range_at(a, offset);
  PointPtr users;
  try {
    if (!last) users = point(device);
  } catch (const std::exception&) {} // a device that has failed reports that at the next call
  if (!last && !users) users = users_of(a, device, ended.streams);
  end_range(device, offset, ended.bytes, copy, users, !last, !last && !users);
} catch (const std::bad_alloc&) {}

void free_range(void* range) try {
  const int device = device_at(range);
  if (device < 0) return;
  Arena& a = arena_of(device);
  const std::size_t offset = static_cast<std::size_t>(static_cast<char*>(range) - a.base);
  const Range ended = range_at(a, offset);
  const PointPtr users = users_of(a, device, ended.streams);
  end_range(device, offset, ended.bytes, nullptr, users, !ended.streams.empty(), !users);
} catch (const std::bad_alloc&) {}

void record_on_range(const c10::DataPtr& range, CUDAStream stream) {
  Arena& a = arena_of(range.device().index());
  std::lock_guard<std::mutex> lock(a.mutex);
  const auto found = a.taken.find(static_cast<std::size_t>(static_cast<const char*>(range.get()) - a.base));
  if (found == a.taken.end() || stream == *a.stream) return;
  auto& streams = found->second.streams;
  if (std::find(streams.begin(), streams.end(), stream) == streams.end()) streams.push_back(stream);
}

void report_ranges(void (*to)(int device, std::size_t bytes)) { freed.store(to, std::memory_order_release); }

} // namespace managed
