// pieces.cpp: a backward pass in pieces, for managed.Pipeline. cuts.h says what a piece is.
#include <torch/csrc/Device.h>
#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>

#include <memory>
#include <string>
#include <utility>

#include "torch/align/cuts.h"
#include "torch/api.h"
#include "torch/entry/lists.h"
#include "torch/residency/guard.h"
#include "torch/threads/threads.h"

namespace managed {
namespace {

constexpr const char* kCrossing = "managed.crossing";

// A way out of the piece of one part, and the gradient that has come to it.
struct Crossing {
  explicit Crossing(NodePtr trip) : node(std::move(trip)) {}
  ~Crossing() { trip().mend(&gradient); }
  Crossing(const Crossing&) = delete;
  Crossing& operator=(const Crossing&) = delete;
  TripHome& trip() const { return static_cast<TripHome&>(*node); }

  NodePtr node;
  at::Tensor gradient;
};

Crossing* crossing_in(PyObject* capsule) { return static_cast<Crossing*>(PyCapsule_GetPointer(capsule, kCrossing)); }

void drop_crossing(PyObject* capsule) { delete crossing_in(capsule); }

PyObject* new_capsule(const NodePtr& node) {
  auto own = std::make_unique<Crossing>(node);
  PyObject* capsule = PyCapsule_New(own.get(), kCrossing, &drop_crossing);
  if (capsule) (void)own.release();
  return capsule;
}

// All arguments are new references, which the tuple takes; null if one is.
template <class... Parts>
PyObject* tuple_of(Parts... parts) {
  THPObjectPtr owned[] = {THPObjectPtr(parts)...};
  for (const THPObjectPtr& part : owned)
    if (!part) return nullptr;
  return PyTuple_Pack(sizeof...(parts), parts...);
}

PyObject* object_of_crossing(const NodePtr& node) {
  const torch::autograd::Edge& next = node->next_edge(0);
  return tuple_of(new_capsule(node), torch::autograd::functionToPyObject(node),
                  THPDevice_New(static_cast<TripHome&>(*node).home()),
                  torch::autograd::functionToPyObject(next.function), PyLong_FromUnsignedLong(next.input_nr));
}

PyObject* object_of_piece(const Piece& piece) {
  return tuple_of(THPDevice_New(piece.device),
                  list_of(piece.leaves, [](const NodePtr& leaf) { return torch::autograd::functionToPyObject(leaf); }),
                  list_of(piece.crossings, &object_of_crossing));
}

} // namespace
} // namespace managed

using namespace managed;

PyObject* mgd_torch_cut_backward(PyObject* loss) {
  return guarded([&]() -> PyObject* {
    TORCH_CHECK_TYPE(THPVariable_Check(loss) && THPVariable_Unpack(loss).requires_grad(),
                     "managed: expected a tensor that requires a gradient");
    const at::Tensor& root = THPVariable_Unpack(loss);
    std::string why;
    std::vector<Piece> pieces;
    {
      NoGil no_gil;
      pieces = cut_at_crossings(root, &why);
    }
    return pieces.empty() ? PyUnicode_FromString(why.c_str()) : list_of(pieces, &object_of_piece);
  });
}

int mgd_torch_end_at_crossing(PyObject* capsule, int ends) {
  return guarded([&] {
    Crossing* crossing = crossing_in(capsule);
    if (!crossing) return -1;
    ends ? crossing->trip().cut(&crossing->gradient) : crossing->trip().mend(&crossing->gradient);
    return 0;
  });
}

PyObject* mgd_torch_leave_crossing(PyObject* capsule) {
  return guarded([&]() -> PyObject* {
    Crossing* crossing = crossing_in(capsule);
    if (!crossing) return nullptr;
    at::Tensor gradient = std::exchange(crossing->gradient, {});
    {
      NoGil no_gil;
      gradient = crossing->trip().arrive(gradient);
    }
    return THPVariable_Wrap(std::move(gradient));
  });
}
