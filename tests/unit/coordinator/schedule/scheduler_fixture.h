// SPDX-License-Identifier: Apache-2.0
// A scheduler without sockets, with a clock moved by hand and groups played by the test.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/errc_wire.h"
#include "coordinator/schedule/scheduler.h"
#include "tests/support/fake_clock.h"
#include "tests/unit/coordinator/schedule/recording_link.h"

namespace millrace::coordinator {

class SchedulerTest : public ::testing::Test {
 protected:
  SchedulerTest() { make({}); }

  void make(SchedulerSettings settings) {
    scheduler_ = std::make_unique<Scheduler>(
        settings, clock_, metrics_, [this](const Request& r) { changes_.push_back(r.id); });
  }

  static protocol::Register group(const std::string& id, const std::string& name,
                                  uint64_t max_prompt_tokens = 1000,
                                  const std::string& model = "tiny") {
    return group_description(id, name, max_prompt_tokens, model);
  }
  void join(RecordingLink& link, const std::string& id = "g0",
            const std::string& name = "group-0") {
    const auto added = scheduler_->add_group(group(id, name), link);
    ASSERT_TRUE(added.ok()) << added.error().message;
  }

  std::optional<Refusal> submit(const std::string& id, int64_t num_tokens = 3,
                                int64_t deadline_ms = 0, const std::string& model = "tiny") {
    PrefillBody body;
    body.model = model;
    body.request_id = id;
    body.prompt_token_ids.assign(static_cast<size_t>(num_tokens), 1);
    body.options.set_deadline_ms(static_cast<uint64_t>(deadline_ms));
    return scheduler_->submit(std::move(body));
  }

  void receive(const protocol::Envelope& envelope, const std::string& group_id = "g0") {
    const auto received = scheduler_->receive(group_id, envelope);
    ASSERT_TRUE(received.ok()) << received.error().message;
  }
  void started(const std::string& id, const std::string& group_id = "g0") {
    protocol::Envelope envelope;
    envelope.mutable_prefill_started()->set_request_id(id);
    receive(envelope, group_id);
  }
  void layer_done(const std::string& id) {
    protocol::Envelope envelope;
    envelope.mutable_layer_done()->set_request_id(id);
    receive(envelope);
  }
  void done(const std::string& id, const std::string& group_id = "g0", int lease_ms = 1000) {
    protocol::Envelope envelope;
    auto& message = *envelope.mutable_prefill_done();
    message.set_request_id(id);
    message.mutable_manifest()->set_lease_id("lease-" + id);
    message.mutable_manifest()->set_lease_ms(static_cast<uint64_t>(lease_ms));
    receive(envelope, group_id);
  }
  void failed(const std::string& id, Errc code, const std::string& why) {
    protocol::Envelope envelope;
    envelope.mutable_prefill_failed()->set_request_id(id);
    envelope.mutable_prefill_failed()->mutable_error()->set_code(errc_to_wire(code));
    envelope.mutable_prefill_failed()->mutable_error()->set_message(why);
    receive(envelope);
  }
  void heartbeat(const std::string& group_id = "g0") {
    protocol::Envelope envelope;
    envelope.mutable_heartbeat()->set_sequence(1);
    receive(envelope, group_id);
  }
  // Lets time pass as it does for a server: in small steps, with heartbeats from `group_ids`.
  void pass(Duration duration, const std::vector<std::string>& group_ids = {}) {
    for (Duration passed{}; passed < duration; passed += std::chrono::milliseconds(50)) {
      clock_.advance(std::chrono::milliseconds(50));
      for (const auto& id : group_ids) heartbeat(id);
      scheduler_->tick();
    }
  }
  Errc failure(const std::string& id) { return scheduler_->find(id)->failure.value().error.code; }
  RequestState state(const std::string& id) { return scheduler_->find(id)->state; }

  millrace::testing::FakeClock clock_;
  metrics::Registry registry_;
  CoordinatorMetrics metrics_{registry_};
  std::vector<std::string> changes_;
  std::unique_ptr<Scheduler> scheduler_;
};

}  // namespace millrace::coordinator
