// SPDX-License-Identifier: Apache-2.0
#include "common/logging/log_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <deque>
#include <string>
#include <vector>

#include "common/log.h"
#include "common/logging/log_sink.h"
#include "common/system/file_descriptor.h"

namespace millrace {
namespace {

struct Pipe {
  Pipe() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
    reader = FileDescriptor(ends[0]);
    writer = FileDescriptor(ends[1]);
  }

  std::string read_line() const {
    std::string line;
    for (char c = 0; ::read(reader.get(), &c, 1) == 1 && c != '\n';) line += c;
    return line;
  }

  // All lines up to and including the one that is `last`.
  std::vector<std::string> read_until(const std::string& last) const {
    std::vector<std::string> lines;
    do {
      lines.push_back(read_line());
    } while (lines.back() != last);
    return lines;
  }

  FileDescriptor reader, writer;
};

// Never closed: a writer that nobody reads leaves its thread behind, which would write what is left to
// whatever the next test opened under the same number.
const Pipe& lasting_pipe() {
  static std::deque<Pipe> pipes;
  return pipes.emplace_back();
}

std::string gap(int64_t num_lines) {
  return std::to_string(num_lines) + " missing\n";
}

TEST(LogWriter, WritesLinesInOrder) {
  const Pipe pipe;
  LogWriter writer(pipe.writer.get(), kMaxLogBytes, nullptr);
  writer.write("a\n", gap);
  writer.write("b\n", gap);
  EXPECT_EQ(pipe.read_until("b"), (std::vector<std::string>{"a", "b"}));
}

// Far more than a pipe and the writer's memory hold: were a line waited for, this would never end.
TEST(LogWriter, LeavesLinesOutAndCountsThemWhileNobodyReads) {
  constexpr int64_t kLines = 10'000;
  const Pipe pipe;
  std::atomic<int64_t> left_out{0};
  LogWriter writer(pipe.writer.get(), 64 << 10, &left_out);
  const std::string text(99, 'x');
  for (int64_t i = 0; i < kLines; ++i) writer.write(text + "\n", gap);
  EXPECT_GT(left_out.load(), 0);
  // Every line is there, or one that says how many are missing stands where it would be. There is
  // more than one such line if the pipe takes the first lines while others are still being logged.
  int64_t missing = 0;
  for (int64_t found = 0; found + missing < kLines;) {
    const std::string line = pipe.read_line();
    if (line == text) {
      ++found;
    } else {
      missing += std::stoll(line);
    }
  }
  EXPECT_EQ(missing, left_out.load());
}

TEST(LogWriter, AReaderThatHasGoneCostsOnlyItsLines) {
  std::signal(SIGPIPE, SIG_IGN);
  Pipe pipe;
  pipe.reader = FileDescriptor();
  std::atomic<int64_t> left_out{0};
  LogWriter writer(pipe.writer.get(), kMaxLogBytes, &left_out);
  writer.write("a\nb\n", gap);
  EXPECT_TRUE(writer.flush(Deadline::after(std::chrono::minutes(1))));
  EXPECT_EQ(left_out.load(), 2);
}

TEST(LogWriter, EndsAlthoughNobodyReads) {
  const Pipe& pipe = lasting_pipe();
  {
    LogWriter writer(pipe.writer.get(), kMaxLogBytes, nullptr);
    writer.write(std::string(kMaxLogBytes / 2, 'x') + "\n", gap);
  }
  SUCCEED();
}

TEST(LogWriter, FlushEndsAtItsDeadlineWhileNobodyReads) {
  const Pipe& pipe = lasting_pipe();
  LogWriter writer(pipe.writer.get(), kMaxLogBytes, nullptr);
  writer.write(std::string(kMaxLogBytes / 2, 'x') + "\n", gap);
  EXPECT_FALSE(writer.flush(Deadline::after(std::chrono::milliseconds(1))));
}

// A descriptor may have been made non-blocking by another process that shares it.
TEST(LogWriter, WaitsForADescriptorThatDoesNotBlock) {
  const Pipe pipe;
  ASSERT_EQ(::fcntl(pipe.writer.get(), F_SETFL, O_NONBLOCK), 0);
  LogWriter writer(pipe.writer.get(), kMaxLogBytes, nullptr);
  const std::string large(200'000, 'x');
  writer.write(large + "\n", gap);
  writer.write("end\n", gap);
  EXPECT_EQ(pipe.read_until("end"), (std::vector<std::string>{large, "end"}));
}

TEST(LogSink, NoTextCanForgeALineOrTurnItAround) {
  const Pipe pipe;
  spdlog::logger logger("test",
                        std::make_shared<LogSink>(
                            std::make_unique<LogWriter>(pipe.writer.get(), kMaxLogBytes, nullptr),
                            /*colours=*/false));
  logger.set_pattern("%l %v");
  logger.info("group '{}'", "a\nerror forged\x1b[2J\u202e");
  logger.warn("end");
  EXPECT_EQ(
      pipe.read_until("warning end"),
      (std::vector<std::string>{R"(info group 'a\nerror forged\x1b[2J\u202e')", "warning end"}));
}

}  // namespace
}  // namespace millrace
