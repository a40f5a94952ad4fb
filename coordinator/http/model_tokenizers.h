// SPDX-License-Identifier: Apache-2.0
// The tokenizers of all models that have one, for coroutines: a waiting request does not hold up
// the others. Everything but create() is called on the thread that runs the coroutines.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "common/metrics/registry.h"
#include "coordinator/http/tokenizer_settings.h"
#include "coordinator/net/awaitable.h"
#include "coordinator/net/notifier.h"
#include "tokenizer/tokenizer.h"

namespace millrace::coordinator {

class ModelTokenizers {
 public:
  explicit ModelTokenizers(metrics::Registry& registry) : registry_(registry) {}

  // Starts them. An error names the file that cannot be used.
  Result<void> create(const TokenizerSettings& settings);

  // Null if the model has no tokenizer.
  tokenizer::Tokenizer* find(const std::string& model) const;
  Duration timeout() const { return timeout_; }

  // The reply of the model's tokenizer, which must exist. `changed` wakes this coroutine; if
  // `gone()` is true then, nobody waits for the reply any more: kCancelled. `deadline`: for
  // waiting. A process gets timeout() to reply and is then given up.
  awaitable<Result<tokenizer::Frame>> ask(const std::string& model, tokenizer::Frame request,
                                          Deadline deadline, Notifier& changed,
                                          std::function<bool()> gone,
                                          tokenizer::Turn turn = tokenizer::Turn::kLast);

  // Logs once if the model's tokenizer has ids beyond those of its groups' vocabulary.
  void compare_vocabulary(const std::string& model, int64_t vocab_size);
  // Records how long a text took and whether it succeeded.
  void observe(const std::string& model, Duration took, bool ok);
  // To be called before the registry is rendered.
  void update_metrics();
  // {"MODEL": {"ready": 2, "processes": 2, "replaced": 0}, ...}; "" if there are no tokenizers.
  std::string health_json() const;

 private:
  struct Entry {
    std::unique_ptr<tokenizer::Tokenizer> tokenizer;
    metrics::Gauge ready;
    metrics::Counter replaced;
    int64_t replaced_counted = 0;
    bool compared = false;
  };

  metrics::Registry& registry_;
  Duration timeout_{};
  std::map<std::string, Entry> entries_;
};

}  // namespace millrace::coordinator
