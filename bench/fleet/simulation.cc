// SPDX-License-Identifier: Apache-2.0
#include "bench/fleet/simulation.h"

#include <utility>

#include "common/check.h"

namespace millrace::bench {

namespace {

constexpr double kTickS = 0.25;  // as in the server

}  // namespace

Simulation::Simulation(const FleetOptions& options, const std::map<std::string, GroupTimes>& times)
    : pull_tokens_per_s_(options.pull_tokens_per_s) {
  coordinator::SchedulerSettings settings = options.scheduler;
  settings.group_patience = std::chrono::hours(24 * 365);  // simulated groups send no heartbeats
  scheduler_ = std::make_unique<coordinator::Scheduler>(
      settings, events_, metrics_, [this](const coordinator::Request& r) { on_change(r); });
  const auto answer = [this](const std::string& group, protocol::Envelope envelope) {
    const auto received = scheduler_->receive(group, std::move(envelope));
    MR_CHECK(received.ok(), "{}", received.error().to_string());
  };
  for (const SimulatedGroupOptions& group : options.groups) {
    const GroupTimes& kind = times.at(group.kind);
    num_gpus_ += kind.num_gpus;
    groups_.push_back(std::make_unique<SimulatedGroup>(
        group, kind, events_, answer, [this](const std::string& id) {
          return std::span<const uint64_t>(outcomes_[std::stoull(id)].arrival.prefix_keys);
        }));
    const auto added = scheduler_->add_group(groups_.back()->description(), *groups_.back());
    MR_CHECK(added.ok(), "{}", added.error().to_string());
  }
}

std::vector<Outcome> Simulation::run(const Trace& trace) {
  outcomes_.clear();
  for (size_t i = 0; i < trace.size(); ++i) {
    outcomes_.push_back({.arrival = trace[i], .failure = {}});
    events_.after(trace[i].at_s, [this, i] { submit(i); });
  }
  num_answered_ = 0;
  events_.after(0, [this] { tick(); });
  while (num_answered_ < trace.size() && events_.run_next()) {
  }
  return std::move(outcomes_);
}

double Simulation::utilisation() const {
  if (events_.now_s() <= 0) return 0;
  double busy_s = 0;
  for (const auto& group : groups_) busy_s += group->busy_s();
  return busy_s / (events_.now_s() * static_cast<double>(groups_.size()));
}

void Simulation::submit(size_t index) {
  const Arrival& arrival = outcomes_[index].arrival;
  coordinator::PrefillBody body;
  body.model = "simulated";
  body.request_id = std::to_string(index);
  body.prompt_token_ids.resize(static_cast<size_t>(arrival.num_tokens));
  body.prefix_keys = arrival.prefix_keys;
  if (!body.prefix_keys.empty()) body.options.set_cache(protocol::CACHE_BOTH);
  body.options.set_priority(arrival.priority);
  outcomes_[index].admitted = true;
  coordinator::Caller caller = coordinator::Caller::anybody();
  caller.name = arrival.owner;
  if (const auto refusal = scheduler_->submit(std::move(body), caller)) {
    outcomes_[index].admitted = false;
    answered(index, refusal->error.code);
  }
}

void Simulation::on_change(const coordinator::Request& request) {
  if (!request.ended() || request.lease > coordinator::LeaseState::kActive) return;
  const auto index = static_cast<size_t>(std::stoull(request.id));
  if (request.failure) {
    answered(index, request.failure->error.code);
    return;
  }
  outcomes_[index].cached_tokens = static_cast<int64_t>(request.result->cached_tokens());
  answered(index, std::nullopt);
  const double pull_s = static_cast<double>(request.num_tokens) / pull_tokens_per_s_;
  const std::string& lease = request.result->manifest().lease_id();
  events_.after(pull_s, [this, id = request.id, lease] {
    [[maybe_unused]] const auto released = scheduler_->release_lease(id, lease);
  });
}

void Simulation::answered(size_t index, std::optional<Errc> failure) {
  outcomes_[index].answered_s = events_.now_s();
  outcomes_[index].failure = failure;
  ++num_answered_;
}

void Simulation::tick() {
  scheduler_->tick();
  events_.after(kTickS, [this] { tick(); });
}

}  // namespace millrace::bench
