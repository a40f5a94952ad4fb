// SPDX-License-Identifier: Apache-2.0
#include "worker/batch/input_lines.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

namespace millrace::worker {

namespace {

constexpr size_t kChunkBytes = size_t{1} << 20;
constexpr std::chrono::milliseconds kLongestPoll{60'000};  // poll() counts in an int

}  // namespace

// Without O_NONBLOCK, opening a pipe would wait for a writer.
Result<std::unique_ptr<InputLines>> InputLines::open(const std::string& path,
                                                     int64_t max_line_bytes) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0) {
    return error(Errc::kIo, "{}: open: {}", path, std::generic_category().message(errno));
  }
  return std::unique_ptr<InputLines>(new InputLines(path, descriptor, max_line_bytes));
}

InputLines::InputLines(std::string path, int descriptor, int64_t max_line_bytes)
    : path_(std::move(path)),
      descriptor_(descriptor),
      max_line_bytes_(max_line_bytes),
      chunk_(kChunkBytes),
      line_{.number = 1} {}

InputLines::~InputLines() {
  close(descriptor_);
}

Result<std::optional<InputLine>> InputLines::next(Deadline deadline) {
  while (!take_from_chunk()) {
    if (no_more_bytes_) {
      at_end_ = true;
      if (line_.num_bytes == 0) return std::optional<InputLine>();
      break;  // the last line needs no newline
    }
    MR_ASSIGN_OR_RETURN(const bool readable, wait_for_bytes(deadline));
    if (!readable) return std::optional<InputLine>();
    MR_RETURN_IF_ERROR(read_bytes());
  }
  return std::optional(finish_line());
}

// Moves the chunk's part of the line; returns whether the line is complete.
bool InputLines::take_from_chunk() {
  const auto begin = chunk_.begin() + static_cast<ptrdiff_t>(chunk_begin_);
  const auto end = chunk_.begin() + static_cast<ptrdiff_t>(chunk_end_);
  const auto newline = std::find(begin, end, '\n');
  line_.num_bytes += newline - begin;
  if (line_.num_bytes <= max_line_bytes_) {
    line_.text.append(begin, newline);
  } else {
    line_.text = std::string();
  }
  const bool whole = newline != end;
  chunk_begin_ = static_cast<size_t>(newline - chunk_.begin()) + (whole ? 1 : 0);
  return whole;
}

InputLine InputLines::finish_line() {
  const int64_t next_number = line_.number + 1;
  return std::exchange(line_, InputLine{.number = next_number});
}

// A file always has bytes or an end, but a line of many chunks must not miss the deadline.
Result<bool> InputLines::wait_for_bytes(Deadline deadline) {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.left());
    pollfd bytes{.fd = descriptor_, .events = POLLIN, .revents = 0};
    const int num_ready = poll(&bytes, 1, static_cast<int>(std::min(left, kLongestPoll).count()));
    if (num_ready > 0) return !deadline.passed();
    if (num_ready < 0 && errno != EINTR) return read_error(errno);
    if (deadline.passed()) return false;
  }
}

Result<void> InputLines::read_bytes() {
  const ssize_t num_bytes = read(descriptor_, chunk_.data(), chunk_.size());
  if (num_bytes < 0 && errno != EAGAIN && errno != EINTR) return read_error(errno);
  chunk_begin_ = 0;
  chunk_end_ = static_cast<size_t>(std::max<ssize_t>(num_bytes, 0));
  no_more_bytes_ = num_bytes == 0;
  return {};
}

Error InputLines::read_error(int error_number) const {
  return error(Errc::kIo, "{}: read, line {}: {}", path_, line_.number,
               std::generic_category().message(error_number));
}

}  // namespace millrace::worker
