// Makes memory resident before it is used: the system clears a page when it is touched first, which
// costs more than the copy that then goes there.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <span>
#include <thread>
#include <vector>

namespace millrace {

// On threads of its own, from the first byte to the last, without changing any. A system that
// cannot (Linux before 5.14) or has no memory left leaves the rest to the first touch, with a line in
// the log.
class Prefault {
 public:
  // Is told of a piece that is resident from then on, on the thread that made it so.
  using Then = std::function<void(std::span<std::byte> piece)>;

  // `memory`: mapped and writable, and stays so as long as this. Whole pages of the system. `then` goes
  // when this does.
  Prefault(std::span<std::byte> memory, int num_threads, Then then = {});
  // What is not resident by now stays as it is.
  ~Prefault();
  Prefault(const Prefault&) = delete;
  Prefault& operator=(const Prefault&) = delete;

  // Until all is resident, or left.
  void wait();

 private:
  void run(const std::stop_token& stop);

  std::span<std::byte> memory_;
  Then then_;
  std::atomic<size_t> next_ = 0;  // byte
  std::vector<std::jthread> threads_;
};

}  // namespace millrace
