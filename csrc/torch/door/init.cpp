// init.cpp: starts the torch side of managed, once a process. Only the order of the start belongs here; what is
// started is in the files that are included.
#include "torch/api.h"

#include "torch/entry/attach.h"
#include "torch/entry/functorch.h"
#include "torch/residency/guard.h"
#include "torch/entry/register.h"

int mgd_torch_init(void) {
  return managed::guarded([] {
    managed::create_machine();
    managed::register_hook();
    managed::register_above_functorch();
    return 0;
  });
}
