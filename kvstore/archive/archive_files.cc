// SPDX-License-Identifier: Apache-2.0
#include "kvstore/archive/archive_files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <thread>

#include "common/check.h"
#include "common/checksum.h"
#include "common/log.h"
#include "common/units.h"

namespace millrace::kvstore {

namespace {

constexpr std::string_view kMagic = "MRPREFIX";
constexpr size_t kVersionAt = 8;
constexpr size_t kLengthAt = 12;
constexpr size_t kChecksumAt = 16;
constexpr size_t kIdentityAt = 24;
constexpr std::chrono::milliseconds kLockPoll{50};

static_assert(kIdentityAt + ArchiveFiles::kMaxIdentity <= ArchiveFiles::kHeaderBytes);

std::string errno_text(int code) {
  return fmt::format("{} (errno {})", std::generic_category().message(code), code);
}

using Header = std::array<std::byte, ArchiveFiles::kHeaderBytes>;

Header make_header(const std::string& identity) {
  Header header{};
  const auto length = static_cast<uint32_t>(identity.size());
  std::memcpy(header.data(), kMagic.data(), kMagic.size());
  std::memcpy(&header[kVersionAt], &kArchiveVersion, sizeof kArchiveVersion);
  std::memcpy(&header[kLengthAt], &length, sizeof length);
  std::memcpy(&header[kIdentityAt], identity.data(), identity.size());
  const uint64_t sum = checksum(header);  // computed with zeros in its own place
  std::memcpy(&header[kChecksumAt], &sum, sizeof sum);
  return header;
}

template <typename T>
T get(const Header& header, size_t at) {
  T value;
  std::memcpy(&value, &header[at], sizeof value);
  return value;
}

// "" for a valid header of this identity; else what is wrong with it.
std::string fault_of(Header header, const std::string& identity) {
  if (std::memcmp(header.data(), kMagic.data(), kMagic.size()) != 0) return "it is no such file";
  const auto version = get<uint32_t>(header, kVersionAt);
  if (version != kArchiveVersion) {
    return fmt::format("its format is version {}, not {}", version, kArchiveVersion);
  }
  const auto sum = get<uint64_t>(header, kChecksumAt);
  std::memset(&header[kChecksumAt], 0, sizeof sum);
  const auto length = get<uint32_t>(header, kLengthAt);
  if (length > ArchiveFiles::kMaxIdentity || checksum(header) != sum)
    return "its header is damaged";
  const std::string found(reinterpret_cast<const char*>(&header[kIdentityAt]), length);
  return found == identity ? "" : fmt::format("it is of {}, not of {}", found, identity);
}

// Reads fewer bytes than asked for only at the end of the file.
Result<size_t> read_at(int fd, int64_t offset, std::span<std::byte> bytes,
                       const std::string& path) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = pread(fd, bytes.data() + done, bytes.size() - done,
                            static_cast<off_t>(offset + static_cast<int64_t>(done)));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return error(Errc::kIo, "reading {}: {}", path, errno_text(errno));
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  return done;
}

Result<void> write_at(int fd, int64_t offset, std::span<const std::byte> bytes,
                      const std::string& path) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = pwrite(fd, bytes.data() + done, bytes.size() - done,
                             static_cast<off_t>(offset + static_cast<int64_t>(done)));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return error(Errc::kIo, "writing {}: {}", path, errno_text(n < 0 ? errno : ENOSPC));
    done += static_cast<size_t>(n);
  }
  return {};
}

Result<int64_t> size_of(int fd, const std::string& path) {
  struct stat file {};
  if (fstat(fd, &file) != 0) return error(Errc::kIo, "{}: {}", path, errno_text(errno));
  return file.st_size;
}

Result<void> truncate(int fd, int64_t bytes, const std::string& path) {
  if (ftruncate(fd, static_cast<off_t>(bytes)) == 0) return {};
  return error(Errc::kIo, "truncating {} to {}: {}", path, format_bytes(bytes), errno_text(errno));
}

}  // namespace

Result<ArchiveFiles> ArchiveFiles::open(const Options& options) {
  MR_CHECK(options.identity.size() <= kMaxIdentity, "an identity of {} bytes",
           options.identity.size());
  ArchiveFiles files(options);
  std::error_code status;
  std::filesystem::create_directories(options.directory, status);
  if (status) return error(Errc::kIo, "{}: {}", options.directory, status.message());
  MR_ASSIGN_OR_RETURN(files.index_, files.open_file("index"));
  MR_RETURN_IF_ERROR(files.lock());
  MR_ASSIGN_OR_RETURN(files.slots_, files.open_file("slots"));
  MR_ASSIGN_OR_RETURN(const auto fault, files.header_fault());
  if (!fault || !fault->empty()) {
    if (fault) log::warn("{} is emptied: {}", files.path("index"), *fault);
    MR_RETURN_IF_ERROR(files.begin_anew());
    return files;
  }
  MR_RETURN_IF_ERROR(files.find_slots());
  MR_RETURN_IF_ERROR(files.find_records());
  return files;
}

std::string ArchiveFiles::path(const std::string& suffix) const {
  return fmt::format("{}/{}.{}", options_.directory, options_.name, suffix);
}

// Prompts can be reconstructed from K and V, so nobody else may read the file.
Result<FileDescriptor> ArchiveFiles::open_file(const std::string& suffix) const {
  const auto name = path(suffix);
  FileDescriptor file(::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK,
                             S_IRUSR | S_IWUSR));
  if (!file.valid()) return error(Errc::kIo, "{}: {}", name, errno_text(errno));
  struct stat status {};
  if (fstat(file.get(), &status) != 0) return error(Errc::kIo, "{}: {}", name, errno_text(errno));
  if (!S_ISREG(status.st_mode)) return error(Errc::kDenied, "{} is not a file", name);
  if (status.st_uid != geteuid()) {
    return error(Errc::kDenied, "{} belongs to user {}, not to {}", name, status.st_uid, geteuid());
  }
  return file;
}

Result<void> ArchiveFiles::lock() const {
  const auto deadline = Deadline::after(options_.lock_patience);
  while (flock(index_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) {
      return error(Errc::kIo, "locking {}: {}", path("index"), errno_text(errno));
    }
    if (deadline.passed()) {
      return error(Errc::kUnavailable, "another process has {}", path("index"));
    }
    std::this_thread::sleep_for(kLockPoll);
  }
  return {};
}

Result<std::optional<std::string>> ArchiveFiles::header_fault() const {
  Header header{};
  MR_ASSIGN_OR_RETURN(const size_t bytes, read_at(index_.get(), 0, header, path("index")));
  if (bytes == 0) return std::optional<std::string>();
  if (bytes < header.size()) return std::optional<std::string>("its header is cut off");
  return std::optional<std::string>(fault_of(header, options_.identity));
}

// If the process dies in between, the index has no header, which is treated as a missing index.
Result<void> ArchiveFiles::begin_anew() {
  MR_RETURN_IF_ERROR(truncate(index_.get(), 0, path("index")));
  MR_RETURN_IF_ERROR(truncate(slots_.get(), 0, path("slots")));
  return write_at(index_.get(), 0, make_header(options_.identity), path("index"));
}

Result<void> ArchiveFiles::find_slots() {
  MR_ASSIGN_OR_RETURN(const int64_t bytes, size_of(slots_.get(), path("slots")));
  num_slots_ = std::min(bytes / options_.slot_bytes, options_.max_slots);
  if (bytes == num_slots_ * options_.slot_bytes) return {};
  return truncate(slots_.get(), num_slots_ * options_.slot_bytes, path("slots"));
}

Result<void> ArchiveFiles::find_records() {
  std::vector<std::byte> records(static_cast<size_t>(num_slots_ * kArchiveRecordBytes));
  MR_ASSIGN_OR_RETURN(const size_t bytes,
                      read_at(index_.get(), kHeaderBytes, records, path("index")));
  const int64_t num_whole = static_cast<int64_t>(bytes) / kArchiveRecordBytes;
  for (int64_t slot = 0; slot < num_whole; ++slot) {
    const auto at = std::span(records).subspan(static_cast<size_t>(slot * kArchiveRecordBytes),
                                               static_cast<size_t>(kArchiveRecordBytes));
    if (const auto record = ArchiveRecord::decode(at, slot)) found_.push_back({slot, *record});
  }
  return {};
}

// posix_fallocate allocates the blocks, so a full disk shows here and not in the middle of a
// column.
Result<void> ArchiveFiles::add_slot() {
  const int64_t old_bytes = num_slots_ * options_.slot_bytes;
  int code = 0;
  do {
    code = posix_fallocate(slots_.get(), old_bytes, options_.slot_bytes);
  } while (code == EINTR);
  if (code == 0) {
    ++num_slots_;
    return {};
  }
  // The failed call may have allocated part of the room.
  const auto restored = truncate(slots_.get(), old_bytes, path("slots"));
  if (!restored.ok()) log::debug("{}", restored.error().to_string());
  return error(Errc::kIo, "growing {} from {} by {}: {}", path("slots"), format_bytes(old_bytes),
               format_bytes(options_.slot_bytes), errno_text(code));
}

Result<void> ArchiveFiles::write(int64_t slot, int64_t offset, std::span<const std::byte> bytes) {
  return write_at(slots_.get(), slot * options_.slot_bytes + offset, bytes, path("slots"));
}

Result<void> ArchiveFiles::read(int64_t slot, int64_t offset, std::span<std::byte> bytes) const {
  MR_ASSIGN_OR_RETURN(const size_t done, read_at(slots_.get(), slot * options_.slot_bytes + offset,
                                                 bytes, path("slots")));
  if (done == bytes.size()) return {};
  return error(Errc::kCorrupt, "{} ends in slot {}", path("slots"), slot);
}

Result<void> ArchiveFiles::write_record(int64_t slot, const ArchiveRecord& record) {
  return write_at(index_.get(), kHeaderBytes + slot * kArchiveRecordBytes, record.encode(slot),
                  path("index"));
}

Result<void> ArchiveFiles::clear_record(int64_t slot) {
  return write_at(index_.get(), kHeaderBytes + slot * kArchiveRecordBytes, ArchiveRecordBytes{},
                  path("index"));
}

}  // namespace millrace::kvstore
