// lists.h: Python lists of what C++ has in vectors. The GIL must be held.
#pragma once
#include <torch/csrc/utils/object_ptr.h>

#include <cstddef>
#include <vector>

namespace managed {

// Returns a list of f(element), which are new references, for the elements of a vector; null with a Python exception
// set if f returns null.
template <class T, class F>
PyObject* list_of(const std::vector<T>& all, const F& f) {
  THPObjectPtr list(PyList_New(static_cast<Py_ssize_t>(all.size())));
  for (std::size_t i = 0; list && i < all.size(); i++) {
    PyObject* one = f(all[i]);
    if (!one) return nullptr;
    PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(i), one);
  }
  return list.release();
}

} // namespace managed
