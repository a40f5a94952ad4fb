// SPDX-License-Identifier: Apache-2.0
// A test program that serves a cache and announces it with a line of its output, "manifest JSON".
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "common/system/file_descriptor.h"
#include "kvclient/manifest/manifest.h"

namespace millrace::test {

// Runs until it is killed, which the destructor does. It also ends when its input closes.
class RankProcess {
 public:
  // `command`: the program and its arguments. Returns once it serves; anything else is a bug.
  explicit RankProcess(std::vector<std::string> command);
  ~RankProcess() { kill(); }
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  const kvclient::Manifest& manifest() const { return manifest_; }
  // Kills it and waits until it is gone.
  void kill();
  // Its peak memory since reset_peak().
  int64_t peak_bytes() const;
  void reset_peak() const;

 private:
  void read_manifest(const FileDescriptor& output);

  kvclient::Manifest manifest_;
  pid_t pid_ = -1;
  FileDescriptor input_;
};

std::string text_of_file(const std::string& path);

}  // namespace millrace::test
