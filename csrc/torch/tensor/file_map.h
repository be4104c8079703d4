// file_map.h: finds the file that memory of the host is mapped from: that of torch.load(mmap=True), of safetensors.
//
// The file is opened and mapped anew, read-only, and holds the bytes as long as the result lives: later writes to the
// memory do not matter, nor do renaming or deleting the file. Writing or truncating the file makes the bytes bad.
#pragma once
#include <atomic>
#include <cstddef>
#include <memory>
#include <string>

namespace managed {

// The program's switch: whether a file serves as the host's copy of bytes that went from a map of it to a device.
extern std::atomic<bool> keeps_maps;

class MappedFile {
 public:
  MappedFile(int fd, std::size_t size, std::string path); // takes the descriptor; throws std::bad_alloc
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // Whether the file has neither been written nor truncated. A write through a shared map is not noticed.
  bool is_unchanged() const;
  // Whether `bytes` bytes of the file, from `offset` on, are these.
  bool holds(std::size_t offset, const void* expected, std::size_t bytes) const;
  const char* data() const { return data_; }
  const std::string& path() const { return path_; }

 private:
  const int fd_;
  const std::size_t size_;
  const std::string path_;
  char* data_;
  long long seconds_, ns_; // of the last write
};

struct FilePart {
  std::shared_ptr<const MappedFile> file;
  const void* data = nullptr;
};

// Returns the part of a file that the memory is mapped from. `file` is null if it is no map, or one that writes to the
// file; if the file is not there any more; or if it holds other bytes, since a private map was written. Thread-safe.
FilePart find_in_file(const void* memory, std::size_t bytes);

bool needs_file(const char* path) noexcept; // whether a MappedFile of this file lives; thread-safe

} // namespace managed
