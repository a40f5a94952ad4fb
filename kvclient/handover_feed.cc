#include "kvclient/handover_feed.h"

#include <boost/json.hpp>

#include "kvclient/manifest_json.h"

namespace millrace::decode {

namespace json = boost::json;

namespace {

Result<json::object> parse_object(const std::string& data) {
  boost::system::error_code status;
  auto value = json::parse(data, status);
  if (status || !value.is_object()) {
    return error(Errc::kCorrupt, "'{:.80}' is no JSON object", data);
  }
  return std::move(value.as_object());
}

std::string text_of(const json::object& object, std::string_view field) {
  const auto* value = object.if_contains(field);
  const auto* text = value == nullptr ? nullptr : value->if_string();
  return text == nullptr ? std::string() : std::string(*text);
}

// As ApiError of the coordinator writes it.
Error error_of(const json::object& body) {
  const auto* inner = body.if_contains("error");
  const auto* object = inner == nullptr ? nullptr : inner->if_object();
  if (object == nullptr) return Error(Errc::kInternal, "an error without a reason");
  const std::string type = text_of(*object, "type");
  auto code = Errc::kInternal;
  for (int wire = 1; wire <= static_cast<int>(Errc::kInternal); ++wire) {
    if (errc_name(static_cast<Errc>(wire)) == type) code = static_cast<Errc>(wire);
  }
  return Error(code, text_of(*object, "message"));
}

}  // namespace

HandoverFeed::HandoverFeed(protocol::Manifest manifest)
    : request_id_(manifest.request_id()),
      manifest_(manifest),
      num_layers_ready_(static_cast<int32_t>(manifest.layout().num_layers())),
      result_(std::move(manifest)),
      done_at_(Clock::steady().now()) {}

void HandoverFeed::take(const protocol::SseEvent& event) {
  const std::lock_guard lock(mutex_);
  if (result_ || failure_) return;
  const auto taken = take_locked(event);
  if (!taken.ok()) {
    failure_ = error(taken.error().code, "request '{}': {}", request_id_, taken.error().message);
  }
  changed_.notify_all();
}

Result<void> HandoverFeed::take_locked(const protocol::SseEvent& event) {
  if (event.name == "queued") {
    MR_ASSIGN_OR_RETURN(const auto data, parse_object(event.data));
    request_id_ = text_of(data, "request_id");
  } else if (event.name == "manifest") {
    MR_ASSIGN_OR_RETURN(manifest_, parse_manifest(event.data, "event 'manifest'"));
  } else if (event.name == "layer") {
    return take_layer(event.data);
  } else if (event.name == "done") {
    return take_result(event.data);
  } else if (event.name == "error") {
    MR_ASSIGN_OR_RETURN(const auto data, parse_object(event.data));
    return error_of(data);
  }
  return {};
}

Result<void> HandoverFeed::take_layer(const std::string& data) {
  MR_ASSIGN_OR_RETURN(const auto object, parse_object(data));
  const auto* layer = object.if_contains("layer");
  if (layer == nullptr || !layer->is_int64() || layer->get_int64() != num_layers_ready_) {
    return error(Errc::kCorrupt, "after {} layers came the event of another than the next: {:.80}",
                 num_layers_ready_, data);
  }
  ++num_layers_ready_;
  return {};
}

Result<void> HandoverFeed::take_result(const std::string& data) {
  MR_ASSIGN_OR_RETURN(result_, parse_manifest(data, "event 'done'"));
  if (!manifest_) manifest_ = result_;
  num_layers_ready_ = static_cast<int32_t>(result_->layout().num_layers());
  done_at_ = Clock::steady().now();
  return {};
}

void HandoverFeed::fail(Error why) {
  const std::lock_guard lock(mutex_);
  if (result_ || failure_) return;
  failure_ = error(why.code, "request '{}': {}", request_id_, why.message);
  changed_.notify_all();
}

bool HandoverFeed::ended() const {
  const std::lock_guard lock(mutex_);
  return result_ || failure_;
}

template <typename Condition>
Result<void> HandoverFeed::wait(const char* what, Deadline deadline, Condition condition) {
  const Stopwatch waited;
  std::unique_lock lock(mutex_);
  const bool came = changed_.wait_until(lock, deadline.when(),
                                        [&] { return failure_.has_value() || condition(); });
  if (failure_) return *failure_;
  if (came) return {};
  return error(Errc::kDeadlineExceeded, "request '{}': {} did not come in {:.1f} s; {} layers did",
               request_id_, what, waited.elapsed_s(), num_layers_ready_);
}

Result<protocol::Manifest> HandoverFeed::wait_for_manifest(Deadline deadline) {
  MR_RETURN_IF_ERROR(wait("a manifest", deadline, [&] { return manifest_.has_value(); }));
  const std::lock_guard lock(mutex_);
  return *manifest_;
}

Result<void> HandoverFeed::wait_for_layer(int32_t layer, Deadline deadline) {
  return wait("a layer", deadline, [&] { return layer < num_layers_ready_; });
}

Result<protocol::Manifest> HandoverFeed::wait_for_result(Deadline deadline) {
  MR_RETURN_IF_ERROR(wait("a result", deadline, [&] { return result_.has_value(); }));
  const std::lock_guard lock(mutex_);
  return *result_;
}

HandoverFeed::Stage HandoverFeed::stage() const {
  const std::lock_guard lock(mutex_);
  if (result_) return Stage::kDone;
  const bool all =
      manifest_ && num_layers_ready_ >= static_cast<int32_t>(manifest_->layout().num_layers());
  return all ? Stage::kFinishing : Stage::kComputing;
}

TimePoint HandoverFeed::done_at() const {
  const std::lock_guard lock(mutex_);
  MR_CHECK(result_.has_value(), "request '{}' is not done", request_id_);
  return done_at_;
}

}  // namespace millrace::decode
