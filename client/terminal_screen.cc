// SPDX-License-Identifier: Apache-2.0
#include "client/terminal_screen.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <string_view>

namespace millrace::client {

namespace {

constexpr std::string_view kEnter = "\x1b[?1049h\x1b[?25l";  // the other screen, without a cursor
constexpr std::string_view kLeave = "\x1b[?25h\x1b[?1049l";

// For the handler of signals, which may call write(), tcsetattr() and _exit().
struct Before {
  bool has_keys = false;
  termios keys{};
};
Before before;

bool write_all(std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(STDOUT_FILENO, text.data(), text.size());
    if (count < 0 && errno != EINTR) return false;
    if (count > 0) text.remove_prefix(static_cast<size_t>(count));
  }
  return true;
}

void leave() {
  write_all(kLeave);
  if (before.has_keys) ::tcsetattr(STDIN_FILENO, TCSANOW, &before.keys);
}

extern "C" void end_by_signal(int signal) {
  leave();
  ::_exit(128 + signal);
}

// Only interrupts poll().
extern "C" void note_size(int) {}

void handle(int signal, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  ::sigaction(signal, &action, nullptr);
}

}  // namespace

TerminalScreen::TerminalScreen() {
  before.has_keys = ::tcgetattr(STDIN_FILENO, &before.keys) == 0;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) handle(signal, end_by_signal);
  handle(SIGWINCH, note_size);
  if (before.has_keys) {
    termios keys = before.keys;
    keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    keys.c_cc[VSUSP] = _POSIX_VDISABLE;  // a stopped process would leave the terminal like this
    ::tcsetattr(STDIN_FILENO, TCSANOW, &keys);
  }
  write_all(kEnter);
}

TerminalScreen::~TerminalScreen() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGWINCH}) handle(signal, SIG_DFL);
  leave();
}

TerminalScreen::Size TerminalScreen::size() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) {
    return {};
  }
  return {.columns = size.ws_col, .rows = size.ws_row};
}

// Each line is cleared behind its text, so that nothing flickers.
bool TerminalScreen::show(const std::string& text) {
  std::string out = "\x1b[H";
  std::string_view rest = text;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    out += rest.substr(0, end);
    out += "\x1b[K";
    rest.remove_prefix(std::min(end + 1, rest.size()));
    // A line end on the last row would move all others up.
    if (!rest.empty()) out += "\r\n";
  }
  return write_all(out + "\x1b[J");
}

bool TerminalScreen::wait(Duration longest) {
  using std::chrono::milliseconds;
  const auto ms = std::chrono::duration_cast<milliseconds>(longest).count();
  pollfd keys{.fd = before.has_keys ? STDIN_FILENO : -1, .events = POLLIN, .revents = 0};
  if (::poll(&keys, 1, static_cast<int>(ms)) <= 0) return true;
  char key = 0;
  const ssize_t count = ::read(STDIN_FILENO, &key, 1);
  return count > 0 ? key != 'q' : count < 0 && errno == EINTR;
}

}  // namespace millrace::client
