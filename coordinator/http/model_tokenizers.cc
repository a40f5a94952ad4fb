// SPDX-License-Identifier: Apache-2.0
#include "coordinator/http/model_tokenizers.h"

#include <boost/asio/post.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/json.hpp>
#include <optional>
#include <utility>

#include "common/log.h"

namespace millrace::coordinator {

namespace json = boost::json;

namespace {

// A wait for a reply: as long as it is held, somebody still waits.
struct Pending {
  explicit Pending(Notifier& notifier) : changed(notifier) {}

  Notifier& changed;
  std::optional<Result<tokenizer::Frame>> reply;
};

}  // namespace

Result<void> ModelTokenizers::create(const TokenizerSettings& settings) {
  timeout_ = settings.timeout;
  for (const auto& [model, directory] : settings.directories) {
    tokenizer::TokenizerOptions options;
    options.process.python = settings.python;
    options.process.directory = directory;
    options.process.chat = settings.chat;
    options.processes = settings.processes;
    auto created = tokenizer::Tokenizer::create(options);
    if (!created.ok()) {
      return error(created.error().code, "--tokenizer {}={}: {}", model, directory,
                   created.error().message);
    }
    log::info("model '{}': {} of {}, {} token ids", model, (*created)->library(), directory,
              (*created)->num_ids());
    const metrics::Labels labels{{"model", model}};
    entries_.emplace(
        model, Entry{std::move(created).value(),
                     registry_.gauge("millrace_tokenizer_ready_processes",
                                     "Processes that can turn text into token ids", labels),
                     registry_.counter("millrace_tokenizer_replaced_total",
                                       "Tokenizer processes that died or did not answer", labels)});
  }
  return {};
}

tokenizer::Tokenizer* ModelTokenizers::find(const std::string& model) const {
  const auto found = entries_.find(model);
  return found == entries_.end() ? nullptr : found->second.tokenizer.get();
}

awaitable<Result<tokenizer::Frame>> ModelTokenizers::ask(const std::string& model,
                                                         tokenizer::Frame request,
                                                         Deadline deadline, Notifier& changed,
                                                         std::function<bool()> gone,
                                                         tokenizer::Turn turn) {
  const auto pending = std::make_shared<Pending>(changed);
  const auto executor = co_await asio::this_coro::executor;
  // The client does not decide how long a process may take: its deadline may be a millisecond.
  const Deadline process_deadline = Deadline::after(timeout_).later_of(deadline);
  find(model)->submit(
      std::move(request), process_deadline, pending,
      [executor, waiter = std::weak_ptr<Pending>(pending)](Result<tokenizer::Frame> reply) {
        asio::post(executor, [waiter, reply = std::move(reply)]() mutable {
          const auto waiting = waiter.lock();
          if (!waiting) return;
          waiting->reply = std::move(reply);
          waiting->changed.notify();
        });
      },
      turn);
  // A process that does not answer is given up at the deadline, which is reported a moment later.
  const Deadline patience = Deadline::at(deadline.when() + std::chrono::milliseconds(500));
  while (!pending->reply && !gone()) {
    if (co_await changed.wait(patience)) continue;
    if (patience.passed()) break;
  }
  if (pending->reply) co_return *std::move(pending->reply);
  if (gone()) co_return Error(Errc::kCancelled, "the client disconnected");
  co_return Error(Errc::kDeadlineExceeded, "the tokenizer did not answer by the deadline");
}

void ModelTokenizers::compare_vocabulary(const std::string& model, int64_t vocab_size) {
  Entry& entry = entries_.at(model);
  if (std::exchange(entry.compared, true)) return;
  if (entry.tokenizer->num_ids() <= vocab_size) return;
  log::warn(
      "model '{}': {} has {} token ids, its groups' vocabulary {}: prompts with the others are "
      "refused; if there are many, --tokenizer names the folder of another model",
      model, entry.tokenizer->directory(), entry.tokenizer->num_ids(), vocab_size);
}

void ModelTokenizers::observe(const std::string& model, Duration took, bool ok) {
  registry_
      .histogram("millrace_tokenize_seconds",
                 "Time to turn a prompt's text into token ids, waiting included",
                 metrics::exponential_buckets(0.001, 2, 16),
                 {{"model", model}, {"outcome", ok ? "done" : "failed"}})
      .observe(seconds(took));
}

void ModelTokenizers::update_metrics() {
  for (auto& [model, entry] : entries_) {
    const auto health = entry.tokenizer->health();
    entry.ready.set(health.ready);
    entry.replaced.add(static_cast<double>(health.replaced -
                                           std::exchange(entry.replaced_counted, health.replaced)));
  }
}

std::string ModelTokenizers::health_json() const {
  if (entries_.empty()) return {};
  json::object all;
  for (const auto& [model, entry] : entries_) {
    const auto health = entry.tokenizer->health();
    all[model] = {
        {"ready", health.ready}, {"processes", health.processes}, {"replaced", health.replaced}};
  }
  return json::serialize(all);
}

}  // namespace millrace::coordinator
