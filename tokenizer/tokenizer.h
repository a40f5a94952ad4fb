// The tokenizer of one model: processes that answer one request each at a time, and a queue before them.
// A request whose process dies or does not answer by the deadline fails alone; the process is replaced,
// with a pause that grows while no process lives. Thread-safe. The destructor ends what waits with
// kUnavailable and joins.
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
  // Beyond these a request is refused with kExhausted.
  int64_t max_waiting = 256;
  Duration first_pause = std::chrono::milliseconds(100);
  Duration longest_pause = std::chrono::seconds(30);
};

struct TokenizerHealth {
  int ready = 0;
  int processes = 0;
  int64_t replaced = 0;    // processes that died or were given up
  std::string last_error;  // of them; "" : none
};

// Reading a few tokens takes no time, and its prompt is done: it goes before texts.
enum class Turn { kLast, kNext };

class Tokenizer {
 public:
  // Called on a thread of the tokenizer; must not block.
  using Done = std::function<void(Result<Frame>)>;

  // Once one process has loaded the tokenizer. Otherwise says which file and why.
  static Result<std::unique_ptr<Tokenizer>> create(const TokenizerOptions& options);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // `done` is called once, now or later; not at all where `wanted` is gone before the request's turn.
  // A request whose turn does not come by the deadline is told so when a process is free.
  void submit(Frame request, Deadline deadline, std::weak_ptr<const void> wanted, Done done,
              Turn turn = Turn::kLast);
  // The same, waiting for the reply.
  Result<Frame> call(Frame request, Deadline deadline);

  // Token ids are below this.
  int64_t num_ids() const;
  const std::string& library() const;
  const std::string& directory() const;
  // Whether chat_request() has an answer.
  bool renders_chats() const;
  TokenizerHealth health() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace::tokenizer
