// SPDX-License-Identifier: Apache-2.0
// The lines of a file, or of a pipe whose writer may take any time: a read returns at its deadline,
// so that the reader can attend to its other duties. No line takes more memory than a limit.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/result.h"

namespace millrace::worker {

struct InputLine {
  int64_t number = 0;     // from 1
  int64_t num_bytes = 0;  // without its newline
  std::string text;       // empty where num_bytes is over the limit
};

class InputLines {
 public:
  static Result<std::unique_ptr<InputLines>> open(const std::string& path, int64_t max_line_bytes);
  ~InputLines();

  // The next line; none if the deadline passes before the line is complete, and none at the end.
  Result<std::optional<InputLine>> next(Deadline deadline);
  // Whether the last line has been returned.
  bool at_end() const { return at_end_; }

 private:
  InputLines(std::string path, int descriptor, int64_t max_line_bytes);
  Result<bool> wait_for_bytes(Deadline deadline);
  Result<void> read_bytes();
  bool take_from_chunk();
  InputLine finish_line();
  Error read_error(int error_number) const;

  const std::string path_;
  const int descriptor_;
  const int64_t max_line_bytes_;
  std::vector<char> chunk_;
  size_t chunk_begin_ = 0;  // where the part begins that belongs to no line yet
  size_t chunk_end_ = 0;
  InputLine line_;  // the part that has been read
  bool no_more_bytes_ = false;
  bool at_end_ = false;
};

}  // namespace millrace::worker
