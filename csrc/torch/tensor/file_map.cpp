// file_map.cpp: see file_map.h.
#include "torch/tensor/file_map.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <climits>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "torch/api.h"
#include "torch/threads/forks.h"

namespace managed {

std::atomic<bool> keeps_maps{true};

MappedFile::MappedFile(int fd, std::size_t size, std::string path)
    : fd_(fd),
      size_(size),
      path_(std::move(path)),
      data_(static_cast<char*>(mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0))) {
  struct stat s{};
  if (data_ == MAP_FAILED || fstat(fd_, &s) != 0) {
    if (data_ != MAP_FAILED) munmap(data_, size_);
    close(fd_);
    throw std::bad_alloc();
  }
  seconds_ = s.st_mtim.tv_sec;
  ns_ = s.st_mtim.tv_nsec;
}

MappedFile::~MappedFile() {
  munmap(data_, size_);
  close(fd_);
}

bool MappedFile::is_unchanged() const {
  struct stat s{};
  return fstat(fd_, &s) == 0 && static_cast<std::size_t>(s.st_size) == size_ && s.st_mtim.tv_sec == seconds_ &&
      s.st_mtim.tv_nsec == ns_;
}

// Reads the file, because a file that is truncated meanwhile would end a process that reads the map.
bool MappedFile::holds(std::size_t offset, const void* expected, std::size_t bytes) const {
  constexpr std::size_t kPiece = std::size_t{1} << 18;
  std::vector<char> piece(std::min(bytes, kPiece));
  for (std::size_t at = 0; at < bytes;) {
    const ssize_t n = pread(fd_, piece.data(), std::min(bytes - at, piece.size()), static_cast<off_t>(offset + at));
    if (n <= 0 || std::memcmp(piece.data(), static_cast<const char*>(expected) + at, static_cast<std::size_t>(n)) != 0)
      return false;
    at += static_cast<std::size_t>(n);
  }
  return is_unchanged();
}

namespace {

// Part of this process's memory that is mapped from a file.
struct Range {
  uintptr_t begin, end;
  std::size_t offset; // of its first byte in the file
  std::string path;
};

std::mutex& maps_mutex();

// `ranges` are those of the last look at /proc/self/maps: a load has one look, not one for each tensor.
struct Maps {
  std::mutex mutex; // a leaf
  std::vector<Range> ranges;
  std::map<std::pair<dev_t, ino_t>, std::weak_ptr<const MappedFile>> files;
};
Maps& maps() {
  static auto* m = [] {
    survive_fork<maps_mutex>();
    return new Maps; // never destroyed: tensors may outlive static destructors
  }();
  return *m;
}
std::mutex& maps_mutex() { return maps().mutex; }
const MadeAtStart maps_at_start([] { maps(); });

// Leaves out maps through which this process can write to the file: not every such write changes the file's time.
std::vector<Range> read_ranges() {
  std::vector<Range> found;
  std::ifstream lines("/proc/self/maps");
  for (std::string line; std::getline(lines, line);) {
    uintptr_t begin = 0, end = 0;
    std::size_t offset = 0;
    char access[5] = "";
    int path = 0;
    const int read =
        std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %4s %zx %*s %*s %n", &begin, &end, access, &offset, &path);
    const bool writes_file = access[1] == 'w' && access[3] == 's';
    if (read == 4 && path > 0 && line[static_cast<std::size_t>(path)] == '/' && !writes_file)
      found.push_back({begin, end, offset, line.substr(static_cast<std::size_t>(path))});
  }
  return found;
}

std::optional<Range> find_locked(const Maps& m, uintptr_t begin, std::size_t bytes) {
  for (const Range& r : m.ranges)
    if (r.begin <= begin && begin < r.end && bytes <= r.end - begin) return r;
  return {};
}

// Whether the range is still mapped from its file.
bool is_current(const Range& r) {
  char name[64], path[PATH_MAX];
  std::snprintf(name, sizeof name, "/proc/self/map_files/%" PRIxPTR "-%" PRIxPTR, r.begin, r.end);
  const ssize_t n = readlink(name, path, sizeof path);
  return n > 0 && r.path == std::string_view(path, static_cast<std::size_t>(n));
}

// Opens the file unless it is open already and unchanged. Null: it cannot be opened, or is no regular file.
std::shared_ptr<const MappedFile> open_locked(Maps& m, const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return nullptr;
  struct stat s{};
  if (fstat(fd, &s) != 0 || !S_ISREG(s.st_mode) || s.st_size <= 0) {
    close(fd);
    return nullptr;
  }
  std::erase_if(m.files, [](const auto& file) { return file.second.expired(); });
  auto& known = m.files[{s.st_dev, s.st_ino}];
  if (auto file = known.lock(); file && file->is_unchanged()) {
    close(fd);
    return file;
  }
  auto file = std::make_shared<const MappedFile>(fd, static_cast<std::size_t>(s.st_size), path);
  known = file;
  return file;
}

FilePart part_of(Maps& m, const Range& r, const void* memory, std::size_t bytes) {
  const std::size_t offset = r.offset + (reinterpret_cast<uintptr_t>(memory) - r.begin);
  auto file = open_locked(m, r.path);
  if (!file || !file->holds(offset, memory, bytes)) return {};
  const void* data = file->data() + offset;
  return {std::move(file), data};
}

} // namespace

FilePart find_in_file(const void* memory, std::size_t bytes) {
  Maps& m = maps();
  const auto begin = reinterpret_cast<uintptr_t>(memory);
  const std::lock_guard<std::mutex> lock(m.mutex);
  auto range = find_locked(m, begin, bytes);
  if (!range || !is_current(*range)) {
    m.ranges = read_ranges();
    range = find_locked(m, begin, bytes);
  }
  return range ? part_of(m, *range, memory, bytes) : FilePart{};
}

bool needs_file(const char* path) noexcept {
  struct stat s{};
  if (stat(path, &s) != 0) return false;
  Maps& m = maps();
  const std::lock_guard<std::mutex> lock(m.mutex);
  const auto known = m.files.find({s.st_dev, s.st_ino});
  return known != m.files.end() && !known->second.expired();
}

} // namespace managed

int mgd_torch_keeps_maps(void) { return managed::keeps_maps; }

void mgd_torch_keep_maps(int on) { managed::keeps_maps = on != 0; }

int mgd_torch_needs_file(const char* path) { return managed::needs_file(path); }
