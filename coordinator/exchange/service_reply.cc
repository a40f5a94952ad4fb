// SPDX-License-Identifier: Apache-2.0
#include "coordinator/exchange/service_reply.h"

#include <boost/json.hpp>

#include "common/quote.h"
#include "coordinator/api/overview_json.h"
#include "coordinator/api/request_json.h"
#include "coordinator/page/content_policy.h"
#include "coordinator/page/overview_page.h"
#include "coordinator/text/time_forms.h"

namespace millrace::coordinator {

namespace json = boost::json;

namespace {

HttpReply wrong_method(const Route& route, std::string_view request_id) {
  constexpr int kMethodNotAllowed = 405;
  const ApiError why(error(Errc::kInvalidArgument, "{} does not accept {}; it accepts {}",
                           quote(std::string_view(route.path)), route.method, route.allow),
                     kMethodNotAllowed);
  HttpReply reply = error_reply(why, request_id);
  reply.allow = route.allow;
  return reply;
}

// Alive even without a working tokenizer: prompts of token ids are still served.
HttpReply health(const ModelTokenizers& tokenizers) {
  const std::string of_tokenizers = tokenizers.health_json();
  if (of_tokenizers.empty()) return {200, R"({"status":"alive"})"};
  return {200, fmt::format(R"({{"status":"alive","tokenizers":{}}})", of_tokenizers)};
}

HttpReply readiness(const Scheduler& scheduler, std::string_view request_id) {
  if (scheduler.ready()) return {200, R"({"status":"ready"})"};
  const char* why =
      scheduler.draining() ? "the coordinator is shutting down" : "no worker group is ready";
  return error_reply(Error(Errc::kUnavailable, why), request_id);
}

HttpReply model(const Scheduler& scheduler, const std::string& name, std::string_view request_id) {
  const auto offers = scheduler.offers();
  const auto offer = offers.find(name);
  if (offer != offers.end()) {
    return {200, json::serialize(model_json(name, offer->second, unix_seconds()))};
  }
  return error_reply(Refusal(error(Errc::kNotFound, "no model {}; GET /v1/models lists them",
                                   quote(std::string_view(name))),
                             "model"),
                     request_id);
}

HttpReply page() {
  static const std::string policy = content_policy(overview_page());
  return {.body = std::string(overview_page()),
          .content_type = "text/html; charset=utf-8",
          .policy = policy,
          .for_viewers = true};
}

OverviewParts parts_of(const Scheduler& scheduler) {
  return {scheduler.groups(), scheduler.requests(), scheduler.turns()};
}

HttpReply overview(const Scheduler& scheduler, const ShownNames& names) {
  return {
      .body = overview_text(parts_of(scheduler), MILLRACE_VERSION, names, Clock::steady().now()),
      .for_viewers = true};
}

HttpReply layers(const Scheduler& scheduler, const ShownNames& names, const std::string& id,
                 std::string_view request_id) {
  const auto request = find_shown(parts_of(scheduler), names, id);
  if (request) return {.body = layers_text(*request, names), .for_viewers = true};
  return error_reply(error(Errc::kNotFound, "no request '{}'", id), request_id);
}

}  // namespace

HttpReply service_reply(const Route& route, const Scheduler& scheduler, CoordinatorMetrics& metrics,
                        ModelTokenizers& tokenizers, const ShownNames& names,
                        std::string_view request_id) {
  switch (route.endpoint) {
    case Endpoint::kHealth:
      return health(tokenizers);
    case Endpoint::kReady:
      return readiness(scheduler, request_id);
    case Endpoint::kMetrics:
      tokenizers.update_metrics();
      return {200, metrics.text(), "text/plain; version=0.0.4; charset=utf-8"};
    case Endpoint::kVersion:
      return {200, json::serialize(json::object{{"version", MILLRACE_VERSION}})};
    case Endpoint::kModels:
      return {200, json::serialize(models_json(scheduler.offers(), unix_seconds()))};
    case Endpoint::kModel:
      return model(scheduler, route.id, request_id);
    case Endpoint::kPage:
      return page();
    case Endpoint::kOverview:
      return overview(scheduler, names);
    case Endpoint::kLayers:
      return layers(scheduler, names, route.id, request_id);
    case Endpoint::kWrongMethod:
      return wrong_method(route, request_id);
    default:
      return error_reply(error(Errc::kNotFound, "{} {}: no such path; docs/api.md lists all paths",
                               route.method, quote(std::string_view(route.path))),
                         request_id);
  }
}

}  // namespace millrace::coordinator
