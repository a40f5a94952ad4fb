#include "bench/kvclient/copy_baselines.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "common/aligned_buffer.h"
#include "common/checksum.h"
#include "common/clock.h"

namespace millrace::bench {

namespace {

// As a pull's requests: what one thread moves at a time.
constexpr int64_t kPiece = 2 << 20;

double timed(int threads, const std::function<void(int)>& body) {
  const Stopwatch watch;
  std::vector<std::thread> running;
  for (int t = 0; t < threads; ++t) running.emplace_back(body, t);
  for (auto& thread : running) thread.join();
  return watch.elapsed_s();
}

// body(offset, size) over the pieces of `bytes` that are a thread's.
void for_pieces(int64_t bytes, int thread, int threads,
                const std::function<void(int64_t, int64_t)>& body) {
  for (int64_t at = thread * kPiece; at < bytes; at += threads * kPiece) {
    body(at, std::min(kPiece, bytes - at));
  }
}

void send_pieces(int64_t bytes, int connections, int listener) {
  std::vector<int> sockets;
  for (int i = 0; i < connections; ++i) sockets.push_back(::accept(listener, nullptr, nullptr));
  AlignedBuffer from(bytes);
  std::memset(from.as<std::byte>(), 1, static_cast<size_t>(bytes));
  // One byte from each receiver begins it.
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

double copy_s(int64_t bytes, int threads) {
  AlignedBuffer from(bytes), to(bytes);
  std::memset(from.as<std::byte>(), 1, static_cast<size_t>(bytes));
  std::memset(to.as<std::byte>(), 2, static_cast<size_t>(bytes));
  return timed(threads, [&](int t) {
    for_pieces(bytes, t, threads, [&](int64_t at, int64_t size) {
      std::memcpy(to.as<std::byte>() + at, from.as<std::byte>() + at, static_cast<size_t>(size));
    });
  });
}

double checksum_s(int64_t bytes, int threads) {
  AlignedBuffer from(bytes);
  std::memset(from.as<std::byte>(), 1, static_cast<size_t>(bytes));
  std::vector<uint64_t> sums(static_cast<size_t>(threads));
  return timed(threads, [&](int t) {
    for_pieces(bytes, t, threads, [&](int64_t at, int64_t size) {
      sums[static_cast<size_t>(t)] ^= checksum(
          std::span<const std::byte>(from.as<std::byte>() + at, static_cast<size_t>(size)));
    });
  });
}

double tcp_s(int64_t bytes, int connections) {
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
  const int sender = ::fork();
  if (sender == 0) {
    send_pieces(bytes, connections, listener);
    ::_exit(0);
  }
  AlignedBuffer to(bytes);
  std::memset(to.as<std::byte>(), 2, static_cast<size_t>(bytes));
  std::vector<int> sockets;
  for (int i = 0; i < connections; ++i) {
    const int s = ::socket(AF_INET, SOCK_STREAM, 0);
    (void)!::connect(s, reinterpret_cast<sockaddr*>(&address), sizeof(address));
    sockets.push_back(s);
  }
  const double elapsed = timed(connections, [&](int t) {
    const int s = sockets[static_cast<size_t>(t)];
    (void)!::write(s, "g", 1);
    for_pieces(bytes, t, connections, [&](int64_t at, int64_t size) {
      while (size > 0) {
        const auto got = ::recv(s, to.as<std::byte>() + at, static_cast<size_t>(size), 0);
        if (got <= 0) return;
        at += got;
        size -= got;
      }
    });
  });
  for (const int s : sockets) ::close(s);
  ::close(listener);
  ::waitpid(sender, nullptr, 0);
  return elapsed;
}

}  // namespace millrace::bench
