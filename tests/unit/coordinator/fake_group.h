// SPDX-License-Identifier: Apache-2.0
// A worker group played by a test: a blocking TCP connection that sends what the test says. It
// sends no heartbeats by itself, so tests that are not about silence set a long heartbeat interval.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "protocol/control_messages.pb.h"

namespace millrace::coordinator {

struct FakeModel {
  std::string name = "tiny";
  uint32_t vocab_size = 100;
  uint32_t num_layers = 3;
  uint64_t max_prompt_tokens = 4096;
};

class FakeGroup {
 public:
  // Connects; does not register.
  explicit FakeGroup(uint16_t port);
  ~FakeGroup();
  FakeGroup(const FakeGroup&) = delete;
  FakeGroup& operator=(const FakeGroup&) = delete;

  static protocol::Register description(const std::string& name, const std::string& id,
                                        const FakeModel& model = {});
  // Registers and receives the reply, which must be an acceptance.
  void join(const protocol::Register& description);

  void send(const protocol::Envelope& envelope);
  void send_bytes(const std::string& bytes);
  // The next message that is not a heartbeat; fails the test after 10 s.
  protocol::Envelope receive();
  protocol::PrefillRequest receive_request();
  // True when the coordinator has closed the connection.
  bool closed_by_peer();
  // Ends the connection without a message, like a process that is killed.
  void die();
  // Shuts down sending to the coordinator; it can still receive.
  void stop_sending();

  // Neither of these reads. The first: something has arrived. The second: the connection was cut
  // off.
  bool has_come();
  bool reset_by_peer();

  void send_started(const std::string& request_id);
  // Sends everything before the result, which send_done() sends.
  void send_opened(const std::string& request_id, const std::string& lease_id = "lease-1");
  void send_layer(const std::string& request_id, uint32_t layer, double density = 0.25);
  void send_done(const std::string& request_id, const std::string& lease_id = "lease-1",
                 uint64_t lease_ms = 60000);
  void send_failed(const std::string& request_id, int code, const std::string& message);
  void send_lease_reply(const std::string& request_id, uint64_t expires_in_ms);
  void send_drain();
  // Sends that the prefill started, every layer, and that it is done.
  void serve(const protocol::PrefillRequest& request);

 private:
  bool read_exactly(char* data, size_t bytes);

  int socket_ = -1;
  uint32_t num_layers_ = 0;
  std::string model_;
};

}  // namespace millrace::coordinator
