// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/kvclient/rank_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string_view>

#include "common/check.h"

namespace millrace::test {

RankProcess::RankProcess(std::vector<std::string> command) {
  int input[2];
  int output[2];
  MR_CHECK(::pipe2(input, O_CLOEXEC) == 0 && ::pipe2(output, O_CLOEXEC) == 0, "pipe");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output[1], STDOUT_FILENO);
  std::vector<char*> arguments;
  for (auto& word : command) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  MR_CHECK(::posix_spawn(&pid_, arguments[0], &actions, nullptr, arguments.data(), environ) == 0,
           "spawn");
  posix_spawn_file_actions_destroy(&actions);
  ::close(input[0]);
  ::close(output[1]);
  input_ = FileDescriptor(input[1]);
  read_manifest(FileDescriptor(output[0]));
}

void RankProcess::kill() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

int64_t RankProcess::peak_bytes() const {
  const auto status = text_of_file(fmt::format("/proc/{}/status", pid_));
  const auto at = status.find("VmHWM:");
  MR_CHECK(at != std::string::npos, "no VmHWM");
  return std::atoll(status.c_str() + at + 6) * 1024;
}

void RankProcess::reset_peak() const {
  std::ofstream(fmt::format("/proc/{}/clear_refs", pid_)) << "5";
}

void RankProcess::read_manifest(const FileDescriptor& output) {
  constexpr std::string_view kKey = "manifest ";
  std::string line;
  for (char byte = 0; ::read(output.get(), &byte, 1) == 1;) {
    if (byte != '\n') {
      line += byte;
      continue;
    }
    if (line.starts_with(kKey)) {
      manifest_ = *kvclient::parse_manifest(line.substr(kKey.size()), "rank");
      return;
    }
    line.clear();
  }
  MR_CHECK(false, "the rank did not start");
}

std::string text_of_file(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace millrace::test
