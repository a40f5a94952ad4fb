// SPDX-License-Identifier: Apache-2.0
// Where a batch job saves the KV cache of one prompt: one file a rank (worker/batch/kv_files.h),
// then the manifest. A directory with a manifest holds a complete cache, whenever the job ended.
#pragma once

#include <string>
#include <utility>

#include "common/result.h"
#include "worker/batch/kv_files.h"

namespace millrace::worker {

class KvDirectory {
 public:
  explicit KvDirectory(std::string path) : path_(std::move(path)) {}

  std::string rank_file(int rank) const { return path_ + "/" + kv_file_name(rank); }

  // Called by every rank before any rank writes its file. Afterwards the directory exists and has
  // no manifest of an earlier cache, whose files are now overwritten. kIo.
  Result<void> begin() const;
  // Called by one rank, once all files are closed. A reader finds all of the text or none. kIo.
  Result<void> write_manifest(const std::string& text) const;
  // Removes what a failed prompt left.
  void remove() const;
  // Removes what prompts left whose job was killed: in `parent`, directories without a manifest that
  // hold nothing but files of a cache.
  static void remove_unfinished(const std::string& parent);

 private:
  std::string manifest() const { return path_ + "/manifest.json"; }

  std::string path_;
};

}  // namespace millrace::worker
