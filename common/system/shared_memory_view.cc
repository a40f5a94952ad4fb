// SPDX-License-Identifier: Apache-2.0
#include "common/system/shared_memory_view.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <system_error>

#include "common/units.h"

namespace millrace {

Result<SharedMemoryView> SharedMemoryView::map(const FileDescriptor& descriptor) {
  const int seals = ::fcntl(descriptor.get(), F_GET_SEALS);
  struct stat file {};
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || ::fstat(descriptor.get(), &file) != 0 ||
      file.st_size <= 0) {
    return error(Errc::kInvalidArgument, "not shared memory of a fixed size");
  }
  const auto size = static_cast<size_t>(file.st_size);
  void* const base = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor.get(), 0);
  if (base == MAP_FAILED) {
    return error(Errc::kExhausted, "mapping shared memory of {}: {}", format_bytes(file.st_size),
                 std::generic_category().message(errno));
  }
  return SharedMemoryView({static_cast<const std::byte*>(base), size});
}

SharedMemoryView::~SharedMemoryView() {
  if (bytes_.empty()) return;
  ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace millrace
