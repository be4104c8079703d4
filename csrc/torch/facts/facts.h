// facts.h: what the chokepoint must know about an operator before it sees a call.
//
// Facts are computed once per operator from its schema, plus one table
// (rules.cpp) for what schemas do not say. They are immutable and live as long
// as the process, because kernels registered with the dispatcher carry them.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

namespace managed {

// How a call goes on after alignment. If managed's key is excluded, the operators inside do not come to the hook; if it
// stays included they do, and hold what they use. (Some other keys keep it included in any case: kOpen, hook.h.)
enum class Route : uint8_t {
  Leaf,        // the call holds its operands; the key is excluded
  Whole,       // a composite that autocast casts: aligned before the cast; excluded only if nothing can leave
  Open,        // mostly not aten's: the call holds its operands, and all count as written; the key stays on
  AlignOnly,   // a composite that is aligned as a whole; the key stays on
  Fallthrough, // any other composite: the call does not come to the hook, the operators inside do
};

// What alignment may do with the operands.
enum class Alignment : uint8_t {
  Align, // they are brought together
  Never, // the operator itself copies between devices, or only looks at tensors
  Rows,  // a list operator: rows agree among themselves, devices may differ between rows
};

enum ArgFlag : uint8_t {
  kWritten = 1,      // the schema says that it is written
  kAliased = 2,      // a result is a view of it
  kHostOnly = 4,     // the kernel demands it on the CPU
  kHostAllowed = 8,  // the kernel takes it from the CPU as well
  kHiddenWrite = 16, // written although the schema does not say so
  kMetadata = 32,    // only its shape or dtype is read
};

// Lists: a list of lists, as collectives of torch.distributed take. Its tensors are held, and stay on their devices.
enum class ArgShape : uint8_t { One, List, OptionalList, Lists };

struct TensorArg {
  uint16_t index; // position in the schema
  ArgShape shape;
  uint8_t flags;
  const char* name; // owned by the facts' copy of the schema's names
  bool is_written() const { return flags & (kWritten | kHiddenWrite); }
};

// The facts that each call reads. A typed kernel has its own copy: a large kernel evicts managed's data from the CPU's
// caches, and each further pointer then costs a cache miss. Torch's schemas have at most 64 arguments.
struct CallFacts {
  uint64_t written = 0; // bit i: argument i is written, whether or not the schema says so
  uint64_t written_lists = 0; // bit i: argument i is a written list, which is no result
  Route route = Route::Leaf;
  Alignment alignment = Alignment::Align;
  bool scalars_stay = false;           // 0-dim CPU tensors count as numbers
  bool has_host_only = false;
  bool reads_shape_only = false;       // of strided operands only the shape is read, and no bytes
  bool results_are_new = false;        // no result is, or shares bytes with, an operand
  bool outlives_call = false;          // it uses its operands and results after it has returned
  const char* c_name = "";             // OpFacts::name
  bool copies_between_devices = false; // the program may ask it to copy to another device
};

struct OpFacts : CallFacts {
  uint16_t arguments = 0, returns = 0;
  int generator = -1; // position of a Generator argument
  bool draws_random = false;
  bool is_foreign = false; // it is not torch's own: its kernel may use the current device
  int training = -1;  // position of the bool without which hidden writes do not happen
  c10::SmallVector<TensorArg, 8> tensors;
  c10::SmallVector<int16_t, 4> returned; // the argument that return r is, or -1 if r is new
  std::string name;                      // "aten::add.Tensor"
  std::deque<std::string> names;         // storage of TensorArg::name
};

// The facts of an operator, computed on first use, then looked up by handle.
const OpFacts& facts_of(const c10::OperatorHandle& op);

constexpr auto kDeviceOfToCopy = 3; // position of `device` in aten::_to_copy

// The table of rules.cpp: `base` is the name without namespace and overload.
struct OpRule {
  Alignment alignment = Alignment::Align;
  bool scalars_stay_always = false;
};
OpRule rule_of(std::string_view base);
uint8_t arg_rule_of(std::string_view base, std::string_view argument); // flags to add
bool reads_shapes(std::string_view base);      // it reads only the shapes of its operands; its results are new
bool carries_bytes(std::string_view base);     // leaf by which a program copies between devices
bool reads_view(std::string_view base);        // it returns views, yet reads bytes
bool aliases_unsaid(std::string_view base);    // a result shares an operand's bytes although the schema does not say so
bool scalars_move(std::string_view base); // it is tagged pointwise, yet its kernel compares devices
bool aligned_whole(std::string_view base);     // composite that must be aligned as a whole
bool reads_raw_memory(std::string_view full);  // composite that must run as a leaf
bool calls_composites(std::string_view full);  // leaf whose device kernel is a composite

} // namespace managed
