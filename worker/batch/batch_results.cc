// SPDX-License-Identifier: Apache-2.0
#include "worker/batch/batch_results.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "common/log.h"
#include "worker/batch/batch_prompt.h"

namespace millrace::worker {

namespace fs = std::filesystem;

namespace {

// A device or a pipe has no results of an earlier job.
bool has_content(const std::string& path) {
  std::error_code status;
  return fs::is_regular_file(path, status) && fs::file_size(path, status) > 0;
}

}  // namespace

Result<BatchResults> BatchResults::open(const BatchResultsOptions& options) {
  std::error_code status;
  fs::create_directories(options.directory, status);
  if (status) return error(Errc::kIo, "making {}: {}", options.directory, status.message());
  BatchResults results(path_in(options.directory));
  if (has_content(results.path_)) {
    if (!options.resume) {
      return error(
          Errc::kInvalidArgument,
          "{} has results of an earlier job; use another --output, or --resume to continue it",
          results.path_);
    }
    MR_RETURN_IF_ERROR(results.read_earlier());
  }
  results.file_.open(results.path_, std::ios::binary | std::ios::app);
  if (!results.file_) return error(Errc::kIo, "{}: open: {}", results.path_, std::strerror(errno));
  return results;
}

Result<void> BatchResults::read_earlier() {
  std::ifstream file(path_, std::ios::binary);
  uintmax_t whole_bytes = 0;
  for (std::string line; std::getline(file, line);) {
    if (file.eof()) break;  // no newline: the job ended in the middle of the line
    whole_bytes += line.size() + 1;
    auto earlier = read_result_line(line);
    (earlier.ok ? done_ : failed_).insert(std::move(earlier.id));
  }
  if (!file.eof()) return error(Errc::kIo, "{}: read: {}", path_, std::strerror(errno));
  std::error_code status;
  const auto size = fs::file_size(path_, status);
  if (!status && size > whole_bytes) {
    log::warn("{}: removing the last {} bytes, an incomplete line", path_, size - whole_bytes);
    fs::resize_file(path_, whole_bytes, status);
  }
  if (status) {
    return error(Errc::kIo, "{}: truncating to {} bytes: {}", path_, whole_bytes, status.message());
  }
  return {};
}

Result<void> BatchResults::append(const std::string& lines, int64_t line_number) {
  file_ << lines;
  file_.flush();
  if (file_) return {};
  return error(Errc::kIo, "{}: write of line {}: {}", path_, line_number, std::strerror(errno));
}

}  // namespace millrace::worker
