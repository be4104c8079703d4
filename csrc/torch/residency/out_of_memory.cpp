// out_of_memory.cpp: see out_of_memory.h. Owns the text: what was requested, what holds the memory, what to do next.
//
// The text begins with the allocator's own words, including " out of memory.", by which programs that search for a
// batch size recognise the error. If tensors could have left the device, and the host had no room for them, the text is
// about the host, and has the words of the host's allocator instead.
#include "torch/residency/out_of_memory.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "torch/devices/devices.h"
#include "torch/residency/room.h"
#include "torch/threads/errors.h"
#include "torch/tensor/host_memory.h"
#include "torch/tensor/record.h"

namespace managed {
namespace {

void add_part(std::ostringstream& s, const char* what, int64_t bytes) {
  if (bytes) s << ", " << readable(bytes) << " " << what;
}

// Allocated bytes of the device that belong to no storage that managed knows.
int64_t others_of(int id, const mgd_residency_usage& u) {
  const c10::Device d = device_of(id);
  mgd_usage ledger{};
  if (mgd_ledger_usage(machine(), id, &ledger) != MGD_OK) return 0;
  const int64_t all = c10::getDeviceAllocator(d.type())->getDeviceStats(d.index()).allocated_bytes[0].current;
  int64_t known = u.idle + u.in_use + u.held + u.moving + u.guests + ledger.by_owner[MGD_REPLICA];
  for (const int64_t pinned : u.pinned) known += pinned;
  return std::max<int64_t>(0, all - known);
}

void add_device(std::ostringstream& s, int id) {
  mgd_residency_usage u{};
  mgd_usage ledger{};
  if (mgd_residency_read(machine(), id, &u) != MGD_OK || mgd_ledger_usage(machine(), id, &ledger) != MGD_OK) return;
  s << "\n  " << device_of(id) << ": ";
  if (!has_context(device_of(id))) {
    s << "not used by this process";
    return;
  }
  const int64_t free = free_bytes(id);
  s << readable(free) << " free";
  add_part(s, "between blocks or waiting for kernels", bytes_free_soon(id) - free);
  add_part(s, "could leave", u.idle);
  add_part(s, "in use by operators", u.in_use);
  static constexpr const char* reasons[] = {
#define X(name, text) text,
      MGD_PINS(X)
#undef X
  };
  for (int kind = 0; kind < MGD_PIN_KINDS; kind++) add_part(s, reasons[kind], u.pinned[kind]);
  add_part(s, ledger.spills ? "whose storages the program holds" : "that its budget keeps there (spill=False)", u.held);
  add_part(s, "on the way", u.moving);
  add_part(s, "of other devices' tensors", u.guests);
  add_part(s, "in plain or small tensors, which never leave", others_of(id, u));
  add_part(s, "of its tensors elsewhere", u.spilled);
}

// What each holder said last of the device, and what it was asked for.
void add_holders(std::ostringstream& s, int id) {
  mgd_holding all[MGD_MAX_HOLDERS];
  int n = 0;
  if (mgd_holders_read(machine(), id, all, &n) != MGD_OK) return;
  for (const mgd_holding& h : c10::ArrayRef<mgd_holding>(all, n)) {
    if (!h.live && !h.cached && !h.asks) continue;
    s << "\n    " << h.name << ": " << readable(h.live) << " live, " << readable(h.cached) << " cached";
    if (h.asks) s << "; asked for " << readable(h.asked) << ", gave " << readable(h.given);
  }
}

// What the host holds of which device, and in what memory.
void add_host(std::ostringstream& s) {
  int64_t used = 0, limit = 0, peak = 0;
  mgd_host_usage(machine(), &used, &limit, &peak);
  const mgd_host_bytes b = host_bytes();
  s << "\n  host: " << readable(used) << " of tensors that left their device";
  if (limit != INT64_MAX) s << " (limit " << readable(limit) << ")";
  add_part(s, "in pinned memory", b.pinned);
  add_part(s, "in pageable memory", b.pageable);
  add_part(s, "kept free", b.kept);
  for (int id = 1; id < device_count(); id++) {
    mgd_residency_usage u{};
    if (mgd_residency_read(machine(), id, &u) == MGD_OK && u.on_host)
      s << "; " << readable(u.on_host) << " of " << device_of(id);
  }
}

std::string table() {
  std::ostringstream s;
  for (int id = 1; id < device_count(); id++) {
    add_device(s, id);
    add_holders(s, id);
  }
  add_host(s);
  return s.str();
}

// Names the devices whose budgets forbid that tensors leave, and says what to do.
std::string advice() {
  std::string forbid;
  for (int id = 1; id < device_count(); id++) {
    mgd_usage ledger{};
    if (mgd_ledger_usage(machine(), id, &ledger) == MGD_OK && !ledger.spills)
      forbid += (forbid.empty() ? "" : ", ") + device_of(id).str();
  }
  const std::string first = forbid.empty()
      ? "\nIdle tensors were moved away first, and this was not enough. Try"
      : c10::str("\nThe budget of ", forbid, " forbids spilling, so no tensor of it was moved away. Call ",
                 "managed.budget() with spill=True or a larger size, or try");
  return first +
      " a smaller batch, torch.utils.checkpoint around large blocks, or more devices (module.cuda(disperse=True)); "
      "unpin() what need not stay, let go of untyped_storage() and the like, and raise managed.budget() where it is "
      "the limit. What only grows (results that torch.cat() gathers) can be kept on the host: gather x.cpu(), or say "
      "managed.hint(x, on_host=True) or managed.budget(device, size, fallback='host').";
}

// "Tried to allocate 20.00 MiB", as torch's allocators say it.
std::string asked_in(const std::string& error) {
  const std::size_t begin = error.find("Tried to allocate ");
  if (begin == std::string::npos) return "Tried to allocate memory";
  return error.substr(begin, error.find(". ", begin) - begin);
}

std::string about_host(const HostShortage& shortage, const std::string& error, const std::string& where) {
  int64_t used = 0, limit = 0, peak = 0;
  mgd_host_usage(machine(), &used, &limit, &peak);
  const std::string why = shortage.is_refused
      ? "the system has no memory for it"
      : c10::str(readable(std::max<int64_t>(0, limit - used)), " of at most ", readable(limit), " are free");
  return c10::str("managed: the host is out of memory. ", asked_in(error), " on ", device_of(shortage.device),
                  where.empty() ? "" : " (in " + where + ")",
                  ". What would have to leave that device could not: ", "the host takes what leaves, and ", why, ".",
                  table(), "\nLet go of tensors that wait on the host, which a smaller batch makes fewer, or raise ",
                  shortage.is_refused ? "the limit of the container or of the process (ulimit -v). "
                                      : "managed.budget(\"cpu\"), by default four fifths of the host's memory. ",
                  "More room on the devices leaves less to the host: more devices (module.cuda(disperse=True)), a "
                  "larger managed.budget(), torch.utils.checkpoint around large blocks. The CPU's allocator would say "
                  "\"DefaultCPUAllocator: can't allocate memory\".");
}

} // namespace

void throw_no_room(int device, mgd_handle* const* operands, std::size_t n, const char* operator_name) {
  const std::set<const mgd_handle*> storages(operands, operands + n); // views of one storage count once
  int64_t bytes = 0;
  for (const mgd_handle* h : storages) bytes += h->home == device ? h->bytes : 0;
  throw_out_of_memory(c10::str("managed: ", device_of(device), " out of memory. ",
                               operator_name ? operator_name : "A copy", " needs ", storages.size(),
                               " storages together, ", readable(bytes), " of them there.", table(), advice()));
}

std::string with_table(const std::string& error, const std::string& where) {
  const HostShortage shortage = take_host_shortage();
  if (shortage.device >= 0) return about_host(shortage, error, where);
  return c10::str("managed: ", error, where.empty() ? "" : " (in " + where + ")", table(), advice());
}

void rethrow_out_of_memory(const c10::OutOfMemoryError& e, const std::string& where) {
  throw_out_of_memory(with_table(e.what_without_backtrace(), where));
}

} // namespace managed
