// api.cpp: starts the torch side of managed, once a process. Only the order of the start belongs here; what is
// started is in the files that are included.
#include "api.h"

#include "attach.h"
#include "functorch.h"
#include "guard.h"
#include "register.h"

int mgd_torch_init(void) {
  return managed::guarded([] {
    managed::create_machine();
    managed::register_hook();
    managed::register_above_functorch();
    return 0;
  });
}
