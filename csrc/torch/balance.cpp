// balance.cpp: what devices have been given to do, for who asks whether an object should live on another one.
#include <array>

#include "api.h"
#include "devices.h"
#include "guard.h"
#include "hook.h"
#include "steps.h"

namespace managed {
namespace {

using Times = std::array<int64_t, MGD_MAX_DEVICES>;

// Of all devices of one kind. False: nobody knows.
bool look_at_devices(c10::DeviceType type, Times& worked, Times& busy_for) {
  const Bridge* backend = backend_of(type);
  if (!backend || !backend->worked || !backend->busy_for) return false;
  for (int id = 1; id < device_count(); id++) {
    const c10::Device d = device_of(id);
    const std::size_t at = static_cast<std::size_t>(id);
    if (d.type() == type) worked[at] = backend->worked(d.index()), busy_for[at] = backend->busy_for(d.index());
  }
  return true;
}

} // namespace
} // namespace managed

using namespace managed;

int mgd_torch_object_step(struct mgd_object_step* step, int* device) {
  return guarded([&] {
    Times worked{}, busy_for{};
    if (is_frozen() || mgd_torch_in_backward() || !learns_steps() ||
        !look_at_devices(device_of(step->home).type(), worked, busy_for))
      return static_cast<int>(MGD_E_ABSENT);
    observe();
    step->worked = worked.data();
    step->busy_for = busy_for.data();
    return mgd_balance_step(machine(), step, device);
  });
}
