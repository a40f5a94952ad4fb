// SPDX-License-Identifier: Apache-2.0
// The baselines of a pull, measured on the same machine in the same run: the same bytes moved
// without requests, checksums and pages.
#pragma once

#include <cstddef>
#include <cstdint>

namespace millrace::bench {

// A filled mapping that could be shared with other processes: what a pull on one host reads.
class CopySource {
 public:
  explicit CopySource(int64_t bytes);
  CopySource(const CopySource&) = delete;
  CopySource& operator=(const CopySource&) = delete;
  ~CopySource();

  // Seconds of memcpy to `to`, with this many threads.
  double copy_s(std::byte* to, int threads) const;
  // Seconds of a checksum over it, with this many threads.
  double checksum_s(int threads) const;

 private:
  const int64_t bytes_;
  std::byte* from_ = nullptr;
};

// Seconds to send `bytes` from another process to `to` in this one, over loopback TCP on plain
// sockets, with one thread per socket at either end.
double tcp_s(int64_t bytes, int connections, std::byte* to);

}  // namespace millrace::bench
