// SPDX-License-Identifier: Apache-2.0
// A scheduler with a group that records what it is sent, and clients that ask for prompts by name.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "tests/unit/coordinator/schedule/scheduler_fixture.h"

namespace millrace::coordinator {

class SharedPrefillsTest : public SchedulerTest {
 protected:
  struct Ask {
    std::string prompt = "A";
    OnDisconnect on_disconnect = OnDisconnect::kCancel;
    int64_t deadline_ms = 0;
    int64_t lease_ms = 60'000;
    int priority = 0;
    std::string owner;
    protocol::Handover handover = protocol::HANDOVER_AT_END;
    double kv_budget = 0;
    int64_t num_tokens = 10;
  };

  std::optional<Refusal> ask(const std::string& id, const Ask& ask) {
    PrefillBody body;
    body.model = "tiny";
    body.request_id = id;
    body.prompt_token_ids.assign(static_cast<size_t>(ask.num_tokens), 1);
    body.prompt_sha256 = ask.prompt;
    body.on_disconnect = ask.on_disconnect;
    body.options.set_deadline_ms(static_cast<uint64_t>(ask.deadline_ms));
    body.options.set_lease_ms(static_cast<uint64_t>(ask.lease_ms));
    body.options.set_priority(ask.priority);
    body.options.set_handover(ask.handover);
    body.options.set_kv_budget(ask.kv_budget);
    Caller caller = Caller::anybody();
    caller.name = ask.owner;
    return scheduler_->submit(std::move(body), caller);
  }
  void leave(const std::string& id) { scheduler_->leave(*scheduler_->find(id), "left"); }
  LeaseState lease(const std::string& id) { return scheduler_->find(id)->lease; }
  std::string metric(const std::string& name) {
    const std::string text = registry_.text();
    const auto at = text.find("\n" + name + " ");
    if (at == std::string::npos) return "";
    const auto begin = at + name.size() + 2;
    return text.substr(begin, text.find('\n', begin) - begin);
  }
  std::string wasted(const std::string& reason) {
    return metric("millrace_prefill_wasted_token_layers_total{reason=\"" + reason + "\"}");
  }

  static Ask finish(int64_t deadline_ms = 0) {
    return {.on_disconnect = OnDisconnect::kFinish, .deadline_ms = deadline_ms};
  }

  // Prompts from 5 tokens on are suspended, for a minute.
  void make_suspending(const std::string& group_id = "g0", bool several = false) {
    SchedulerSettings settings;
    settings.least_tokens_to_suspend = 5;
    settings.suspended_prefill = std::chrono::minutes(1);
    make(settings);
    join_suspending(link_, group_id, several);
  }
  // As the next tick counts them.
  std::string num_suspended() {
    scheduler_->tick();
    return metric("millrace_suspended_requests");
  }
  // A client leaves this prompt after so many layers.
  void suspend_after(int num_layers, const std::string& id) {
    Ask asked = suspend();
    asked.prompt = id;
    ASSERT_FALSE(ask(id, asked));
    for (int i = 0; i < num_layers; ++i) layer_done(id);
    leave(id);
    ASSERT_EQ(link_.log.back(), "suspend " + id);
  }
  void join_suspending(RecordingLink& link, const std::string& group_id, bool several = false) {
    auto description = group(group_id, "group of " + group_id);
    description.set_suspends(true);
    description.set_suspends_several(several);
    ASSERT_TRUE(scheduler_->add_group(description, link).ok());
  }
  static Ask suspend(int64_t deadline_ms = 0) {
    return {.on_disconnect = OnDisconnect::kSuspend, .deadline_ms = deadline_ms};
  }

  RecordingLink link_;
};

}  // namespace millrace::coordinator
