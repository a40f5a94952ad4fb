// A scheduler with a clock moved by hand and no sockets, and groups played by the test.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/errc_wire.h"
#include "coordinator/schedule/scheduler.h"
#include "protocol/codec.h"
#include "tests/support/fake_clock.h"

namespace millrace::coordinator {

// Writes down what it is sent: "prefill r1", "cancel r1", "release lease-1", "closed: ...".
class RecordingLink final : public GroupLink {
 public:
  void send(const protocol::Envelope& envelope) override {
    if (envelope.has_prefill_request()) {
      log.push_back("prefill " + envelope.prefill_request().request_id());
      last_request = envelope.prefill_request();
    } else if (envelope.has_cancel()) {
      log.push_back("cancel " + envelope.cancel().request_id());
    } else if (envelope.has_lease_release()) {
      log.push_back("release " + envelope.lease_release().lease_id());
    } else if (envelope.has_lease_renew()) {
      log.push_back("renew " + envelope.lease_renew().lease_id());
    } else if (envelope.has_heartbeat()) {
      ++heartbeats;
    } else if (envelope.has_register_reply()) {
      ++acceptances;
    }
  }
  void close(const std::string& why) override { log.push_back("closed: " + why); }
  bool host_answers() const override { return answers; }

  std::vector<std::string> log;
  protocol::PrefillRequest last_request;
  int heartbeats = 0;
  int acceptances = 0;
  bool answers = true;
};

class SchedulerTest : public ::testing::Test {
 protected:
  SchedulerTest() { make({}); }

  void make(SchedulerSettings settings) {
    scheduler_ = std::make_unique<Scheduler>(
        settings, clock_, probes_, [this](const Request& r) { changes_.push_back(r.id); });
  }

  static protocol::Register group(const std::string& id, const std::string& name,
                                  uint64_t max_prompt_tokens = 1000,
                                  const std::string& model = "tiny") {
    protocol::Register out;
    out.set_protocol_version(protocol::kProtocolVersion);
    out.set_group_id(id);
    out.set_group_name(name);
    out.set_max_prompt_tokens(max_prompt_tokens);
    out.mutable_model()->set_name(model);
    out.mutable_model()->set_vocab_size(100);
    out.mutable_model()->set_num_layers(2);
    return out;
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
    body.deadline_ms = deadline_ms;
    return scheduler_->submit(std::move(body));
  }

  void receive(const protocol::Envelope& envelope, const std::string& group_id = "g0") {
    const auto received = scheduler_->receive(group_id, envelope);
    ASSERT_TRUE(received.ok()) << received.error().message;
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
  // Time passes as it does for a server: in small steps, with heartbeats from `group_ids`.
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
  Probes probes_{registry_};
  std::vector<std::string> changes_;
  std::unique_ptr<Scheduler> scheduler_;
};

}  // namespace millrace::coordinator
