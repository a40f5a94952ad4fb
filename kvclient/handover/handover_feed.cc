// SPDX-License-Identifier: Apache-2.0
#include "kvclient/handover/handover_feed.h"

#include <algorithm>
#include <boost/json.hpp>
#include <condition_variable>
#include <mutex>
#include <vector>

#include "protocol/sse_parser.h"

namespace millrace::kvclient {

namespace json = boost::json;

namespace {

Result<json::object> parse_object(const std::string& data) {
  boost::system::error_code status;
  auto value = json::parse(data, status);
  if (status || !value.is_object()) {
    return error(Errc::kCorrupt, "'{:.80}' is not a JSON object", data);
  }
  return std::move(value.as_object());
}

std::string text_of(const json::object& object, std::string_view field) {
  const auto* value = object.if_contains(field);
  const auto* text = value == nullptr ? nullptr : value->if_string();
  return text == nullptr ? std::string() : std::string(*text);
}

// Reads errors as the coordinator's ApiError writes them.
Error error_of(const json::object& body) {
  const auto* inner = body.if_contains("error");
  const auto* object = inner == nullptr ? nullptr : inner->if_object();
  if (object == nullptr) return Error(Errc::kInternal, "an error without a reason");
  const std::string type = text_of(*object, "type");
  auto code = Errc::kInternal;
  for (int wire = 1; wire <= static_cast<int>(Errc::kDenied); ++wire) {
    if (errc_name(static_cast<Errc>(wire)) == type) code = static_cast<Errc>(wire);
  }
  return Error(code, text_of(*object, "message"));
}

}  // namespace

struct HandoverFeed::State {
  Result<void> take(std::string_view name, const std::string& data);
  Result<void> take_layer(const std::string& data);
  Result<void> take_result(const std::string& data);
  void fail(const Error& why) {
    failure = error(why.code, "request '{}': {}", request_id, why.message);
  }
  bool ended() const { return result || failure; }
  template <typename Condition>
  Result<void> wait(std::unique_lock<std::mutex>& lock, const char* what, Deadline deadline,
                    Condition condition);
  // Called without the mutex.
  void report_change();

  protocol::SseParser parser;  // of write()

  mutable std::mutex mutex;
  std::condition_variable changed;
  std::string request_id = "?";  // for errors, until an event names it
  std::optional<Manifest> manifest;
  int32_t num_layers_ready = 0;
  std::optional<Manifest> result;
  TimePoint done_at;
  std::optional<Error> failure;
  std::vector<std::weak_ptr<const std::function<void()>>> listeners;
};

void HandoverFeed::State::report_change() {
  changed.notify_all();
  std::vector<std::shared_ptr<const std::function<void()>>> live;
  {
    const std::lock_guard lock(mutex);
    std::erase_if(listeners, [](const auto& listener) { return listener.expired(); });
    for (const auto& listener : listeners) live.push_back(listener.lock());
  }
  for (const auto& listener : live) {
    if (listener) (*listener)();
  }
}

Result<void> HandoverFeed::State::take(std::string_view name, const std::string& data) {
  if (name == "queued") {
    MR_ASSIGN_OR_RETURN(const auto queued, parse_object(data));
    request_id = text_of(queued, "request_id");
  } else if (name == "manifest") {
    MR_ASSIGN_OR_RETURN(manifest, parse_manifest(data, "event 'manifest'"));
  } else if (name == "layer") {
    return take_layer(data);
  } else if (name == "done") {
    return take_result(data);
  } else if (name == "error") {
    MR_ASSIGN_OR_RETURN(const auto body, parse_object(data));
    return error_of(body);
  }
  return {};
}

Result<void> HandoverFeed::State::take_layer(const std::string& data) {
  MR_ASSIGN_OR_RETURN(const auto object, parse_object(data));
  const auto* layer = object.if_contains("layer");
  if (layer == nullptr || !layer->is_int64() || layer->get_int64() != num_layers_ready) {
    return error(Errc::kCorrupt, "event out of order after {} layers: {:.80}", num_layers_ready,
                 data);
  }
  ++num_layers_ready;
  return {};
}

Result<void> HandoverFeed::State::take_result(const std::string& data) {
  MR_ASSIGN_OR_RETURN(result, parse_manifest(data, "event 'done'"));
  if (!manifest) manifest = result;
  num_layers_ready = result->layout.num_layers;
  done_at = Clock::steady().now();
  return {};
}

template <typename Condition>
Result<void> HandoverFeed::State::wait(std::unique_lock<std::mutex>& lock, const char* what,
                                       Deadline deadline, Condition condition) {
  const Stopwatch waited;
  const bool came =
      changed.wait_until(lock, deadline.when(), [&] { return failure || condition(); });
  if (failure) return *failure;
  if (came) return {};
  return error(Errc::kDeadlineExceeded,
               "request '{}': {} did not arrive within {:.1f} s; {} layers did", request_id, what,
               waited.elapsed_s(), num_layers_ready);
}

HandoverFeed::HandoverFeed() : state_(std::make_unique<State>()) {}
HandoverFeed::~HandoverFeed() = default;

HandoverFeed::HandoverFeed(Manifest manifest) : HandoverFeed() {
  state_->request_id = manifest.request_id;
  state_->manifest = manifest;
  state_->num_layers_ready = manifest.layout.num_layers;
  state_->result = std::move(manifest);
  state_->done_at = Clock::steady().now();
}

void HandoverFeed::write(std::string_view bytes) {
  if (ended()) return;
  const auto events = state_->parser.feed(bytes);
  if (!events.ok()) return fail(events.error());
  for (const auto& event : *events) take(event.name, event.data);
}

void HandoverFeed::take(std::string_view name, const std::string& data) {
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->ended()) return;
    const auto taken = state_->take(name, data);
    if (!taken.ok()) state_->fail(taken.error());
  }
  state_->report_change();
}

void HandoverFeed::set_layers_ready(int32_t num_layers) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->num_layers_ready = std::max(state_->num_layers_ready, num_layers);
  }
  state_->report_change();
}

void HandoverFeed::fail(const Error& why) {
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->ended()) return;
    state_->fail(why);
  }
  state_->report_change();
}

bool HandoverFeed::ended() const {
  const std::lock_guard lock(state_->mutex);
  return state_->ended();
}

std::optional<Error> HandoverFeed::failure() const {
  const std::lock_guard lock(state_->mutex);
  return state_->failure;
}

int32_t HandoverFeed::layers_ready() const {
  const std::lock_guard lock(state_->mutex);
  return state_->num_layers_ready;
}

void HandoverFeed::listen(std::weak_ptr<const std::function<void()>> listener) {
  const std::lock_guard lock(state_->mutex);
  state_->listeners.push_back(std::move(listener));
}

Result<Manifest> HandoverFeed::wait_for_manifest(Deadline deadline) {
  std::unique_lock lock(state_->mutex);
  MR_RETURN_IF_ERROR(
      state_->wait(lock, "a manifest", deadline, [this] { return state_->manifest.has_value(); }));
  return *state_->manifest;
}

Result<void> HandoverFeed::wait_for_layer(int32_t layer, Deadline deadline) {
  std::unique_lock lock(state_->mutex);
  return state_->wait(lock, "a layer", deadline, [&] { return layer < state_->num_layers_ready; });
}

Result<Manifest> HandoverFeed::wait_for_result(Deadline deadline) {
  std::unique_lock lock(state_->mutex);
  MR_RETURN_IF_ERROR(
      state_->wait(lock, "a result", deadline, [this] { return state_->result.has_value(); }));
  return *state_->result;
}

HandoverFeed::Stage HandoverFeed::stage() const {
  const std::lock_guard lock(state_->mutex);
  if (state_->result) return Stage::kDone;
  const bool all =
      state_->manifest && state_->num_layers_ready >= state_->manifest->layout.num_layers;
  return all ? Stage::kFinishing : Stage::kComputing;
}

TimePoint HandoverFeed::done_at() const {
  const std::lock_guard lock(state_->mutex);
  MR_CHECK(state_->result.has_value(), "request '{}' is not done", state_->request_id);
  return state_->done_at;
}

}  // namespace millrace::kvclient
