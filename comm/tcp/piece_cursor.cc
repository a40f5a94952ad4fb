// SPDX-License-Identifier: Apache-2.0
#include "comm/tcp/piece_cursor.h"

#include <limits.h>

#include <algorithm>

namespace millrace::comm {

void PieceCursor::clear() {
  pieces_.clear();
  next_ = 0;
  bytes_left_ = 0;
}

void PieceCursor::add(std::span<const std::byte> piece) {
  add(std::span(const_cast<std::byte*>(piece.data()), piece.size()));
}

void PieceCursor::add(std::span<std::byte> piece) {
  if (piece.empty()) return;
  pieces_.push_back({.iov_base = piece.data(), .iov_len = piece.size()});
  bytes_left_ += piece.size();
}

std::span<iovec> PieceCursor::next(size_t enough_bytes) {
  const auto all = std::span(pieces_).subspan(next_);
  const size_t most = std::min<size_t>(all.size(), IOV_MAX);
  size_t count = 0;
  for (size_t bytes = 0; count < most && bytes < enough_bytes; ++count) bytes += all[count].iov_len;
  return all.first(count);
}

void PieceCursor::advance(size_t num_bytes) {
  bytes_left_ -= num_bytes;
  while (num_bytes > 0) {
    iovec& piece = pieces_[next_];
    if (num_bytes < piece.iov_len) {
      piece.iov_base = static_cast<std::byte*>(piece.iov_base) + num_bytes;
      piece.iov_len -= num_bytes;
      return;
    }
    num_bytes -= piece.iov_len;
    ++next_;
  }
}

}  // namespace millrace::comm
