// host_limit.h: computes this process's share of the host's memory.
#pragma once
#include <cstdint>
#include <string>

namespace managed {

// Bytes: the machine's memory or the limit of the process's control groups, whichever is less, divided by the number of
// processes that a launcher started on this machine (LOCAL_WORLD_SIZE). `root`: prefix of /proc and /sys, for tests.
int64_t share_of_host(const std::string& root = "");

} // namespace managed
