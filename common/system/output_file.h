// SPDX-License-Identifier: Apache-2.0
// Where a program's result goes. It is opened before the work begins, so that a path that cannot be
// written is reported before anything is asked of others. The first write replaces what the file
// held, so a failure before it leaves the file as it was.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "common/result.h"

namespace millrace {

class OutputFile {
 public:
  // "" : standard output. kIo with the path.
  static Result<OutputFile> open(const std::string& path);

  OutputFile(OutputFile&& other) noexcept
      : path_(std::move(other.path_)),
        descriptor_(std::exchange(other.descriptor_, -1)),
        made_(other.made_),
        written_(other.written_) {}
  OutputFile& operator=(OutputFile&&) = delete;
  // Removes a file that open() created and nobody wrote to.
  ~OutputFile();

  // Appends all of `text` to what was written before.
  Result<void> write(std::string_view text);

 private:
  OutputFile(std::string path, int descriptor, bool made)
      : path_(std::move(path)), descriptor_(descriptor), made_(made) {}

  std::string path_;
  int descriptor_;
  bool made_;
  bool written_ = false;
};

}  // namespace millrace
