// What a pull is measured against on the same machine in the same run: the same bytes moved without
// requests, checksums and pages.
#pragma once

#include <cstdint>

namespace millrace::bench {

// Seconds of memcpy from memory to memory, by so many threads.
double copy_s(int64_t bytes, int threads);
// Seconds of a checksum over memory, by so many threads.
double checksum_s(int64_t bytes, int threads);
// Seconds from a process to this one over loopback TCP by plain sockets, one a thread at either end.
double tcp_s(int64_t bytes, int connections);

}  // namespace millrace::bench
