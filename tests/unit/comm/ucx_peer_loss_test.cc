// SPDX-License-Identifier: Apache-2.0
// The loss of a killed server process must be noticed by its silence alone, well before the
// deadline.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>

#include "comm/ucx/ucx_transport.h"
#include "tests/unit/comm/pattern_server.h"

namespace millrace::comm {
namespace {

Deadline ample() {
  return Deadline::after(std::chrono::seconds(60));
}

class PeerProcess {
 public:
  explicit PeerProcess(std::string transports) {
    int input[2];
    int output[2];
    MR_CHECK(pipe2(input, O_CLOEXEC) == 0 && pipe2(output, O_CLOEXEC) == 0, "pipe");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, input[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, output[1], STDOUT_FILENO);
    std::string path = MR_UCX_PEER;
    char* arguments[] = {path.data(), transports.data(), nullptr};
    MR_CHECK(posix_spawn(&pid_, path.c_str(), &actions, nullptr, arguments, environ) == 0, "spawn");
    posix_spawn_file_actions_destroy(&actions);
    close(input[0]);
    close(output[1]);
    stdin_ = input[1];
    address_ = read_address(output[0]);
    close(output[0]);
  }
  ~PeerProcess() {
    kill();
    close(stdin_);
  }

  const std::string& address() const { return address_; }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  static std::string read_address(int fd) {
    constexpr std::string_view kKey = "address ";
    std::string line;
    char byte = 0;
    while (read(fd, &byte, 1) == 1) {
      if (byte != '\n') {
        line += byte;
      } else if (line.starts_with(kKey)) {
        return line.substr(kKey.size());
      } else {
        line.clear();
      }
    }
    return {};
  }

  pid_t pid_ = -1;
  int stdin_ = -1;
  std::string address_;
};

struct Choice {
  std::string name;
  UcxTransports transports;
  std::string reported;
};

void PrintTo(const Choice& choice, std::ostream* out) {
  *out << choice.name;
}

class UcxPeerLoss : public testing::TestWithParam<Choice> {
 protected:
  void SetUp() override {
    auto transport = UcxTransport::create({.transports = GetParam().transports});
    ASSERT_TRUE(transport.ok());
    transport_ = std::move(transport).value();
    auto connection = transport_->connect(peer_.address(), ample());
    ASSERT_TRUE(connection.ok()) << connection.error().to_string();
    connection_ = std::move(connection).value();
    ASSERT_TRUE(connection_->call(pattern_request(1 << 20, 3), destination_, ample()).ok());
    ASSERT_TRUE(destination_ == pattern_payload(1 << 20));
  }

  PeerProcess peer_{GetParam().name};
  std::unique_ptr<UcxTransport> transport_;
  std::unique_ptr<TransportConnection> connection_;
  std::vector<std::byte> destination_ = std::vector<std::byte>(1 << 20);
};

TEST_P(UcxPeerLoss, ProcessesTalkOverTheChosenTransport) {
  EXPECT_EQ(connection_->transport_name(), GetParam().reported);
}

TEST_P(UcxPeerLoss, DeathBetweenCallsIsPeerLost) {
  peer_.kill();
  auto reply = connection_->call(pattern_request(100, 1), destination_, ample());
  ASSERT_FALSE(reply.ok());
  EXPECT_EQ(reply.error().code, Errc::kPeerLost) << reply.error().to_string();
}

TEST_P(UcxPeerLoss, DeathDuringACallIsPeerLostAndNamesThePeer) {
  auto reply = connection_->call("die", destination_, ample());
  ASSERT_FALSE(reply.ok());
  EXPECT_EQ(reply.error().code, Errc::kPeerLost) << reply.error().to_string();
  EXPECT_TRUE(reply.error().message.starts_with(peer_.address())) << reply.error().message;
}

INSTANTIATE_TEST_SUITE_P(Transports, UcxPeerLoss,
                         testing::Values(Choice{"auto", UcxTransports::kAuto, "shm"},
                                         Choice{"shm", UcxTransports::kSharedMemory, "shm"},
                                         Choice{"tcp", UcxTransports::kTcp, "tcp"}),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace millrace::comm
