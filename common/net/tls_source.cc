// SPDX-License-Identifier: Apache-2.0
#include "common/net/tls_source.h"

#include <sys/stat.h>

#include "common/log.h"

namespace millrace {

TlsSource::Stamp TlsSource::stamp_of(const std::string& path) {
  struct stat found {};
  if (path.empty() || ::stat(path.c_str(), &found) != 0) return {};
  return {.device = static_cast<int64_t>(found.st_dev),
          .inode = static_cast<int64_t>(found.st_ino),
          .bytes = found.st_size,
          .seconds = found.st_mtim.tv_sec,
          .nanoseconds = found.st_mtim.tv_nsec};
}

Result<TlsContext> TlsSource::context() {
  const std::lock_guard lock(mutex_);
  // Taken before the files are read, so that files that change meanwhile are read again.
  const std::array stamps{stamp_of(files_.certificate), stamp_of(files_.key), stamp_of(files_.ca)};
  if (made_ && stamps == made_of_) return made_;
  auto made = side_ == Side::kServer ? make_server_tls(files_) : make_client_tls(files_);
  if (made.ok()) {
    made_ = *std::move(made);
  } else if (made_) {
    log::error("the TLS files that were read before go on to be used: {}", made.error().message);
  } else {
    return made.error();
  }
  made_of_ = stamps;
  return made_;
}

}  // namespace millrace
