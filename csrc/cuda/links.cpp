// links.cpp: see links.h.
//
// The runtime does not tell how fast a link is; the system tells what PCI Express a card has. Its rates are those of
// PCI-SIG's specifications: so many transfers of a bit a second and lane, of which generations 1 and 2 use 8 of 10 bits
// and later ones 128 of 130. Copies reach about seven eighths of that: 55.3 bytes/ns of 63.0 on an H200
// (benchmarks/on_card.py). NVLink: 300 bytes/ns in one direction (NVIDIA A100 data sheet, 2021: 600 GB/s in both
// together); devices do atomic operations on each other's memory only over it.
#include "cuda/links.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <string>

namespace managed {
namespace {

constexpr std::int64_t kStart = 10'000; // ns, about what it takes to start a copy
constexpr double kReached = 7.0 / 8, kNvlink = 300.0;
constexpr double kUsual = 31.5; // bytes/ns of generation 4 with 16 lanes, if the system tells nothing

int attribute(cudaDeviceP2PAttr what, int from, int to) {
  int value = 0;
  if (cudaDeviceGetP2PAttribute(&value, what, from, to) != cudaSuccess) (void)cudaGetLastError();
  return value;
}

// The number that a file begins with; 0 if it has none.
double number_in(const std::string& path) {
  double value = 0;
  std::ifstream(path) >> value;
  return value;
}

// Bytes/ns of the PCI device in that folder of sysfs. An idle card has a slower link, but not a narrower one.
double rate_at(const std::string& folder) {
  const double transfers = number_in(folder + "/max_link_speed");
  const double lanes = std::min(number_in(folder + "/max_link_width"), number_in(folder + "/current_link_width"));
  return transfers * lanes / 8 * (transfers < 8 ? 8.0 / 10 : 128.0 / 130);
}

// The rate of the card, or that of the port above it if that is slower.
double pcie(int device) {
  char id[32] = {};
  if (cudaDeviceGetPCIBusId(id, sizeof id, device) != cudaSuccess) {
    (void)cudaGetLastError();
    return kUsual;
  }
  std::string folder = "/sys/bus/pci/devices/" + std::string(id);
  std::transform(folder.begin(), folder.end(), folder.begin(), [](unsigned char c) { return std::tolower(c); });
  const double card = rate_at(folder), port = rate_at(folder + "/..");
  return card <= 0 ? kUsual : port > 0 ? std::min(card, port) : card;
}

} // namespace

// Devices that cannot reach each other copy through the host, over two links.
void link(int from, int to, std::int64_t* latency_ns, double* bytes_per_ns) {
  const bool host = from < 0 || to < 0;
  const bool direct = host || attribute(cudaDevP2PAttrAccessSupported, from, to);
  const bool nvlink = !host && attribute(cudaDevP2PAttrNativeAtomicSupported, from, to);
  const double a = from < 0 ? pcie(to) : pcie(from), b = to < 0 ? a : pcie(to);
  const double reached = std::min(a, b) * kReached;
  *latency_ns = direct ? kStart : 2 * kStart;
  *bytes_per_ns = nvlink ? kNvlink : direct ? reached : reached / 2;
}

} // namespace managed
