// SPDX-License-Identifier: Apache-2.0
#include "bench/kvclient/copy_baselines.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "common/aligned_buffer.h"
#include "common/check.h"
#include "common/checksum.h"
#include "common/clock.h"

namespace millrace::bench {

namespace {

// The size that one thread moves at a time, like a pull's requests.
constexpr int64_t kPiece = 2 << 20;

double timed(int threads, const std::function<void(int)>& body) {
  const Stopwatch watch;
  std::vector<std::thread> running;
  for (int t = 0; t < threads; ++t) running.emplace_back(body, t);
  for (auto& thread : running) thread.join();
  return watch.elapsed_s();
}

// Calls body(offset, size) for this thread's pieces of `bytes`.
void for_pieces(int64_t bytes, int thread, int threads,
                const std::function<void(int64_t, int64_t)>& body) {
  for (int64_t at = thread * kPiece; at < bytes; at += threads * kPiece) {
    body(at, std::min(kPiece, bytes - at));
  }
}

void send_pieces(int64_t bytes, int connections, int listener) {
  AlignedBuffer from(bytes);
  std::memset(from.as<std::byte>(), 1, static_cast<size_t>(bytes));
  std::vector<int> sockets;
  for (int i = 0; i < connections; ++i) {
    sockets.push_back(::accept(listener, nullptr, nullptr));
    const int on = 1;
    (void)::setsockopt(sockets.back(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  }
  // The sender is ready once each receiver has got a byte. It begins once each receiver has sent
  // one.
  for (const int s : sockets) (void)!::send(s, "r", 1, MSG_NOSIGNAL);
  timed(connections, [&](int t) {
    char go = 0;
    (void)!::read(sockets[static_cast<size_t>(t)], &go, 1);
    for_pieces(bytes, t, connections, [&](int64_t at, int64_t size) {
      while (size > 0) {
        const auto sent = ::send(sockets[static_cast<size_t>(t)], from.as<std::byte>() + at,
                                 static_cast<size_t>(size), MSG_NOSIGNAL);
        if (sent <= 0) ::_exit(1);
        at += sent;
        size -= sent;
      }
    });
  });
}

}  // namespace

CopySource::CopySource(int64_t bytes) : bytes_(bytes) {
  const int fd = ::memfd_create("kv_pull_bench", MFD_CLOEXEC);
  MR_CHECK(fd >= 0 && ::ftruncate(fd, bytes) == 0, "a memfd of {} bytes", bytes);
  void* const mapped =
      ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ::close(fd);
  MR_CHECK(mapped != MAP_FAILED, "mapping {} bytes", bytes);
  from_ = static_cast<std::byte*>(mapped);
  timed(4, [&](int t) {
    for_pieces(bytes, t, 4, [&](int64_t at, int64_t size) {
      std::memset(from_ + at, 1, static_cast<size_t>(size));
    });
  });
}

CopySource::~CopySource() {
  ::munmap(from_, static_cast<size_t>(bytes_));
}

double CopySource::copy_s(std::byte* to, int threads) const {
  return timed(threads, [&](int t) {
    for_pieces(bytes_, t, threads, [&](int64_t at, int64_t size) {
      std::memcpy(to + at, from_ + at, static_cast<size_t>(size));
    });
  });
}

double CopySource::checksum_s(int threads) const {
  std::vector<uint64_t> sums(static_cast<size_t>(threads));
  return timed(threads, [&](int t) {
    for_pieces(bytes_, t, threads, [&](int64_t at, int64_t size) {
      sums[static_cast<size_t>(t)] ^=
          checksum(std::span<const std::byte>(from_ + at, static_cast<size_t>(size)));
    });
  });
}

double tcp_s(int64_t bytes, int connections, std::byte* to) {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  if (::bind(listener, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      ::listen(listener, connections) != 0 ||
      ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    return 0;
  }
  // Otherwise, after the fork, the first write to each page of `to` would copy it.
  MR_CHECK(::madvise(to, static_cast<size_t>(bytes), MADV_DONTFORK) == 0, "madvise of {} bytes",
           bytes);
  const int sender = ::fork();
  if (sender == 0) {
    send_pieces(bytes, connections, listener);
    ::_exit(0);
  }
  std::vector<int> sockets;
  for (int i = 0; i < connections; ++i) {
    const int s = ::socket(AF_INET, SOCK_STREAM, 0);
    (void)!::connect(s, reinterpret_cast<sockaddr*>(&address), sizeof(address));
    sockets.push_back(s);
  }
  for (const int s : sockets) {
    char ready = 0;
    (void)!::read(s, &ready, 1);
  }
  const double elapsed = timed(connections, [&](int t) {
    const int s = sockets[static_cast<size_t>(t)];
    (void)!::write(s, "g", 1);
    for_pieces(bytes, t, connections, [&](int64_t at, int64_t size) {
      while (size > 0) {
        const auto got = ::recv(s, to + at, static_cast<size_t>(size), 0);
        if (got <= 0) return;
        at += got;
        size -= got;
      }
    });
  });
  for (const int s : sockets) ::close(s);
  ::close(listener);
  ::waitpid(sender, nullptr, 0);
  (void)::madvise(to, static_cast<size_t>(bytes), MADV_DOFORK);
  return elapsed;
}

}  // namespace millrace::bench
