// SPDX-License-Identifier: Apache-2.0
// How much of a sequence of pieces of memory has been sent or filled.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <limits>
#include <span>
#include <vector>

namespace millrace::comm {

class PieceCursor {
 public:
  void clear();
  void add(std::span<const std::byte> piece);  // to be sent
  void add(std::span<std::byte> piece);        // to be filled

  bool done() const { return next_ == pieces_.size(); }
  size_t bytes_left() const { return bytes_left_; }
  // The next pieces: at most as many as one system call takes, and only as many as reach
  // `enough_bytes`. Valid until advance().
  std::span<iovec> next(size_t enough_bytes = std::numeric_limits<size_t>::max());
  void advance(size_t num_bytes);

 private:
  std::vector<iovec> pieces_;
  size_t next_ = 0;
  size_t bytes_left_ = 0;
};

}  // namespace millrace::comm
