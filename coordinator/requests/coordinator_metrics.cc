// SPDX-License-Identifier: Apache-2.0
#include "coordinator/requests/coordinator_metrics.h"

#include <algorithm>
#include <array>
#include <span>

namespace millrace::coordinator {

namespace {

// 10 ms to 3 hours: a prompt of a million tokens takes minutes on a CPU.
std::vector<double> time_buckets() {
  return metrics::exponential_buckets(0.01, 2, 20);
}
std::vector<double> ratio_buckets() {
  return {0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1};
}

// 1 ms to 2 hours: a stage may be over at once.
std::vector<double> stage_buckets() {
  return metrics::exponential_buckets(0.001, 2, 23);
}

// What a group reports (protocol/control_messages.proto); anything else counts as "other", so that
// a group cannot make up labels.
constexpr std::array<std::string_view, 8> kPhases = {"embed",     "qkv", "exchange", "estimate",
                                                     "attention", "mlp", "store",    "logits"};
constexpr std::array<std::string_view, 4> kStages = {"start", "layers", "tail", "close"};

// A reason for refusals in addition to the names of codes: the client is over its own quota, and
// the service has room.
constexpr std::string_view kQuota = "quota";

constexpr std::array kCodes = {Errc::kInvalidArgument,
                               Errc::kUnsupported,
                               Errc::kNotFound,
                               Errc::kTooLarge,
                               Errc::kExhausted,
                               Errc::kUnavailable,
                               Errc::kDeadlineExceeded,
                               Errc::kCancelled,
                               Errc::kPeerLost,
                               Errc::kCorrupt,
                               Errc::kIo,
                               Errc::kInternal,
                               Errc::kDenied};

std::string one_of(std::span<const std::string_view> known, const std::string& name) {
  return std::find(known.begin(), known.end(), name) == known.end() ? "other" : name;
}

metrics::Sample to_sample(const protocol::Metric& metric) {
  metrics::Sample sample{metric.name(), metric.help(), metric.counter(), {}, metric.value()};
  for (const auto& [name, value] : metric.labels()) sample.labels[name] = value;
  return sample;
}

}  // namespace

CoordinatorMetrics::Times::Times(metrics::Registry& registry, const std::string& outcome)
    : queue_seconds(registry.histogram("millrace_queue_seconds",
                                       "Time from admission to the start on a group, or to the end "
                                       "of a request that never started",
                                       time_buckets(), {{"outcome", outcome}})),
      prefill_seconds(registry.histogram("millrace_prefill_seconds",
                                         "Time from the start on a group to the end",
                                         time_buckets(), {{"outcome", outcome}})) {}

void CoordinatorMetrics::Times::observe(const Request& request) {
  queue_seconds.observe(request.queue_s(*request.ended_at));
  if (request.started_at) {
    prefill_seconds.observe(seconds(*request.ended_at - *request.started_at));
  }
}

CoordinatorMetrics::CoordinatorMetrics(metrics::Registry& registry)
    : registry_(registry),
      process_(registry),
      queued_requests_(registry.gauge("millrace_queued_requests", "Requests waiting for a group")),
      running_requests_(registry.gauge("millrace_running_requests", "Requests running on a group")),
      oldest_queued_seconds_(registry.gauge(
          "millrace_oldest_queued_seconds",
          "How long the request that has waited longest has waited; 0 if none does")),
      connected_groups_(registry.gauge("millrace_connected_groups", "Connected worker groups")),
      unattended_prefills_(registry.gauge("millrace_unattended_requests",
                                          "Prefills that go on although their clients have left")),
      suspended_prefills_(
          registry.gauge("millrace_suspended_requests",
                         "Prefills set aside after a layer because their clients have left")),
      held_results_(registry.gauge("millrace_held_leases",
                                   "Results held for a client that may send its prompt again")),
      joined_(registry.counter("millrace_prefill_joined_total",
                               "Requests answered by the prefill of another request for the same "
                               "prompt")),
      resumed_(registry.counter("millrace_prefill_resumed_total",
                                "Suspended prefills that went on for a client")),
      groups_lost_(
          registry.counter("millrace_groups_lost_total",
                           "Groups lost because their connection ended or they went silent")),
      preemptions_(registry.counter("millrace_preemptions_total",
                                    "Prompts that were run between two layers of another")),
      side_by_side_(registry.counter("millrace_side_by_side_total",
                                     "Prompts that were run at once with others on a group, each "
                                     "on one context-parallel rank")),
      active_leases_(registry.gauge("millrace_active_leases", "Leases on finished KV caches")),
      open_connections_(registry.gauge("millrace_http_open_connections", "Open HTTP connections")),
      times_of_done_(registry, "done"),
      times_of_failed_(registry, "failed"),
      prompt_tokens_(registry.histogram("millrace_prompt_tokens", "Length of admitted prompts",
                                        metrics::exponential_buckets(256, 2, 16))),
      density_ratio_(registry.histogram("millrace_prefill_density_ratio",
                                        "Share of causal attention that was computed",
                                        ratio_buckets())),
      recall_ratio_(registry.histogram(
          "millrace_prefill_recall_ratio",
          "Share of attention mass that measured rows attended to, mean of a prompt",
          ratio_buckets())),
      recall_p01_ratio_(registry.histogram(
          "millrace_prefill_low_recall_ratio",
          "Share of attention mass that measured rows attended to, first percentile of a prompt",
          ratio_buckets())),
      foreseen_tokens_(registry.counter(
          "millrace_prefix_foreseen_tokens_total",
          "Tokens of finished prompts that their groups were expected to have cached")),
      unfound_tokens_(registry.counter("millrace_prefix_unfound_tokens_total",
                                       "Of these, tokens that had to be computed after all")),
      prefix_waits_(registry.counter(
          "millrace_prefix_waits_total",
          "Finished prompts that waited for a busy group with their prefix beside an idle one")),
      samples_refused_(
          registry.counter("millrace_group_samples_refused_total",
                           "Metric samples of groups refused for breaking the naming rules")) {
  // All series exist from the start, at 0: if a series begins with 1, a rate misses the first
  // event.
  requests("done", "ok");
  for (const Errc code : kCodes) {
    requests("failed", errc_name(code));
    requests("refused", errc_name(code));
    requests_given_back(code);
    wasted_token_layers(code);
    requests_declined(code);
  }
  requests("refused", kQuota);
  for (const LeaseState how : {LeaseState::kReleased, LeaseState::kExpired, LeaseState::kLost}) {
    leases_ended(how);
  }
}

metrics::Counter CoordinatorMetrics::requests(const std::string& outcome, std::string_view reason) {
  return registry_.counter("millrace_prefill_requests_total", "Prefill requests by outcome",
                           {{"outcome", outcome}, {"reason", std::string(reason)}});
}
metrics::Counter CoordinatorMetrics::requests_given_back(Errc why) {
  return registry_.counter(
      "millrace_prefill_given_back_total",
      "Requests that a group refused or failed and that another group may take",
      {{"reason", std::string(errc_name(why))}});
}
metrics::Counter CoordinatorMetrics::requests_declined(Errc why) {
  return registry_.counter("millrace_prefill_declined_total",
                           "Completions answered without a cache instead of with an error",
                           {{"reason", std::string(errc_name(why))}});
}
metrics::Counter CoordinatorMetrics::leases_ended(LeaseState how) {
  return registry_.counter("millrace_leases_ended_total", "Ended leases by reason",
                           {{"reason", std::string(lease_state_name(how))}});
}

metrics::Counter CoordinatorMetrics::wasted_token_layers(Errc why) {
  return registry_.counter("millrace_prefill_wasted_token_layers_total",
                           "Tokens times layers that were computed and thrown away, by reason",
                           {{"reason", std::string(errc_name(why))}});
}

void CoordinatorMetrics::refused(const Refusal& why) {
  requests("refused", why.over_quota ? kQuota : errc_name(why.error.code)).add();
}
void CoordinatorMetrics::declined(Errc why) {
  requests_declined(why).add();
}
void CoordinatorMetrics::given_back(Errc why) {
  requests_given_back(why).add();
}
void CoordinatorMetrics::admitted(const Request& request) {
  prompt_tokens_.observe(static_cast<double>(request.num_tokens));
}

void CoordinatorMetrics::joined() {
  joined_.add();
}
// Cached tokens are not computed; how many there were is known only at the end.
void CoordinatorMetrics::wasted(const Request& request, Errc why, size_t num_layers) {
  const int64_t tokens = std::max<int64_t>(0, request.num_tokens - request.foreseen_tokens);
  wasted_token_layers(why).add(static_cast<double>(tokens) * static_cast<double>(num_layers));
}
void CoordinatorMetrics::resumed() {
  resumed_.add();
}
void CoordinatorMetrics::unattended(int64_t prefills, int64_t suspended, int64_t results) {
  unattended_prefills_.set(static_cast<double>(prefills));
  suspended_prefills_.set(static_cast<double>(suspended));
  held_results_.set(static_cast<double>(results));
}

void CoordinatorMetrics::ended(const Request& request) {
  const bool failed = request.state == RequestState::kFailed;
  const Errc why = failed ? request.failure->error.code : Errc{};
  if (request.role != RequestRole::kPrefill) {
    requests(failed ? "failed" : "done", failed ? errc_name(why) : "ok").add();
  }
  if (request.role == RequestRole::kJoined) return;
  if (failed) {
    times_of_failed_.observe(request);
    wasted(request, why, request.layer_density.size());
    return;
  }
  if (request.between_layers) preemptions_.add();
  if (request.num_side_by_side > 1 && ran_in_lane(*request.result)) side_by_side_.add();
  if (request.waits_for_prefix_since) prefix_waits_.add();
  const auto cached = static_cast<int64_t>(request.result->cached_tokens());
  foreseen_tokens_.add(static_cast<double>(request.foreseen_tokens));
  unfound_tokens_.add(static_cast<double>(std::max<int64_t>(0, request.foreseen_tokens - cached)));
  times_of_done_.observe(request);
  density_ratio_.observe(request.result->manifest().density());
  recall_ratio_.observe(request.result->manifest().recall());
  recall_p01_ratio_.observe(request.result->manifest().recall_p01());
  for (const auto& phase : request.result->phases()) {
    registry_
        .histogram("millrace_prefill_phase_seconds", "Time of each phase, slowest rank",
                   time_buckets(), {{"phase", one_of(kPhases, phase.phase())}})
        .observe(phase.seconds());
  }
  for (const auto& stage : request.result->stages()) {
    registry_
        .histogram("millrace_prefill_stage_seconds", "Time of each stage of a request on its group",
                   stage_buckets(), {{"stage", one_of(kStages, stage.stage())}})
        .observe(stage.seconds());
  }
}

void CoordinatorMetrics::waiting(int64_t queued, int64_t running) {
  queued_requests_.set(static_cast<double>(queued));
  running_requests_.set(static_cast<double>(running));
}
void CoordinatorMetrics::oldest_queued(double age_s) {
  oldest_queued_seconds_.set(age_s);
}
void CoordinatorMetrics::groups(int connected) {
  connected_groups_.set(connected);
}
void CoordinatorMetrics::group_lost() {
  groups_lost_.add();
}
void CoordinatorMetrics::active_leases(int64_t active) {
  active_leases_.set(static_cast<double>(active));
}
void CoordinatorMetrics::lease_ended(LeaseState how) {
  leases_ended(how).add();
}
void CoordinatorMetrics::http_connections(int64_t open) {
  open_connections_.set(static_cast<double>(open));
}
void CoordinatorMetrics::http_answered(int status) {
  registry_
      .counter("millrace_http_responses_total", "HTTP responses by status",
               {{"status", std::to_string(status)}})
      .add();
}

void CoordinatorMetrics::heartbeat(const std::string& group_name,
                                   const protocol::Heartbeat& heartbeat) {
  // A group has some dozens of series; the limit only keeps a broken one from filling the memory.
  constexpr int kMaxSamples = 4096;
  std::vector<metrics::Sample> samples;
  for (const auto& metric : heartbeat.metrics()) {
    if (static_cast<int>(samples.size()) == kMaxSamples) break;
    samples.push_back(to_sample(metric));
  }
  if (samples.empty()) return;
  const int refused = registry_.publish("group", group_name, std::move(samples));
  if (refused > 0) samples_refused_.add(refused);
}
void CoordinatorMetrics::group_gone(const std::string& group_name) {
  registry_.retract(group_name);
}

std::string CoordinatorMetrics::text() {
  process_.update();
  return registry_.text();
}

}  // namespace millrace::coordinator
