// host_limit.h: how much of the host's memory this process may think of as its own.
#pragma once
#include <cstdint>
#include <string>

namespace managed {

// The machine's memory or, where that is less, the limit of the process's control groups, shared among as many
// processes as a launcher started on this machine (LOCAL_WORLD_SIZE). `root`: in front of /proc and /sys, for tests.
int64_t share_of_host(const std::string& root = "");

} // namespace managed
