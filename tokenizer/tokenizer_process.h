// SPDX-License-Identifier: Apache-2.0
// One process with a tokenizer (millrace_tokenizer.py), which answers one request at a time.
// Whatever a text does to the tokenizer library (a crash, a hang, all memory used) happens in that
// process and ends with kill(). The process ends with its owner: by itself when the socket closes,
// and by the system when the thread that started it is gone. Calls block; used by one thread.
#pragma once

#include <sys/types.h>

#include <string>

#include "common/clock.h"
#include "common/result.h"
#include "common/system/file_descriptor.h"
#include "tokenizer/frame.h"

namespace millrace::tokenizer {

struct ProcessOptions {
  std::string python = "python3";  // a path, or a name to look up in PATH
  std::string directory;           // has tokenizer.json
  bool chat = false;               // also has a chat template, which the process renders
  // Limit of the address space. 16 MiB of text made only of short tokens take 5.6 GiB.
  int64_t memory_bytes = 8ll << 30;
  // Reading the tokenizer.json of a large vocabulary takes seconds on a busy machine.
  Duration start_timeout = std::chrono::seconds(60);
  // A descriptor that becomes readable when the owner no longer waits: kCancelled. -1: none.
  int interrupt = -1;
};

class TokenizerProcess {
 public:
  // Returns once the tokenizer is loaded. An error says which file and why.
  static Result<TokenizerProcess> start(const ProcessOptions& options);
  TokenizerProcess(TokenizerProcess&& other) noexcept;
  TokenizerProcess& operator=(TokenizerProcess&& other) noexcept;
  // Kills the process.
  ~TokenizerProcess();

  // kUnavailable: the process died. kDeadlineExceeded, kCorrupt: it is no longer usable, and the
  // owner drops it.
  Result<Frame> exchange(const Frame& request, Deadline deadline);
  bool alive() const;

  pid_t pid() const { return pid_; }
  // Token ids are below this.
  int64_t num_ids() const { return num_ids_; }
  // "tokenizers 0.23.3"
  const std::string& library() const { return library_; }

 private:
  TokenizerProcess(pid_t pid, FileDescriptor socket, int interrupt)
      : pid_(pid), socket_(std::move(socket)), interrupt_(interrupt) {}
  Result<void> wait_for(short events, Deadline deadline) const;
  Result<void> send(const char* bytes, size_t count, Deadline deadline);
  Result<void> receive(char* bytes, size_t count, Deadline deadline);
  Result<Frame> receive_frame(Deadline deadline);
  Result<void> read_greeting(const ProcessOptions& options);
  // How the process ended, as far as the system knows.
  Error died() const;

  pid_t pid_ = -1;
  FileDescriptor socket_;
  int interrupt_ = -1;
  int64_t num_ids_ = 0;
  std::string library_;
};

}  // namespace millrace::tokenizer
