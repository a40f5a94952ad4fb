// SPDX-License-Identifier: Apache-2.0
// The TLS context for the current contents of some files: read once, and again when one of them has
// changed. If the files can no longer be used, the previous context stays, with a line in the log.
// Thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>

#include "common/net/tls_context.h"
#include "common/net/tls_files.h"
#include "common/result.h"

namespace millrace {

class TlsSource {
 public:
  enum class Side { kServer, kClient };
  TlsSource(TlsFiles files, Side side) : files_(std::move(files)), side_(side) {}

  // An error only if there was no context before.
  Result<TlsContext> context();

 private:
  struct Stamp {
    int64_t device = 0, inode = 0, bytes = 0, seconds = 0, nanoseconds = 0;
    bool operator==(const Stamp&) const = default;
  };
  static Stamp stamp_of(const std::string& path);

  const TlsFiles files_;
  const Side side_;
  std::mutex mutex_;
  TlsContext made_;
  std::array<Stamp, 3> made_of_;
};

}  // namespace millrace
