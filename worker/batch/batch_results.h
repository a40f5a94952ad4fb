// SPDX-License-Identifier: Apache-2.0
// results.jsonl of a batch job. An earlier job's results are never lost: the job is refused, or
// resumed.
#pragma once

#include <cstdint>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "common/result.h"

namespace millrace::worker {

struct BatchResultsOptions {
  std::string directory;  // made when it is not there
  bool resume = false;
};

class BatchResults {
 public:
  // kInvalidArgument when the file has results and the job does not resume. With `resume`, new
  // lines are appended to the old ones; a last line that an earlier job did not finish is cut off.
  static Result<BatchResults> open(const BatchResultsOptions& options);
  static std::string path_in(const std::string& directory) { return directory + "/results.jsonl"; }

  // Whether a line of an earlier job says that this prompt succeeded.
  bool has(const std::string& id) const { return done_.contains(id); }
  // Whether an earlier job had a prompt of this id, whatever became of it.
  bool knows(const std::string& id) const { return has(id) || failed_.contains(id); }
  int64_t num_done() const { return std::ssize(done_); }
  int64_t num_earlier() const { return std::ssize(done_) + std::ssize(failed_); }
  // Appends whole lines. `line_number`: the line of the input, for the error.
  Result<void> append(const std::string& lines, int64_t line_number);

 private:
  explicit BatchResults(std::string path) : path_(std::move(path)) {}
  Result<void> read_earlier();

  std::string path_;
  std::ofstream file_;
  std::set<std::string> done_, failed_;  // ids
};

}  // namespace millrace::worker
