#include "worker/control/ledger_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>

#include "common/checksum.h"

namespace millrace::worker {

namespace {

constexpr size_t kHeadBytes = sizeof(uint32_t) + sizeof(uint64_t);
constexpr size_t kEntryBytes = sizeof(uint64_t) + sizeof(PageContentKey);

Error failed(const std::string& what, const std::string& path) {
  return error(Errc::kIo, "{} {}: {}", what, path, std::generic_category().message(errno));
}

template <typename T>
void put(std::string& bytes, const T& value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// The caller knows that they are there.
template <typename T>
T take(std::string_view& bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes.remove_prefix(sizeof value);
  return value;
}

uint64_t checksum_of(std::string_view body) {
  return checksum(std::as_bytes(std::span(body)));
}

std::string encode(const LedgerRecord& record) {
  std::string body;
  put(body, static_cast<uint32_t>(record.entries.size()));
  for (const auto& entry : record.entries) {
    put(body, entry.stored_key);
    put(body, entry.page);
  }
  body += record.origins.SerializeAsString();
  std::string bytes;
  put(bytes, static_cast<uint32_t>(body.size()));
  put(bytes, checksum_of(body));
  return bytes + body;
}

// Of a body whose checksum is right; false where it makes no sense all the same.
bool decode(std::string_view body, LedgerRecord& record) {
  if (body.size() < sizeof(uint32_t)) return false;
  const auto num_entries = take<uint32_t>(body);
  if (body.size() / kEntryBytes < num_entries) return false;
  for (uint32_t i = 0; i < num_entries; ++i) {
    const auto key = take<uint64_t>(body);
    record.entries.push_back({.stored_key = key, .page = take<PageContentKey>(body)});
  }
  protocol::CachedPrefixes origins;
  if (!origins.ParseFromArray(body.data(), static_cast<int>(body.size()))) return false;
  record.origins.mutable_origins()->MergeFrom(origins.origins());
  return true;
}

Result<void> write_all(int fd, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return failed("writing", path);
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return {};
}

Result<FileDescriptor> open_file(const std::string& path, int flags) {
  FileDescriptor file(::open(path.c_str(),
                             O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | flags,
                             S_IRUSR | S_IWUSR));
  if (!file.valid()) return failed("opening", path);
  return file;
}

}  // namespace

Result<LedgerFile> LedgerFile::open(const std::string& path) {
  MR_ASSIGN_OR_RETURN(auto file, open_file(path, 0));
  return LedgerFile(path, std::move(file));
}

Result<LedgerRecord> LedgerFile::read() const {
  struct stat status {};
  if (fstat(file_.get(), &status) != 0) return failed("reading", path_);
  LedgerRecord all;
  if (status.st_size > kMaxBytes) return all;
  std::string bytes(static_cast<size_t>(status.st_size), '\0');
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n =
        pread(file_.get(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failed("reading", path_);
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  std::string_view rest(bytes.data(), done);
  while (rest.size() >= kHeadBytes) {
    const auto length = take<uint32_t>(rest);
    const auto sum = take<uint64_t>(rest);
    if (rest.size() < length || checksum_of(rest.substr(0, length)) != sum) break;
    if (!decode(rest.substr(0, length), all)) break;
    rest.remove_prefix(length);
  }
  return all;
}

Result<void> LedgerFile::append(const LedgerRecord& record) {
  const std::string bytes = encode(record);
  bytes_ += std::ssize(bytes);
  return write_all(file_.get(), bytes, path_);
}

Result<void> LedgerFile::replace(const LedgerRecord& record) {
  const std::string beside = path_ + ".new";
  MR_ASSIGN_OR_RETURN(auto file, open_file(beside, O_TRUNC));
  const std::string bytes = encode(record);
  MR_RETURN_IF_ERROR(write_all(file.get(), bytes, beside));
  if (std::rename(beside.c_str(), path_.c_str()) != 0) return failed("renaming", beside);
  file_ = std::move(file);
  bytes_ = std::ssize(bytes);
  return {};
}

}  // namespace millrace::worker
