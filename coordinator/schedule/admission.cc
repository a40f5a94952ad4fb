// SPDX-License-Identifier: Apache-2.0
#include "coordinator/schedule/admission.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "common/content/prefix_keys.h"
#include "coordinator/order/soonest_end.h"
#include "coordinator/text/request_id.h"
#include "coordinator/text/time_forms.h"

namespace millrace::coordinator {

namespace {

// As many tokens as a token's text depends on (tokenizer/text_messages.h).
constexpr int64_t kPromptEndTokens = 8;

std::string to_bytes(const std::vector<int32_t>& tokens) {
  std::string bytes(tokens.size() * sizeof(int32_t), '\0');
  if (!tokens.empty()) std::memcpy(bytes.data(), tokens.data(), bytes.size());
  return bytes;
}

// Names what decides the answer: the prompt, the model, the options, and whose cache it is.
std::string sharing_key(const Request& request, const std::string& prompt_sha256) {
  if (prompt_sha256.empty()) return {};
  protocol::PrefillOptions options = request.options;
  options.clear_deadline_ms();
  options.clear_lease_ms();
  options.clear_priority();
  return fmt::format("{} {}:{} {}:{} {}", prompt_sha256, request.model.size(), request.model,
                     request.owner.size(), request.owner, options.SerializeAsString());
}

Refusal none_takes(const Request& request) {
  return error(Errc::kUnavailable, "no worker group for model '{}' takes {} tokens now",
               request.model, request.num_tokens);
}

std::optional<Refusal> check_prompt(const PrefillBody& body, const ModelOffer& offer) {
  const auto& tokens = body.prompt_token_ids;
  if (std::ssize(tokens) > offer.max_prompt_tokens) {
    return Refusal(error(Errc::kTooLarge, "prompt of {} tokens; model '{}' accepts at most {}",
                         tokens.size(), body.model, offer.max_prompt_tokens),
                   std::string(body.prompt_name));
  }
  const auto vocabulary = static_cast<int64_t>(offer.description.vocab_size());
  const auto bad = std::find_if(tokens.begin(), tokens.end(),
                                [&](int32_t token) { return token < 0 || token >= vocabulary; });
  if (bad == tokens.end()) return std::nullopt;
  return Refusal(error(Errc::kInvalidArgument, "{}[{}] is {}; model '{}' has a vocabulary of {}",
                       body.prompt_name, bad - tokens.begin(), *bad, body.model, vocabulary),
                 std::string(body.prompt_name));
}

}  // namespace

bool Admission::ready() const {
  const auto offers = groups_.offers();
  return !closed_ && std::any_of(offers.begin(), offers.end(),
                                 [](const auto& offer) { return offer.second.num_ready > 0; });
}

std::variant<std::shared_ptr<Request>, Refusal> Admission::open(PrefillBody body,
                                                                const Caller& caller) const {
  MR_CHECK(check_request_id(body.request_id).ok(), "request id '{}'", body.request_id);
  if (auto refusal = check(body)) return *std::move(refusal);
  return make_request(std::move(body), caller);
}

std::optional<Refusal> Admission::admit(PrefillBody body, const Caller& caller) {
  auto opened = open(std::move(body), caller);
  if (auto* refusal = std::get_if<Refusal>(&opened)) return std::move(*refusal);
  const auto& request = std::get<std::shared_ptr<Request>>(opened);
  if (auto refusal = check_queueing(*request, caller)) return refusal;
  return queue(request, caller);
}

// Tokens are charged to the request whose prefill it is.
std::optional<Refusal> Admission::check_joining(const Request& request, const Caller& caller,
                                                bool sent_again) const {
  if (auto refusal = check_id(request.id, caller, sent_again)) return refusal;
  Caller of_requests = caller;
  of_requests.quota.tokens_per_minute = 0;
  return sent_again ? std::nullopt : check_quota(of_requests);
}

std::optional<Refusal> Admission::check_queueing(const Request& request,
                                                 const Caller& caller) const {
  if (auto refusal = check_id(request.id, caller, /*sent_again=*/false)) return refusal;
  if (auto refusal = check_quota(caller)) return refusal;
  return check_deadline(request);
}

std::optional<Refusal> Admission::queue(const std::shared_ptr<Request>& request,
                                        const Caller& caller) {
  const Result<void> queued = requests_.admit(request);
  if (queued.ok()) {
    quotas_.charge(caller, request->num_tokens, clock_.now());
    return std::nullopt;
  }
  Refusal full(queued.error());
  full.retry_after_s = pace_.seconds_to_next_turn(groups_.size());
  return full;
}

std::variant<ExpectedEnd, Refusal> Admission::forecast(const std::shared_ptr<Request>& request,
                                                       const Caller& caller) const {
  if (auto refusal = check_id(request->id, caller, /*sent_again=*/false)) {
    return *std::move(refusal);
  }
  if (auto refusal = check_quota(caller)) return *std::move(refusal);
  const auto end =
      expected_end(request, groups_.all(), requests_.queue().waiting(), turns_, clock_.now());
  if (end) return *end;
  return none_takes(*request);
}

std::variant<ExpectedEnd, Refusal> Admission::forecast_rest(
    const std::shared_ptr<Request>& prefill) const {
  const auto end =
      expected_rest(prefill, groups_.all(), requests_.queue().waiting(), turns_, clock_.now());
  if (end) return *end;
  return none_takes(*prefill);
}

std::optional<Refusal> Admission::check(const PrefillBody& body) const {
  if (closed_) return Refusal(Error(Errc::kUnavailable, "the coordinator is shutting down"));
  const auto offers = groups_.offers();
  const auto found = offers.find(body.model);
  if (found == offers.end()) return unserved(body.model, offers);
  const ModelOffer& offer = found->second;
  if (offer.num_ready == 0) {
    return Refusal(error(Errc::kUnavailable, "all {} worker groups of model '{}' are draining",
                         offer.num_groups, body.model));
  }
  return check_prompt(body, offer);
}

std::optional<Refusal> Admission::check_id(const std::string& id, const Caller& caller,
                                           bool sent_again) const {
  const auto older = requests_.table().find(id);
  // Only the owner of a request may learn what became of it.
  if (older && !caller.may_touch(older->owner)) {
    return Refusal(error(Errc::kInvalidArgument, "request id '{}' is in use", older->id),
                   "request_id");
  }
  if (older && older->in_use() && !sent_again) {
    return Refusal(error(Errc::kInvalidArgument, "request id '{}' is in use ({})", older->id,
                         request_state_name(older->state)),
                   "request_id");
  }
  return std::nullopt;
}

std::optional<Refusal> Admission::check_quota(const Caller& caller) const {
  auto refusal = quotas_.check(caller, requests_.open_of(caller.name), clock_.now());
  if (refusal && refusal->retry_after_s == 0) {
    refusal->retry_after_s = pace_.seconds_to_next_turn(groups_.size());
  }
  return refusal;
}

std::optional<Refusal> Admission::check_deadline(const Request& request) const {
  if (request.outlasts_deadline) return std::nullopt;
  const auto soonest =
      soonest_end(request, groups_.all(), requests_.queue().waiting(), turns_, clock_.now());
  if (!soonest || soonest->all() <= request.deadline_after()) return std::nullopt;
  const std::string wait = soonest->wait == Duration::zero()
                               ? ""
                               : fmt::format(", after {:.3f} s or more for {} prompts before it",
                                             seconds(soonest->wait), soonest->num_ahead);
  return Refusal(error(Errc::kDeadlineExceeded,
                       "deadline of {:.3f} s: {} tokens{} take {:.3f} s or more here{}",
                       seconds(request.deadline_after()), request.num_tokens,
                       cached_text(soonest->cached_tokens), seconds(soonest->prefill), wait),
                 "deadline_ms");
}

// If there are groups but none ever served the model, the client has the name wrong.
Refusal Admission::unserved(const std::string& model,
                            const std::map<std::string, ModelOffer>& offers) const {
  if (offers.empty() || groups_.knows_model(model)) {
    return error(Errc::kUnavailable, "no worker group for model '{}' is connected", model);
  }
  constexpr size_t kMaxNamed = 8;
  std::vector<std::string> names;
  for (const auto& [name, offer] : offers) {
    if (names.size() == kMaxNamed) break;
    names.push_back(name);
  }
  return Refusal(error(Errc::kNotFound, "unknown model '{}'; served here: {}{}", model,
                       fmt::join(names, ", "), offers.size() > kMaxNamed ? ", ..." : ""),
                 "model");
}

std::shared_ptr<Request> Admission::make_request(PrefillBody body, const Caller& caller) const {
  auto request = std::make_shared<Request>();
  request->id = std::move(body.request_id);
  request->model = std::move(body.model);
  request->num_tokens = std::ssize(body.prompt_token_ids);
  request->prompt = to_bytes(body.prompt_token_ids);
  request->prompt_end.assign(
      body.prompt_token_ids.end() - std::min<int64_t>(request->num_tokens, kPromptEndTokens),
      body.prompt_token_ids.end());
  request->options = std::move(body.options);
  if (body.kv_budget_tokens > 0) {
    request->options.set_kv_budget(std::min(1.0, static_cast<double>(body.kv_budget_tokens) /
                                                     static_cast<double>(request->num_tokens)));
  }
  if (settings_.routes_by_prefix) request->prefix_keys = std::move(body.prefix_keys);
  auto& options = request->options;
  if (options.deadline_ms() == 0) options.set_deadline_ms(to_wire_ms(settings_.default_deadline));
  if (options.lease_ms() == 0) options.set_lease_ms(to_wire_ms(settings_.default_lease));
  request->owner = caller.name;
  request->tenant = tenant_key(request->owner, request->options.cache_salt());
  request->trace_id = std::move(body.trace_id);
  request->trace = std::move(body.trace);
  request->queued_at = clock_.now();
  if (settings_.joins_prefills) request->sharing_key = sharing_key(*request, body.prompt_sha256);
  const OnDisconnect wanted = body.on_disconnect.value_or(settings_.on_disconnect);
  const bool may_outlast = !request->sharing_key.empty() && settings_.max_unattended > 0 &&
                           request->num_tokens <= settings_.max_unattended_tokens;
  const bool too_short =
      wanted == OnDisconnect::kSuspend && request->num_tokens < settings_.least_tokens_to_suspend;
  request->on_disconnect = may_outlast && !too_short ? wanted : OnDisconnect::kCancel;
  // By default a prompt may be suspended, but nobody has said that it will be sent again.
  request->may_miss_deadline =
      request->on_disconnect == OnDisconnect::kFinish ||
      (request->on_disconnect == OnDisconnect::kSuspend && body.on_disconnect.has_value());
  request->outlasts_deadline = request->may_miss_deadline;
  return request;
}

}  // namespace millrace::coordinator
