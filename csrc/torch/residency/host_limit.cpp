// host_limit.cpp: see host_limit.h.
//
// Control groups form a tree, and each level may have a limit. Version 2 has one tree for all controllers, version 1
// one for memory alone. In a container the process's path may be that of the host, whose upper levels are
// invisible: a file that cannot be read sets no limit.
#include "torch/residency/host_limit.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <limits>

namespace managed {
namespace {

constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

// "max", or a number; version 1 writes the largest number of whole pages if there is no limit.
int64_t limit_in(const std::string& path) {
  std::ifstream file(path);
  int64_t bytes = 0;
  return file >> bytes && bytes > 0 ? bytes : kNone;
}

int64_t least_on_the_way(const std::string& tree, std::string group, const char* name) {
  int64_t least = kNone;
  for (;;) {
    least = std::min(least, limit_in(tree + group + "/" + name));
    const auto slash = group.find_last_of('/');
    if (slash == std::string::npos) return least;
    group.resize(slash);
  }
}

// Lines are "number:controllers:/path"; version 2's has no controllers.
int64_t limit_of_groups(const std::string& root) {
  std::ifstream file(root + "/proc/self/cgroup");
  int64_t least = kNone;
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find(':'), second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",",
                      group = line.substr(second + 1);
    if (controllers == ",,") least = std::min(least, least_on_the_way(root + "/sys/fs/cgroup", group, "memory.max"));
    else if (controllers.find(",memory,") != std::string::npos)
      least = std::min(least, least_on_the_way(root + "/sys/fs/cgroup/memory", group, "memory.limit_in_bytes"));
  }
  return least;
}

int64_t processes_here() {
  const char* text = std::getenv("LOCAL_WORLD_SIZE");
  return text ? std::max<int64_t>(1, std::strtoll(text, nullptr, 10)) : 1;
}

} // namespace

int64_t share_of_host(const std::string& root) {
  const int64_t machine = static_cast<int64_t>(sysconf(_SC_PAGESIZE)) * sysconf(_SC_PHYS_PAGES);
  return std::min(machine, limit_of_groups(root)) / processes_here();
}

} // namespace managed
