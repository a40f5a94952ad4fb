// Where a batch job saves the KV cache of one prompt: a file a rank (worker/batch/kv_files.h), and last
// of all the manifest. A directory that has one holds a whole cache, whenever the job ended.
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

  // By every rank before one of them writes its file: the directory is there, and no manifest of an
  // earlier cache, whose files are written over now. kIo.
  Result<void> begin() const;
  // By one rank, once all files are closed. A reader finds all of the text or none. kIo.
  Result<void> write_manifest(const std::string& text) const;
  // What became of a prompt that failed.
  void remove() const;

 private:
  std::string manifest() const { return path_ + "/manifest.json"; }

  std::string path_;
};

}  // namespace millrace::worker
