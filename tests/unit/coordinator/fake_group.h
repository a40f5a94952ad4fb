// A worker group played by a test: a blocking TCP connection that says what it is told to say. It
// sends no heartbeats by itself, so tests that do not mean silence set a long heartbeat interval.
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
  // Registers and takes the reply, which must be an acceptance.
  void join(const protocol::Register& description);

  void send(const protocol::Envelope& envelope);
  void send_bytes(const std::string& bytes);
  // The next message that is no heartbeat; fails the test after 10 s.
  protocol::Envelope receive();
  protocol::PrefillRequest receive_request();
  // True when the coordinator has closed the connection.
  bool closed_by_peer();
  // As a process that is killed: the connection just ends.
  void die();
  // Ends the connection to the coordinator, not the one from it.
  void stop_sending();

  // Neither of these reads. Something has come; the connection has been cut off.
  bool has_come();
  bool reset_by_peer();

  void send_started(const std::string& request_id);
  // All but the result of what send_done() says.
  void send_opened(const std::string& request_id, const std::string& lease_id = "lease-1");
  void send_layer(const std::string& request_id, uint32_t layer, double density = 0.25);
  void send_done(const std::string& request_id, const std::string& lease_id = "lease-1",
                 uint64_t lease_ms = 60000);
  void send_failed(const std::string& request_id, int code, const std::string& message);
  void send_lease_reply(const std::string& request_id, uint64_t expires_in_ms);
  void send_drain();
  // Started, every layer, done.
  void serve(const protocol::PrefillRequest& request);

 private:
  bool read_exactly(char* data, size_t bytes);

  int socket_ = -1;
  uint32_t num_layers_ = 0;
  std::string model_;
};

}  // namespace millrace::coordinator
