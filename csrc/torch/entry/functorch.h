// functorch.h: the hook above the transforms of torch.func.
#pragma once

namespace managed {

// Registers the hook; mgd_torch_init() calls it once. Does nothing if the key of that hook is taken.
void register_above_functorch();

} // namespace managed
