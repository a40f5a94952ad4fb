// What a pull is measured against on the same machine in the same run: the same bytes moved without
// requests, checksums and pages.
#pragma once

#include <cstddef>
#include <cstdint>

namespace millrace::bench {

// A mapping that other processes could have, filled: what a pull on one host reads.
class CopySource {
 public:
  explicit CopySource(int64_t bytes);
  CopySource(const CopySource&) = delete;
  CopySource& operator=(const CopySource&) = delete;
  ~CopySource();

  // Seconds of memcpy to `to`, by so many threads.
  double copy_s(std::byte* to, int threads) const;
  // Seconds of a checksum over it, by so many threads.
  double checksum_s(int threads) const;

 private:
  const int64_t bytes_;
  std::byte* from_ = nullptr;
};

// Seconds from a process to this one, to `to`, over loopback TCP by plain sockets, one a thread at
// either end.
double tcp_s(int64_t bytes, int connections, std::byte* to);

}  // namespace millrace::bench
