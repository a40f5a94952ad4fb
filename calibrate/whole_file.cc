// SPDX-License-Identifier: Apache-2.0
#include "calibrate/whole_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "common/system/file_descriptor.h"

namespace millrace::calibrate {

namespace {

constexpr mode_t kMode = 0666;  // less what the user's umask takes

Error unwritable(const std::string& path, int error_number) {
  return error(Errc::kIo, "cannot write {}: {}", path,
               std::generic_category().message(error_number));
}

std::string unfinished(const std::string& path) {
  return path + ".tmp";
}

FileDescriptor create(const std::string& path) {
  return FileDescriptor(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, kMode));
}

bool write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t done = ::write(descriptor, text.data(), text.size());
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return false;
    text.remove_prefix(static_cast<size_t>(done));
  }
  return ::fsync(descriptor) == 0;
}

}  // namespace

Result<void> check_writable(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return unwritable(path, EISDIR);
  const auto name = unfinished(path);
  if (!create(name).valid()) return unwritable(path, errno);
  ::unlink(name.c_str());
  return {};
}

Result<void> write_whole(const std::string& path, std::string_view text) {
  const auto name = unfinished(path);
  const auto file = create(name);
  if (!file.valid()) return unwritable(path, errno);
  if (write_all(file.get(), text) && std::rename(name.c_str(), path.c_str()) == 0) return {};
  const int why = errno;
  ::unlink(name.c_str());
  return unwritable(path, why);
}

}  // namespace millrace::calibrate
