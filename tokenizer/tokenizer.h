// SPDX-License-Identifier: Apache-2.0
// The tokenizer of one model: processes that answer one request each at a time, and a queue in
// front of them. If a process dies or does not answer by the deadline, only its request fails. The
// process is replaced, with a pause that grows while no process lives. Thread-safe. The destructor
// fails waiting requests with kUnavailable and joins its threads.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/clock.h"
#include "common/result.h"
#include "tokenizer/frame.h"
#include "tokenizer/tokenizer_process.h"

namespace millrace::tokenizer {

struct TokenizerOptions {
  ProcessOptions process;
  int processes = 2;
  // Requests beyond these are refused with kExhausted.
  int64_t max_waiting = 256;
  Duration first_pause = std::chrono::milliseconds(100);
  Duration longest_pause = std::chrono::seconds(30);
};

struct TokenizerHealth {
  int ready = 0;
  int processes = 0;
  int64_t replaced = 0;    // processes that died or were given up
  std::string last_error;  // of these; "": none
};

// kNext: goes before the waiting texts. For reading a few tokens, which takes no time and whose
// prompt is already done.
enum class Turn { kLast, kNext };

class Tokenizer {
 public:
  // Called on a thread of the tokenizer; must not block.
  using Done = std::function<void(Result<Frame>)>;

  // Returns once one process has loaded the tokenizer. An error says which file and why.
  static Result<std::unique_ptr<Tokenizer>> create(const TokenizerOptions& options);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // `done` is called once, now or later; it is not called if `wanted` is gone before the request's
  // turn. A request whose turn does not come by its deadline is told so when a process becomes
  // free.
  void submit(Frame request, Deadline deadline, std::weak_ptr<const void> wanted, Done done,
              Turn turn = Turn::kLast);
  // The same, but waits for the reply.
  Result<Frame> call(Frame request, Deadline deadline);

  // Token ids are below this.
  int64_t num_ids() const;
  const std::string& library() const;
  const std::string& directory() const;
  // Whether chat_request() is supported.
  bool renders_chats() const;
  TokenizerHealth health() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace::tokenizer
