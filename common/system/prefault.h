// SPDX-License-Identifier: Apache-2.0
// Makes memory resident before it is used: the system clears a page when it is first touched, which
// costs more than the copy that then goes there.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <span>
#include <thread>
#include <vector>

namespace millrace {

// Runs on threads of its own, from the first byte to the last, without changing any. If the system
// cannot do it (Linux before 5.14) or has no memory left, the rest becomes resident when first
// touched, with a line in the log.
class Prefault {
 public:
  // Told of each piece once it is resident, on the thread that made it so.
  using Then = std::function<void(std::span<std::byte> piece)>;

  // `memory`: mapped and writable while this object lives; whole pages of the system. `then` is
  // destroyed with this object.
  Prefault(std::span<std::byte> memory, int num_threads, Then then = {});
  // Stops; memory that is not resident by now stays as it is.
  ~Prefault();
  Prefault(const Prefault&) = delete;
  Prefault& operator=(const Prefault&) = delete;

  // Waits until all is resident, or it has given up.
  void wait();

 private:
  void run(const std::stop_token& stop);

  std::span<std::byte> memory_;
  Then then_;
  std::atomic<size_t> next_ = 0;  // byte
  std::vector<std::jthread> threads_;
};

}  // namespace millrace
