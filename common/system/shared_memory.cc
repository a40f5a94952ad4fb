// SPDX-License-Identifier: Apache-2.0
#include "common/system/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <system_error>

#include "common/units.h"

namespace millrace {

namespace {

std::string reason() {
  return std::generic_category().message(errno);
}

}  // namespace

Result<SharedMemory> SharedMemory::create(int64_t num_bytes) {
  FileDescriptor descriptor(::memfd_create("millrace", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!descriptor.valid()) return error(Errc::kUnsupported, "memfd_create: {}", reason());
  if (::ftruncate(descriptor.get(), num_bytes) != 0) {
    return error(Errc::kExhausted, "shared memory of {}: {}", format_bytes(num_bytes), reason());
  }
  void* const base = ::mmap(nullptr, static_cast<size_t>(num_bytes), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_NORESERVE, descriptor.get(), 0);
  if (base == MAP_FAILED) {
    return error(Errc::kExhausted, "mapping shared memory of {}: {}", format_bytes(num_bytes),
                 reason());
  }
  SharedMemory memory(std::move(descriptor),
                      {static_cast<std::byte*>(base), static_cast<size_t>(num_bytes)});
  // After this, only the mapping above can be written.
  constexpr int kSeals = F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  if (::fcntl(memory.descriptor(), F_ADD_SEALS, kSeals) != 0) {
    return error(Errc::kUnsupported, "sealing shared memory: {}", reason());
  }
  ::madvise(base, static_cast<size_t>(num_bytes), MADV_HUGEPAGE);  // the kernel may refuse
  return memory;
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : descriptor_(std::move(other.descriptor_)), bytes_(std::exchange(other.bytes_, {})) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

SharedMemory::~SharedMemory() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

}  // namespace millrace
