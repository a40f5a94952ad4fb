// SPDX-License-Identifier: Apache-2.0
// The terminal's other screen, for as long as the object lives: afterwards the terminal is as it was,
// also after SIGINT and SIGTERM, which end the process. One at a time, on the main thread.
#pragma once

#include <termios.h>

#include <optional>
#include <string>

#include "common/clock.h"

namespace millrace::client {

class TerminalScreen {
 public:
  struct Size {
    int columns = 80;
    int rows = 24;
  };

  TerminalScreen();
  ~TerminalScreen();
  TerminalScreen(const TerminalScreen&) = delete;
  TerminalScreen& operator=(const TerminalScreen&) = delete;

  static Size size();
  // Replaces what the screen shows by `text`, whose lines fit it. False if nobody reads any more.
  bool show(const std::string& text);
  // Until the time is over, the size has changed, or a key was pressed. False if that was q.
  bool wait(Duration longest);
};

}  // namespace millrace::client
