// SPDX-License-Identifier: Apache-2.0
#include "common/system/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace millrace {

namespace {

constexpr mode_t kMode = 0666;  // minus the user's umask

Error unwritable(const std::string& path) {
  return error(Errc::kIo, "cannot write {}: {}", path.empty() ? "standard output" : path,
               std::generic_category().message(errno));
}

}  // namespace

Result<OutputFile> OutputFile::open(const std::string& path) {
  if (path.empty()) return OutputFile(path, STDOUT_FILENO, /*made=*/false);
  int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kMode);
  const bool made = descriptor >= 0;
  if (!made) descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, kMode);
  if (descriptor < 0) return unwritable(path);
  return OutputFile(path, descriptor, made);
}

OutputFile::~OutputFile() {
  if (descriptor_ < 0 || path_.empty()) return;
  ::close(descriptor_);
  if (made_ && !written_) ::unlink(path_.c_str());
}

Result<void> OutputFile::write(std::string_view text) {
  if (!std::exchange(written_, true) && !path_.empty()) {
    // Anything but a regular file, such as a terminal, cannot be truncated.
    if (::ftruncate(descriptor_, 0) != 0 && errno != EINVAL) return unwritable(path_);
  }
  while (!text.empty()) {
    const ssize_t done = ::write(descriptor_, text.data(), text.size());
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return unwritable(path_);
    text.remove_prefix(static_cast<size_t>(done));
  }
  return {};
}

}  // namespace millrace
