// SPDX-License-Identifier: Apache-2.0
// Random clients, losses and returns of groups: nothing is wrong or left.
#include "coordinator/schedule/shared_prefills.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/coordinator/schedule/shared_prefills_case.h"

namespace millrace::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// A group that runs one prompt at a time, beside suspended ones, and keeps leases; its answers have
// the prompt's first token.
class PlayedGroup final : public GroupLink {
 public:
  PlayedGroup(const Clock& clock, std::string id) : clock_(clock), id_(std::move(id)) {}

  void send(const protocol::Envelope& envelope) override {
    if (envelope.has_prefill_request()) {
      const auto& request = envelope.prefill_request();
      expire();
      EXPECT_EQ(leases.count(request.request_id()), 0u);
      EXPECT_FALSE(find(request.request_id()));
      prompts.push_back({.id = request.request_id(),
                         .token = request.prompt_token_ids().at(0),
                         .lease_ms = request.options().lease_ms(),
                         .lease_id = fmt::format("{} {}", id_, ++prefills)});
    } else if (envelope.has_cancel()) {
      ASSERT_TRUE(find(envelope.cancel().request_id()));
      find(envelope.cancel().request_id())->cancelled = true;
    } else if (envelope.has_suspend()) {
      Prompt* prompt = find(envelope.suspend().request_id());
      ASSERT_TRUE(prompt);
      ASSERT_FALSE(prompt->suspended);
      prompt->suspended = true;
      ++suspensions;
      most_suspended =
          std::max(most_suspended, std::ranges::count(prompts, true, &Prompt::suspended));
    } else if (envelope.has_resume()) {
      Prompt* prompt = find(envelope.resume().request_id());
      ASSERT_TRUE(prompt);
      ASSERT_TRUE(prompt->suspended);
      prompt->suspended = false;
    } else if (envelope.has_lease_renew()) {
      const auto& renewal = envelope.lease_renew();
      leases[renewal.request_id()] =
          clock_.now() + milliseconds(static_cast<int64_t>(renewal.lease_ms()));
    } else if (envelope.has_lease_release()) {
      EXPECT_EQ(leases.erase(envelope.lease_release().request_id()), 1u);
    }
  }
  void close(const std::string&) override {}
  bool host_answers() const override { return true; }

  // What it says next; the prompt may be over then.
  protocol::Envelope step() {
    protocol::Envelope out;
    const auto at = next();
    Prompt& prompt = *at;
    if (prompt.cancelled) {
      out.mutable_prefill_failed()->set_request_id(prompt.id);
      out.mutable_prefill_failed()->mutable_error()->set_code(errc_to_wire(Errc::kCancelled));
      prompts.erase(at);
    } else if (prompt.layers == 0 && prompts.size() > 1 && any_room_ == 0) {
      out.mutable_prefill_failed()->set_request_id(prompt.id);
      out.mutable_prefill_failed()->mutable_error()->set_code(errc_to_wire(Errc::kExhausted));
      prompts.erase(at);
    } else if (++prompt.layers <= 2) {
      out.mutable_layer_done()->set_request_id(prompt.id);
    } else {
      leases[prompt.id] = clock_.now() + milliseconds(static_cast<int64_t>(prompt.lease_ms));
      auto& manifest = *out.mutable_prefill_done()->mutable_manifest();
      manifest.set_first_token_id(prompt.token);
      manifest.set_lease_id(prompt.lease_id);
      manifest.set_lease_ms(prompt.lease_ms);
      out.mutable_prefill_done()->set_request_id(prompt.id);
      prompts.erase(at);
    }
    any_room_ = (any_room_ + 1) % 5;
    return out;
  }
  void expire() {
    std::erase_if(leases, [this](const auto& lease) { return lease.second <= clock_.now(); });
  }

  struct Prompt {
    std::string id;
    int token = 0;
    uint64_t lease_ms = 0;
    std::string lease_id;
    int layers = 0;
    bool cancelled = false;
    bool suspended = false;
  };
  // What is cancelled ends first. Then comes what has begun, and is to go on.
  std::vector<Prompt>::iterator next() {
    const auto cancelled = std::ranges::find(prompts, true, &Prompt::cancelled);
    if (cancelled != prompts.end()) return cancelled;
    const auto begun = std::ranges::find_if(
        prompts, [](const Prompt& one) { return !one.suspended && one.layers > 0; });
    return begun != prompts.end() ? begun : std::ranges::find(prompts, false, &Prompt::suspended);
  }
  bool stands() { return next() == prompts.end(); }
  Prompt* find(const std::string& id) {
    const auto found = std::ranges::find(prompts, id, &Prompt::id);
    return found == prompts.end() ? nullptr : &*found;
  }

  std::vector<Prompt> prompts;
  int prefills = 0;
  int suspensions = 0;
  std::ptrdiff_t most_suspended = 0;
  std::map<std::string, TimePoint> leases;

 private:
  const Clock& clock_;
  std::string id_;
  int any_room_ = 0;
};

// Clients come, leave, come back, cancel and release at random, and groups are lost. Every answer is
// that of the prompt asked for, no owner has more unattended than it may, and in the end nothing is
// left.
class SharedPrefillsRandomTest : public SharedPrefillsTest {};

TEST_F(SharedPrefillsRandomTest, NothingIsWrongOrLeftAfterRandomTroubles) {
  SchedulerSettings settings;
  settings.max_unattended = 3;
  settings.least_tokens_to_suspend = 1;
  settings.suspended_prefill = seconds(6);
  make(settings);
  std::mt19937 random(49);
  const auto any = [&](int n) { return std::uniform_int_distribution<int>(0, n - 1)(random); };
  std::vector<std::unique_ptr<PlayedGroup>> groups;
  std::vector<std::string> ids(2);
  int num_groups = 0;
  std::ptrdiff_t most_suspended = 0;
  const auto start = [&](size_t g) {
    ids[g] = fmt::format("g{}", num_groups++);
    auto description = group(ids[g], "group of " + ids[g]);
    description.set_suspends(true);
    description.set_suspends_several(true);
    if (groups[g]) most_suspended = std::max(most_suspended, groups[g]->most_suspended);
    groups[g] = std::make_unique<PlayedGroup>(clock_, ids[g]);
    ASSERT_TRUE(scheduler_->add_group(description, *groups[g]).ok());
  };
  groups.resize(2);
  for (size_t g = 0; g < 2; ++g) start(g);
  std::map<std::string, int> token_of;  // by request id, which is used again for other prompts
  std::map<std::string, std::shared_ptr<const Request>> records;
  const auto step = [&](size_t g) {
    if (groups[g]->stands()) return;
    ASSERT_TRUE(scheduler_->receive(ids[g], groups[g]->step()).ok());
  };
  const auto check = [&] {
    for (const auto& [id, record] : records) {
      if (record->state != RequestState::kDone) continue;
      ASSERT_EQ(record->result->manifest().first_token_id(), token_of[id]) << id;
    }
  };
  for (int round = 0; round < 4000; ++round) {
    const std::string id = fmt::format("r{}", any(12));
    const auto record = scheduler_->find(id);
    switch (any(10)) {
      case 0:
      case 1:
      case 2: {
        const int token = any(6) + 1;
        PrefillBody body;
        body.model = "tiny";
        body.request_id = id;
        body.prompt_token_ids.assign(10, token);
        body.prompt_sha256 = fmt::format("{}", token);
        body.on_disconnect = std::array{OnDisconnect::kFinish, OnDisconnect::kCancel,
                                        OnDisconnect::kSuspend}[static_cast<size_t>(any(3))];
        body.options.set_deadline_ms(static_cast<uint64_t>(any(5000) + 1));
        body.options.set_lease_ms(static_cast<uint64_t>(any(5000) + 1));
        if (scheduler_->submit(std::move(body))) break;
        token_of[id] = token;
        records[id] = scheduler_->find(id);
        break;
      }
      case 3:
        if (record && !record->ended()) scheduler_->leave(*record, "left");
        break;
      case 4:
        if (any(4) == 0) (void)scheduler_->cancel(id, "DELETE");
        break;
      case 5:
        if (record && record->result) {
          (void)scheduler_->release_lease(id, record->result->manifest().lease_id());
        }
        break;
      case 6:
        pass(milliseconds(50 * any(20)), {});
        for (auto& one : groups) one->expire();
        break;
      case 7: {
        if (any(20) != 0) break;
        const auto g = static_cast<size_t>(any(2));
        scheduler_->remove_group(ids[g], *groups[g], "killed");
        start(g);
        break;
      }
      default:
        step(static_cast<size_t>(any(2)));
    }
    for (const auto& one : ids) heartbeat(one);
    scheduler_->tick();
    check();
    ASSERT_FALSE(HasFatalFailure());
    ASSERT_LE(std::stoi(metric("millrace_unattended_requests")) +
                  std::stoi(metric("millrace_suspended_requests")) +
                  std::stoi(metric("millrace_held_leases")),
              settings.max_unattended);
  }
  const int done_requests =
      std::stoi(metric("millrace_prefill_requests_total{outcome=\"done\",reason=\"ok\"}"));
  const int prefills = std::stoi(metric("millrace_prefill_seconds_count{outcome=\"done\"}"));
  EXPECT_GT(done_requests, 50);
  EXPECT_GT(done_requests, prefills);
  EXPECT_GT(std::stoi(metric("millrace_prefill_resumed_total")), 3);
  scheduler_->drain();
  for (int i = 0; i < 12; ++i) (void)scheduler_->cancel(fmt::format("r{}", i), "DELETE");
  for (int i = 0; i < 100; ++i) {
    for (size_t g = 0; g < 2; ++g) step(g);
  }
  pass(seconds(20), ids);
  EXPECT_FALSE(scheduler_->busy());
  EXPECT_EQ(metric("millrace_active_leases"), "0");
  EXPECT_EQ(metric("millrace_held_leases"), "0");
  EXPECT_EQ(metric("millrace_unattended_requests"), "0");
  for (auto& one : groups) {
    most_suspended = std::max(most_suspended, one->most_suspended);
    one->expire();
    EXPECT_TRUE(one->leases.empty());
    EXPECT_TRUE(one->prompts.empty());
  }
  EXPECT_GT(most_suspended, 1);
}

}  // namespace
}  // namespace millrace::coordinator
