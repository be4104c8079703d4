// api.cpp: starts the torch side of managed, once a process.
#include "api.h"

#include "devices.h"
#include "functorch.h"
#include "guard.h"
#include "hook.h"

int mgd_torch_init(void) {
  return managed::guarded([] {
    managed::create_machine();
    managed::register_hook();
    managed::register_above_functorch();
    return 0;
  });
}
