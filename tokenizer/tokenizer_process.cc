// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/tokenizer_process.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <boost/json.hpp>
#include <cerrno>
#include <csignal>
#include <system_error>
#include <utility>

#include "tokenizer/reply_error.h"
#include "tokenizer/spawn.h"

namespace millrace::tokenizer {

namespace json = boost::json;

namespace {

constexpr std::chrono::milliseconds kLongestPoll{60'000};  // poll() counts in an int

bool would_block(int number) {
  return number == EAGAIN || number == EINTR;
}

}  // namespace

Result<TokenizerProcess> TokenizerProcess::start(const ProcessOptions& options) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return error(Errc::kIo, "socketpair: {}", std::generic_category().message(errno));
  }
  FileDescriptor own(ends[0]);
  const FileDescriptor childs(ends[1]);
  MR_ASSIGN_OR_RETURN(const pid_t pid, spawn_tokenizer(options, childs.get()));
  TokenizerProcess process(pid, std::move(own), options.interrupt);
  MR_RETURN_IF_ERROR(process.read_greeting(options));
  return process;
}

TokenizerProcess::TokenizerProcess(TokenizerProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      socket_(std::move(other.socket_)),
      interrupt_(other.interrupt_),
      num_ids_(other.num_ids_),
      library_(std::move(other.library_)) {}

TokenizerProcess& TokenizerProcess::operator=(TokenizerProcess&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(socket_, other.socket_);
  std::swap(interrupt_, other.interrupt_);
  std::swap(num_ids_, other.num_ids_);
  std::swap(library_, other.library_);
  return *this;
}

TokenizerProcess::~TokenizerProcess() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

// Leaves the process for the destructor to collect.
bool TokenizerProcess::alive() const {
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == 0;
}

Error TokenizerProcess::died() const {
  siginfo_t info{};
  // The socket closes a moment before the process can be waited for.
  const Deadline deadline = Deadline::after(std::chrono::seconds(1));
  while (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == 0 && !deadline.passed()) {
    ::poll(nullptr, 0, 1);
  }
  if (info.si_pid == 0) return {Errc::kUnavailable, "the tokenizer closed its connection"};
  return error(Errc::kUnavailable, "the tokenizer died: {} {}",
               info.si_code == CLD_EXITED ? "status" : "signal", info.si_status);
}

Result<void> TokenizerProcess::wait_for(short events, Deadline deadline) const {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.left());
    // poll() ignores a negative descriptor.
    std::array<pollfd, 2> ready{{{.fd = socket_.get(), .events = events, .revents = 0},
                                 {.fd = interrupt_, .events = POLLIN, .revents = 0}}};
    const int count =
        ::poll(ready.data(), ready.size(), static_cast<int>(std::min(left, kLongestPoll).count()));
    if (count > 0 && ready[1].revents != 0) return Error(Errc::kCancelled, "interrupted");
    if (count > 0) return {};
    if (count < 0 && errno != EINTR) {
      return error(Errc::kIo, "poll: {}", std::generic_category().message(errno));
    }
    if (deadline.passed()) return Error(Errc::kDeadlineExceeded, "the tokenizer did not answer");
  }
}

Result<void> TokenizerProcess::send(const char* bytes, size_t count, Deadline deadline) {
  while (count > 0) {
    MR_RETURN_IF_ERROR(wait_for(POLLOUT, deadline));
    const ssize_t sent = ::send(socket_.get(), bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && would_block(errno)) continue;
    if (sent < 0) return died();
    bytes += sent;
    count -= static_cast<size_t>(sent);
  }
  return {};
}

Result<void> TokenizerProcess::receive(char* bytes, size_t count, Deadline deadline) {
  while (count > 0) {
    MR_RETURN_IF_ERROR(wait_for(POLLIN, deadline));
    const ssize_t got = ::recv(socket_.get(), bytes, count, MSG_DONTWAIT);
    if (got < 0 && would_block(errno)) continue;
    if (got <= 0) return died();
    bytes += got;
    count -= static_cast<size_t>(got);
  }
  return {};
}

Result<Frame> TokenizerProcess::receive_frame(Deadline deadline) {
  std::array<char, kFrameLengthsBytes> bytes{};
  MR_RETURN_IF_ERROR(receive(bytes.data(), bytes.size(), deadline));
  MR_ASSIGN_OR_RETURN(const FrameLengths lengths, decode_lengths(bytes));
  Frame frame;
  frame.header.resize(static_cast<size_t>(lengths.header));
  MR_RETURN_IF_ERROR(receive(frame.header.data(), frame.header.size(), deadline));
  frame.body.resize(static_cast<size_t>(lengths.body));
  MR_RETURN_IF_ERROR(receive(frame.body.data(), frame.body.size(), deadline));
  return frame;
}

Result<Frame> TokenizerProcess::exchange(const Frame& request, Deadline deadline) {
  const auto lengths =
      encode_lengths({.header = std::ssize(request.header), .body = std::ssize(request.body)});
  MR_RETURN_IF_ERROR(send(lengths.data(), lengths.size(), deadline));
  MR_RETURN_IF_ERROR(send(request.header.data(), request.header.size(), deadline));
  MR_RETURN_IF_ERROR(send(request.body.data(), request.body.size(), deadline));
  return receive_frame(deadline);
}

Result<void> TokenizerProcess::read_greeting(const ProcessOptions& options) {
  const auto frame = receive_frame(Deadline::after(options.start_timeout));
  if (!frame.ok()) {
    return error(frame.error().code, "{}, {}: {}", options.python, options.directory,
                 frame.error().message);
  }
  MR_ASSIGN_OR_RETURN(const json::object greeting, read_header(*frame));
  const json::value* num_ids = greeting.if_contains("num_ids");
  const json::value* library = greeting.if_contains("library");
  if (num_ids == nullptr || !num_ids->is_int64() || library == nullptr || !library->is_string()) {
    return error(Errc::kCorrupt, "{} is no tokenizer: it said {:.200}", options.python,
                 frame->header);
  }
  num_ids_ = num_ids->get_int64();
  library_ = std::string(library->get_string());
  return {};
}

}  // namespace millrace::tokenizer
