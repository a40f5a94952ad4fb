// SPDX-License-Identifier: Apache-2.0
// The coordinator's own Scheduler over simulated groups, clients and time. One thread.
//
// Clients send the prompts of a trace, pull each cache at a given rate as soon as it is done, and
// release it. The simulation leaves out the network, parsing, faults and tiers of the cache.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/fleet/simulated_group.h"
#include "bench/fleet/trace.h"
#include "common/metrics/registry.h"
#include "coordinator/schedule/scheduler.h"

namespace millrace::bench {

struct FleetOptions {
  std::vector<SimulatedGroupOptions> groups;
  coordinator::SchedulerSettings scheduler;
  double pull_tokens_per_s =
      190'000;  // of a client: 17.2 GB for 131,072 tokens of an 8B model, at 25 GB/s
};

struct Outcome {
  double waited_s() const { return answered_s - arrival.at_s; }

  Arrival arrival;
  bool admitted = false;
  double answered_s = 0;
  int64_t cached_tokens = 0;
  std::optional<Errc> failure;
};

class Simulation {
 public:
  // `times`: by kind of group. It must have the kinds of all groups, and outlive this.
  Simulation(const FleetOptions& options, const std::map<std::string, GroupTimes>& times);

  // One outcome for each arrival, in the order of arrivals.
  std::vector<Outcome> run(const Trace& trace);
  // The share of all groups' time that they have been busy since the beginning, 0 to 1.
  double utilisation() const;
  int num_gpus() const { return num_gpus_; }

 private:
  void submit(size_t index);
  void on_change(const coordinator::Request& request);
  void answered(size_t index, std::optional<Errc> failure);
  void tick();

  const double pull_tokens_per_s_;
  EventQueue events_;
  metrics::Registry registry_;
  coordinator::CoordinatorMetrics metrics_{registry_};
  std::vector<std::unique_ptr<SimulatedGroup>> groups_;
  std::unique_ptr<coordinator::Scheduler> scheduler_;
  std::vector<Outcome> outcomes_;
  size_t num_answered_ = 0;
  int num_gpus_ = 0;
};

}  // namespace millrace::bench
