// SPDX-License-Identifier: Apache-2.0
// A process that is forked before the test has threads, and begins when the test tells it
// something.
#pragma once

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <utility>

#include "common/check.h"
#include "common/system/file_descriptor.h"

namespace millrace::test {

class ChildProcess {
 public:
  // The process exits with the status that `body` returns.
  explicit ChildProcess(const std::function<int(const std::string& told)>& body) {
    int pipes[2];
    MR_CHECK(::pipe(pipes) == 0, "pipe");
    pid_ = ::fork();
    MR_CHECK(pid_ >= 0, "fork");
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::close(pipes[1]);
      std::string told;
      for (char c = 0; ::read(pipes[0], &c, 1) == 1;) told += c;
      ::_exit(body(told));
    }
    ::close(pipes[0]);
    to_ = FileDescriptor(pipes[1]);
  }
  ~ChildProcess() { kill(); }

  void tell(const std::string& text) {
    MR_CHECK(::write(to_.get(), text.data(), text.size()) == std::ssize(text), "write");
    to_ = FileDescriptor();
  }
  // Waits for the process to end and returns its exit status; -1 if a signal ended it.
  int status() {
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  void kill() {
    if (pid_ < 0) return;
    ::kill(pid_, SIGKILL);
    status();
  }

 private:
  pid_t pid_ = -1;
  FileDescriptor to_;
};

}  // namespace millrace::test
