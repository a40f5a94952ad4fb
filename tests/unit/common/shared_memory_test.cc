// SPDX-License-Identifier: Apache-2.0
// What another process can do with shared memory, and what it leaves behind.
#include "common/system/shared_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <filesystem>
#include <string>

#include "common/system/shared_memory_view.h"

namespace millrace {
namespace {

constexpr int64_t kBytes = 1 << 20;

FileDescriptor copy_of(const SharedMemory& memory) {
  return FileDescriptor(::fcntl(memory.descriptor(), F_DUPFD_CLOEXEC, 0));
}

TEST(SharedMemory, AViewShowsWhatItsOwnerWritesBeforeAndAfterItIsMapped) {
  const auto memory = *SharedMemory::create(kBytes);
  memory.bytes()[5] = std::byte{1};
  const auto view = *SharedMemoryView::map(copy_of(memory));
  memory.bytes()[kBytes - 1] = std::byte{2};
  ASSERT_EQ(view.bytes().size(), static_cast<size_t>(kBytes));
  EXPECT_EQ(view.bytes()[5], std::byte{1});
  EXPECT_EQ(view.bytes()[kBytes - 1], std::byte{2});
}

TEST(SharedMemory, WhoHasTheDescriptorCanNeitherWriteNorResizeNorPunchHoles) {
  const auto memory = *SharedMemory::create(kBytes);
  memory.bytes()[0] = std::byte{7};
  const auto given = copy_of(memory);
  EXPECT_EQ(::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, given.get(), 0),
            MAP_FAILED);
  void* const read_only = ::mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, given.get(), 0);
  ASSERT_NE(read_only, MAP_FAILED);
  EXPECT_NE(::mprotect(read_only, kBytes, PROT_READ | PROT_WRITE), 0);
  ::munmap(read_only, kBytes);
  EXPECT_LT(::pwrite(given.get(), "x", 1, 0), 0);
  EXPECT_NE(::ftruncate(given.get(), 0), 0);
  EXPECT_NE(::ftruncate(given.get(), 2 * kBytes), 0);
  EXPECT_NE(::fallocate(given.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
  EXPECT_NE(::fcntl(given.get(), F_ADD_SEALS, F_SEAL_WRITE), 0);
  // Opened again for writing, by the owner's user.
  const FileDescriptor again(
      ::open(("/proc/self/fd/" + std::to_string(given.get())).c_str(), O_RDWR | O_CLOEXEC));
  if (again.valid()) {
    EXPECT_LT(::pwrite(again.get(), "x", 1, 0), 0);
    EXPECT_EQ(::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, again.get(), 0),
              MAP_FAILED);
  }
  EXPECT_EQ(memory.bytes()[0], std::byte{7});
}

TEST(SharedMemory, WhatCouldBeCutShortIsNotMapped) {
  FileDescriptor plain(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(plain.get(), kBytes), 0);
  EXPECT_EQ(SharedMemoryView::map(plain).error().code, Errc::kInvalidArgument);
  const FileDescriptor file(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(SharedMemoryView::map(file).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(SharedMemoryView::map(FileDescriptor()).error().code, Errc::kInvalidArgument);
}

TEST(SharedMemory, AViewOutlivesAnOwnerThatIsKilled) {
  int sockets[2];
  ASSERT_EQ(::pipe(sockets), 0);
  auto memory = *SharedMemory::create(kBytes);
  const auto given = copy_of(memory);
  const pid_t owner = ::fork();
  if (owner == 0) {
    memory.bytes()[9] = std::byte{9};
    (void)!::write(sockets[1], "x", 1);
    while (true) ::pause();
  }
  const auto view = *SharedMemoryView::map(given);
  { const auto gone = std::move(memory); }  // this process' own mapping for writing
  char told = 0;
  ASSERT_EQ(::read(sockets[0], &told, 1), 1);
  ::kill(owner, SIGKILL);
  ::waitpid(owner, nullptr, 0);
  EXPECT_EQ(view.bytes()[9], std::byte{9});
  EXPECT_EQ(view.bytes()[kBytes - 1], std::byte{0});
  ::close(sockets[0]);
  ::close(sockets[1]);
}

// No file system shows it: nothing is left for anyone to remove.
TEST(SharedMemory, HasNoNameInDevShm) {
  const auto count = [] {
    std::error_code none;
    int64_t files = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", none)) {
      files += entry.path().string().find("millrace") != std::string::npos;
    }
    return files;
  };
  const int64_t before = count();
  const auto memory = *SharedMemory::create(kBytes);
  EXPECT_EQ(count(), before);
  const auto link = "/proc/self/fd/" + std::to_string(memory.descriptor());
  EXPECT_EQ(std::filesystem::read_symlink(link).string(), "/memfd:millrace (deleted)");
}

}  // namespace
}  // namespace millrace
