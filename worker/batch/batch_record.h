// SPDX-License-Identifier: Apache-2.0
// What a batch job was: its settings and the prompts that it ran, so that a job which goes on with
// its results is known to be the same. A file beside the results; each input line is noted in it
// before its result is written. Rank 0 only; one thread. Errors of the file: kIo.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "common/result.h"
#include "common/system/record_file.h"

namespace millrace::worker {

class BatchRecord {
 public:
  // What results depend on, by name as people know it ("--head-plan").
  using Settings = std::map<std::string, std::string>;

  static std::string path_in(const std::string& directory) { return directory + "/job.record"; }

  // Of a new job; replaces what is there.
  static Result<BatchRecord> begin(const std::string& path, const Settings& settings);
  // Of a job that goes on. kInvalidArgument names the settings that differ. Where there is no
  // record, as of a job of version 0.2.0, that is logged, and nothing is known to differ.
  static Result<BatchRecord> resume(const std::string& path, const Settings& settings);

  // Before the result of the line is written.
  Result<void> note(const std::string& id, std::string_view line);
  // kInvalidArgument if the earlier job had another line under this id.
  Result<void> check(const std::string& id, std::string_view line, int64_t line_number) const;

 private:
  explicit BatchRecord(RecordFile file) : file_(std::move(file)) {}

  RecordFile file_;
  std::map<std::string, uint64_t> lines_;  // checksums, by id
};

}  // namespace millrace::worker
