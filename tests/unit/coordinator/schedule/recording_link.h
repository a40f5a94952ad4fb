// SPDX-License-Identifier: Apache-2.0
// A group's connection that logs what is sent to the group, and the group behind it.
#pragma once

#include <string>
#include <vector>

#include "coordinator/groups/group_link.h"
#include "protocol/codec.h"

namespace millrace::coordinator {

// Entries of the log: "prefill r1", "side by side r1 r2", "cancel r1", "suspend r1", "resume r1",
// "release lease-1", "renew lease-1", "resend", "closed: ...".
class RecordingLink final : public GroupLink {
 public:
  void send(const protocol::Envelope& envelope) override {
    if (envelope.has_prefill_request()) {
      log.push_back("prefill " + envelope.prefill_request().request_id());
      last_request = envelope.prefill_request();
    } else if (envelope.has_prefills_side_by_side()) {
      std::string ids;
      for (const auto& one : envelope.prefills_side_by_side().requests())
        ids += " " + one.request_id();
      log.push_back("side by side" + ids);
    } else if (envelope.has_cancel()) {
      log.push_back("cancel " + envelope.cancel().request_id());
    } else if (envelope.has_suspend()) {
      log.push_back("suspend " + envelope.suspend().request_id());
    } else if (envelope.has_resume()) {
      log.push_back("resume " + envelope.resume().request_id());
    } else if (envelope.has_lease_release()) {
      log.push_back("release " + envelope.lease_release().lease_id());
    } else if (envelope.has_lease_renew()) {
      log.push_back("renew " + envelope.lease_renew().lease_id());
    } else if (envelope.has_resend_cached_prefixes()) {
      log.push_back("resend");
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

// With a vocabulary of 100 and two layers.
inline protocol::Register group_description(const std::string& id, const std::string& name,
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

}  // namespace millrace::coordinator
