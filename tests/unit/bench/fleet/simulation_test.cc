// SPDX-License-Identifier: Apache-2.0
// The simulator compared with queueing theory, and the orders of the queue with each other.
#include "bench/fleet/simulation.h"

#include <gtest/gtest.h>

#include <random>

#include "bench/fleet/fleet_limits.h"
#include "bench/fleet/fleet_report.h"

namespace millrace::bench {
namespace {

using coordinator::QueueOrder;

// A second for every thousand tokens.
const std::map<std::string, GroupTimes> kTimes = {
    {"plain", {.num_gpus = 1, .overhead_s = 0, .tokens = {1000, 2000}, .seconds = {1, 2}}},
    {"ahead",
     {.num_gpus = 1,
      .layers_ahead = 1,
      .preempt_s = 0.5,
      .overhead_s = 0,
      .tokens = {1000, 2000},
      .seconds = {1, 2}}},
    {"busy",
     {.num_gpus = 1,
      .between_s = 0.25,
      .overhead_s = 0,
      .tokens = {1000, 2000},
      .seconds = {1, 2}}},
    // Each of its ranks alone takes only a tenth longer than both together: they hardly help each
    // other.
    {"pair",
     {.num_gpus = 2,
      .overhead_s = 0,
      .tokens = {1000, 2000},
      .seconds = {1, 2},
      .lane = std::make_shared<const GroupTimes>(
          GroupTimes{.num_gpus = 1, .tokens = {1000, 2000}, .seconds = {1.1, 2.2}})}}};

FleetOptions fleet(int num_groups, QueueOrder order) {
  FleetOptions options;
  for (int i = 0; i < num_groups; ++i) {
    options.groups.push_back({.name = fmt::format("group-{}", i), .kind = "plain"});
  }
  options.scheduler.queue_order = order;
  options.scheduler.max_queued_requests = 1'000'000;
  return options;
}

std::vector<Outcome> play(const FleetOptions& options, const Trace& trace) {
  return Simulation(options, kTimes).run(trace);
}

double mean_wait(const std::vector<Outcome>& outcomes) {
  double sum = 0;
  for (const Outcome& outcome : outcomes) sum += outcome.waited_s();
  return sum / static_cast<double>(outcomes.size());
}

// Pollaczek and Khinchine: with one server, a fixed service time D and load r, the wait before
// service is r D / (2 (1 - r)). At r = .5 the mean of 40,000 waits, which are correlated over some
// 4 of them, has a standard error of about 1.5 % of the wait of .5.
TEST(Simulation, WaitsAsQueueingTheorySays) {
  Trace trace = draw_trace({.num_requests = 40'000, .requests_per_s = 0.5, .seed = 7});
  for (Arrival& arrival : trace) arrival.num_tokens = 1000;
  for (const QueueOrder order : {QueueOrder::kArrival, QueueOrder::kFair}) {
    EXPECT_NEAR(mean_wait(play(fleet(1, order), trace)), 1.5, 0.03);
  }
}

TEST(Simulation, TheGroupsOfAnIdleFleetWorkSideBySide) {
  Trace trace;
  for (int i = 0; i < 4; ++i) trace.push_back({.num_tokens = 5000});
  Simulation simulation(fleet(4, QueueOrder::kFair), kTimes);
  for (const Outcome& outcome : simulation.run(trace)) EXPECT_NEAR(outcome.waited_s(), 5, 1e-6);
  EXPECT_NEAR(simulation.utilisation(), 1, 1e-6);
}

// The third finds the group idle.
TEST(Simulation, APromptThatFollowsAnotherTakesWhatWasMeasuredBesides) {
  FleetOptions options = fleet(1, QueueOrder::kArrival);
  options.groups[0].kind = "busy";
  const auto outcomes =
      play(options, {{.num_tokens = 1000}, {.num_tokens = 2000}, {.at_s = 5, .num_tokens = 1000}});
  EXPECT_NEAR(outcomes[0].waited_s(), 1, 1e-6);
  EXPECT_NEAR(outcomes[1].waited_s(), 3.25, 1e-6);
  EXPECT_NEAR(outcomes[2].waited_s(), 1, 1e-6);
}

TEST(Simulation, AFullPoolHoldsPromptsBackUntilClientsHavePulled) {
  FleetOptions options = fleet(1, QueueOrder::kFair);
  options.groups[0].pool_tokens = 1500;
  options.pull_tokens_per_s = 100;  // ten seconds for a prompt of 1000
  const auto outcomes = play(options, {{.num_tokens = 1000}, {.num_tokens = 1000}});
  EXPECT_FALSE(outcomes[0].failure);
  EXPECT_NEAR(outcomes[0].waited_s(), 1, 1e-6);
  // No other group has room, and the client is told so.
  EXPECT_EQ(outcomes[1].failure, Errc::kExhausted);
}

// Prompts of 1,000 and of 100,000 tokens at the same load.
Trace mixed_trace() {
  Trace trace = draw_trace({.num_requests = 4'000, .requests_per_s = 0.04, .seed = 11});
  for (size_t i = 0; i < trace.size(); ++i) trace[i].num_tokens = i % 5 == 0 ? 100'000 : 1000;
  return trace;
}

TEST(Simulation, TheFairOrderHelpsShortPromptsAndHardlyHurtsLongOnes) {
  const auto rows_of = [](QueueOrder order) {
    return wait_rows(play(fleet(1, order), mixed_trace()));
  };
  const auto by_arrival = rows_of(QueueOrder::kArrival);
  const auto fair = rows_of(QueueOrder::kFair);
  EXPECT_LT(fair[0].median_s, 0.8 * by_arrival[0].median_s);
  EXPECT_LT(fair[0].p99_s, 0.8 * by_arrival[0].p99_s);
  EXPECT_LT(fair[2].median_s, 1.1 * by_arrival[2].median_s);
  EXPECT_EQ(fair[4].num_failed, 0);
}

// The long prompt ends later by the time of the short ones, which wait for the end of a layer at
// most.
TEST(Simulation, ShortPromptsRunBetweenTheLayersOfALongOne) {
  FleetOptions options = fleet(1, QueueOrder::kFair);
  options.groups[0].max_preempting_tokens = 2000;
  const Trace trace = {{.at_s = 0, .num_tokens = 1000},
                       {.at_s = 2, .num_tokens = 320'000},
                       {.at_s = 100.5, .num_tokens = 1000},
                       {.at_s = 101, .num_tokens = 1000},
                       {.at_s = 200, .num_tokens = 2000}};
  const auto outcomes = play(options, trace);
  EXPECT_NEAR(outcomes[1].waited_s(), 320 + 4, 1e-3);
  for (const size_t i : {2, 3, 4}) EXPECT_LE(outcomes[i].waited_s(), 10 + 3);
}

// A layer of the long prompt takes 10 s. It begins at 2, so that the layer running at 100.5 ends at
// 102, and the next one at 112.
TEST(Simulation, WhatTheHostIsAheadAndAPreemptionCostsIsTakenIntoAccount) {
  FleetOptions options = fleet(1, QueueOrder::kFair);
  options.groups[0].max_preempting_tokens = 2000;
  const Trace trace = {{.at_s = 0, .num_tokens = 1000},
                       {.at_s = 2, .num_tokens = 320'000},
                       {.at_s = 100.5, .num_tokens = 1000}};
  EXPECT_NEAR(play(options, trace)[2].waited_s(), 1.5 + 1, 1e-3);
  options.groups[0].kind = "ahead";
  const auto outcomes = play(options, trace);
  EXPECT_NEAR(outcomes[2].waited_s(), 11.5 + 1, 1e-3);
  EXPECT_NEAR(outcomes[1].waited_s(), 320 + 1 + 0.5, 1e-3);
}

FleetOptions pair(int64_t side_by_side_tokens) {
  FleetOptions options = fleet(1, QueueOrder::kFair);
  options.groups[0].kind = "pair";
  options.groups[0].side_by_side_tokens = side_by_side_tokens;
  return options;
}

TEST(Simulation, ShortPromptsThatWaitRunSideBySide) {
  const Trace trace(9, Arrival{.num_tokens = 1000});
  const auto last_answer = [&trace](int64_t side_by_side_tokens) {
    double last_s = 0;
    for (const Outcome& outcome : play(pair(side_by_side_tokens), trace)) {
      EXPECT_FALSE(outcome.failure);
      last_s = std::max(last_s, outcome.answered_s);
    }
    return last_s;
  };
  EXPECT_NEAR(last_answer(0), 9, 1e-6);
  EXPECT_NEAR(last_answer(1000), 1 + 4 * 1.1, 1e-6);
  EXPECT_NEAR(last_answer(999), 9, 1e-6);
}

// At 1.4 prompts a second, a group that takes one prompt at a time cannot keep up.
TEST(Simulation, AGroupBearsALoadSideBySideThatItDoesNotBearOtherwise) {
  Trace trace = draw_trace({.num_requests = 4'000, .requests_per_s = 1.4, .seed = 3});
  for (Arrival& arrival : trace) arrival.num_tokens = 1000;
  EXPECT_GT(mean_wait(play(pair(0), trace)), 100);
  EXPECT_LT(mean_wait(play(pair(1000), trace)), 10);
}

TEST(Simulation, ShortPromptsRunSideBySideBetweenTheLayersOfALongOne) {
  FleetOptions options = pair(1000);
  options.groups[0].max_preempting_tokens = 2000;
  Trace trace = {{.at_s = 0, .num_tokens = 1000},
                 {.at_s = 2, .num_tokens = 320'000},
                 {.at_s = 100, .num_tokens = 1000}};
  for (int i = 0; i < 4; ++i) trace.push_back({.at_s = 101, .num_tokens = 1000});
  const auto outcomes = play(options, trace);
  EXPECT_NEAR(outcomes[1].waited_s(), 320 + 1 + 2 * 1.1, 1e-3);
}

TEST(Simulation, AnOwnerWhoSendsTenTimesAsMuchDoesNotSlowOthersDown) {
  Trace trace;
  for (int i = 0; i < 300; ++i) trace.push_back({.at_s = 0, .num_tokens = 1000, .owner = "many"});
  for (int i = 0; i < 30; ++i) {
    trace.push_back({.at_s = 1.0 + 10 * i, .num_tokens = 1000, .owner = "few"});
  }
  const auto worst_of_few = [&trace](QueueOrder order) {
    double worst = 0;
    for (const Outcome& outcome : play(fleet(1, order), trace)) {
      EXPECT_FALSE(outcome.failure);
      if (outcome.arrival.owner == "few") worst = std::max(worst, outcome.waited_s());
    }
    return worst;
  };
  EXPECT_GT(worst_of_few(QueueOrder::kArrival), 250);
  EXPECT_LE(worst_of_few(QueueOrder::kFair), 2 + 1e-6);  // one of the other's, and its own
}

// One group of four GPUs that takes a third of the time, and four groups of one GPU.
TEST(Simulation, GroupsOfSeveralKindsAreChosenByWhatTheyTake) {
  const std::map<std::string, GroupTimes> times = {
      {"one", {.num_gpus = 1, .tokens = {1000, 2000}, .seconds = {0.1, 0.2}}},
      {"four", {.num_gpus = 4, .tokens = {1000, 2000}, .seconds = {0.09, 0.12}}}};
  FleetOptions options;
  for (int i = 0; i < 5; ++i) {
    options.groups.push_back({.name = fmt::format("g{}", i), .kind = i == 4 ? "four" : "one"});
  }
  const Trace trace = draw_trace({.num_requests = 3000, .requests_per_s = 0.3, .seed = 3});
  const auto rows_with = [&](coordinator::GroupOrder order) {
    options.scheduler.group_order = order;
    return wait_rows(Simulation(options, times).run(trace));
  };
  const auto by_room = rows_with(coordinator::GroupOrder::kMostRoom);
  const auto by_end = rows_with(coordinator::GroupOrder::kSoonestEnd);
  EXPECT_LT(by_end[2].median_s, 0.7 * by_room[2].median_s);
  EXPECT_LT(by_end[4].p99_s, by_room[4].p99_s);
  EXPECT_EQ(by_end[4].num_failed, 0);
}

// A group at 90 % load, a tenth of it urgent. Cobham's two classes with one server and a fixed
// service time D of 1 s: what runs has .9 D / 2 left on average, and urgent prompts wait for that /
// (1 - .09). As all take equally long, what some gain others lose: the sum is that of one class.
TEST(Simulation, PromptsOfALowerPriorityWaitAsQueueingTheorySays) {
  Trace trace = draw_trace({.num_requests = 20'000, .requests_per_s = 0.9, .seed = 5});
  for (Arrival& arrival : trace) arrival.num_tokens = 1000;
  const double plain_s = mean_wait(play(fleet(1, QueueOrder::kFair), trace));
  std::mt19937 random(1);
  for (Arrival& arrival : trace) arrival.priority = random() % 10 == 0 ? -1000 : 0;
  const auto outcomes = play(fleet(1, QueueOrder::kFair), trace);
  std::vector<Outcome> urgent;
  for (const Outcome& outcome : outcomes) {
    if (outcome.arrival.priority < 0) urgent.push_back(outcome);
  }
  EXPECT_NEAR(mean_wait(outcomes), plain_s, 1e-6);
  EXPECT_NEAR(mean_wait(urgent), 1 + 0.45 / 0.91, 0.05);
}

TEST(FleetLimits, EachIsToldByWhatHappenedToPrompts) {
  const auto of = [](std::optional<Errc> failure, bool admitted, double waited_s = 1) {
    return std::vector<Outcome>(10, {.arrival = {.num_tokens = 20'000},
                                     .admitted = admitted,
                                     .answered_s = waited_s,
                                     .failure = failure});
  };
  const Objective objective{.mean_s = 2};
  EXPECT_EQ(limits_hit(of({}, true), objective), (Hit{false, false, false, false}));
  EXPECT_EQ(limits_hit(of({}, true, 3), objective), (Hit{true, false, false, false}));
  EXPECT_EQ(limits_hit(of(Errc::kExhausted, false), objective), (Hit{false, true, false, false}));
  EXPECT_EQ(limits_hit(of(Errc::kExhausted, true), objective), (Hit{false, false, false, true}));
  for (const bool admitted : {false, true}) {
    EXPECT_EQ(limits_hit(of(Errc::kDeadlineExceeded, admitted), objective),
              (Hit{false, false, true, false}));
  }
}

TEST(FleetLimits, TheFirstIsTheOneOfTheLeastLoad) {
  FirstLimits limits;
  limits.add(0.5, {});
  EXPECT_FALSE(limits.first());
  limits.add(0.6, {true, false, false, false});
  EXPECT_FALSE(limits.fails());
  limits.add(0.7, {true, false, true, false});
  EXPECT_TRUE(limits.fails());
  EXPECT_EQ(limits.first(), Limit::kObjective);
  EXPECT_EQ(limits.load_of(Limit::kObjective), 0.6);
  EXPECT_EQ(limits.load_of(Limit::kDeadline), 0.7);
  EXPECT_FALSE(limits.load_of(Limit::kQueue));
}

// First a pool for two prompts with clients that pull slowly, then a queue with one place.
TEST(FleetLimits, ASmallPoolAndAShortQueueAreFound) {
  Trace trace;
  for (int i = 0; i < 50; ++i) trace.push_back({.at_s = 1.5 * i, .num_tokens = 1000});
  FleetOptions options = fleet(1, QueueOrder::kFair);
  EXPECT_EQ(limits_hit(play(options, trace), {}), Hit{});
  options.groups[0].pool_tokens = 2000;
  options.pull_tokens_per_s = 200;
  EXPECT_EQ(limits_hit(play(options, trace), {}), (Hit{false, false, false, true}));
  options = fleet(1, QueueOrder::kFair);
  options.scheduler.max_queued_requests = 1;
  for (size_t i = 0; i < trace.size(); ++i) trace[i].at_s = 0.5 * static_cast<double>(i);
  EXPECT_EQ(limits_hit(play(options, trace), {}), (Hit{false, true, false, false}));
}

TEST(Simulation, ARunIsTheSameAgain) {
  const auto waits = [] {
    std::vector<double> out;
    for (const auto& o : play(fleet(3, QueueOrder::kFair), mixed_trace()))
      out.push_back(o.waited_s());
    return out;
  };
  EXPECT_EQ(waits(), waits());
}

// Two groups and two conversations whose turns come one after another, each long after the last one
// has ended. A turn is computed behind the one before if it comes to the same group.
TEST(Simulation, TurnsBehindTheOneBeforeTakeWhatIsNew) {
  FleetOptions options = fleet(2, QueueOrder::kFair);
  for (auto& group : options.groups) {
    group.caches = true;
    group.load_tokens_per_s = 1e12;
  }
  Trace trace;
  for (int turn = 0; turn < 6; ++turn) {
    for (const uint64_t conversation : {1000, 2000}) {
      Arrival arrival{.at_s = 100.0 * turn, .num_tokens = 5120 + 1024 * turn};
      for (int i = 0; i < arrival.num_tokens / 512; ++i) {
        arrival.prefix_keys.push_back(conversation + static_cast<uint64_t>(i));
      }
      trace.push_back(arrival);
    }
  }
  // All of a turn but its last 1,024 tokens was seen before.
  EXPECT_NEAR(share_seen_before(trace), 2.0 * (5 * 5120 + 10 * 1024) / (2 * (6 * 5120 + 15 * 1024)),
              1e-9);
  const auto outcomes = play(options, trace);
  for (size_t i = 0; i < outcomes.size(); ++i) {
    EXPECT_NEAR(outcomes[i].waited_s(), i < 2 ? 5.12 : 1.024, 1e-6) << "arrival " << i;
    EXPECT_EQ(outcomes[i].cached_tokens, i < 2 ? 0 : trace[i].num_tokens - 1024);
  }
}

TEST(SimulatedCache, GivesUpWhatWasUsedLeastLatelyTheDeepestFirst) {
  SimulatedCache cache;
  EXPECT_EQ(cache.use(std::vector<uint64_t>{1, 2, 3}), 0);
  EXPECT_EQ(cache.add(std::vector<uint64_t>{1, 2, 3}, /*cost=*/1),
            (std::vector<uint64_t>{1, 2, 3}));
  EXPECT_EQ(cache.use(std::vector<uint64_t>{7, 8}), 0);
  EXPECT_EQ(cache.add(std::vector<uint64_t>{7, 8}, /*cost=*/1), (std::vector<uint64_t>{7, 8}));
  EXPECT_EQ(cache.use(std::vector<uint64_t>{1, 2, 9}), 2);
  EXPECT_EQ(cache.shrink(5), std::vector<uint64_t>{});
  EXPECT_EQ(cache.shrink(3), (std::vector<uint64_t>{3, 8}));
  EXPECT_EQ(cache.shrink(0), (std::vector<uint64_t>{7, 2, 1}));
}

}  // namespace
}  // namespace millrace::bench
