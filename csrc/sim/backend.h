// backend.h: which tensors the kernels of this folder serve: the simulator's or the virtual GPU's.
//
// The same files are compiled twice: into managed._sim for torch's PrivateUse1, and with MANAGED_VIRTUAL_GPU
// into managed._virtual_gpu for CUDA. All that differs among them is a constant here, or a function that
// storage.h, generator.h, launch.h and device.h declare and both folders define.
#pragma once
#include <c10/core/Device.h>
#include <c10/core/DispatchKey.h>

namespace managed::sim {

#ifdef MANAGED_VIRTUAL_GPU
constexpr bool kVirtualGpu = true;
constexpr c10::DeviceType kDevice = c10::DeviceType::CUDA;
constexpr const char *kName = "cuda";
constexpr const char *kDevices = "virtual GPUs"; // in errors
constexpr c10::DispatchKey kDense = c10::DispatchKey::CUDA, kAutograd = c10::DispatchKey::AutogradCUDA;
constexpr c10::DispatchKey kCoo = c10::DispatchKey::SparseCUDA, kCompressed = c10::DispatchKey::SparseCsrCUDA;
#else
constexpr bool kVirtualGpu = false;
constexpr c10::DeviceType kDevice = c10::DeviceType::PrivateUse1;
constexpr const char *kName = "sim";
constexpr const char *kDevices = "simulated devices";
constexpr c10::DispatchKey kDense = c10::DispatchKey::PrivateUse1, kAutograd = c10::DispatchKey::AutogradPrivateUse1;
constexpr c10::DispatchKey kCoo = c10::DispatchKey::SparsePrivateUse1, kCompressed = c10::DispatchKey::SparseCsrPrivateUse1;
#endif

inline c10::Device device_at(int index) { return c10::Device(kDevice, static_cast<c10::DeviceIndex>(index)); }

}  // namespace managed::sim
