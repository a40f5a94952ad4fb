// SPDX-License-Identifier: Apache-2.0
// Processes and their queue, with a tokenizer that does what the text says: it dies, hangs or lies.
#include <gtest/gtest.h>

#include <filesystem>
#include <future>

#include "tests/support/temp_directory.h"
#include "tokenizer/text_messages.h"
#include "tokenizer/tokenizer.h"

namespace millrace::tokenizer {
namespace {

// The ids of a text are its bytes. `greeting` in its folder has the header of the first frame.
constexpr std::string_view kProgram = R"(#!/usr/bin/env python3
import array, json, os, resource, signal, socket, struct, sys
directory = sys.argv[2]
s = socket.socket(fileno=0)
def read(count):
    data = b""
    while len(data) < count:
        piece = s.recv(count - len(data))
        if not piece:
            sys.exit(0)
        data += piece
    return data
def send(header, body=b""):
    s.sendall(struct.pack("<II", len(header), len(body)) + header + body)
send(open(directory + "/greeting", "rb").read())
while True:
    header, body = (read(count) for count in struct.unpack("<II", read(8)))
    if body == b"die":
        os._exit(3)
    if body == b"hang":
        signal.pause()
    if body == b"lie":
        s.sendall(struct.pack("<II", 2, 1 << 31))
        signal.pause()
    if body == b"descriptors":
        body = json.dumps(sorted(os.listdir("/proc/self/fd"))).encode()
    send(b"{}", array.array("i", list(body)).tobytes())
)";

class TokenizerProcesses : public ::testing::Test {
 protected:
  TokenizerProcesses() {
    options_.process.python = directory_.write("fake", kProgram);
    std::filesystem::permissions(options_.process.python, std::filesystem::perms::owner_all);
    options_.process.directory = directory_.path();
    options_.processes = 1;
    options_.first_pause = std::chrono::milliseconds(1);
    greet(R"({"num_ids":256,"library":"fake 1"})");
  }

  void greet(const std::string& header) const { directory_.write("greeting", header); }

  void start() {
    auto created = Tokenizer::create(options_);
    ASSERT_TRUE(created.ok()) << created.error().message;
    tokenizer_ = std::move(created).value();
  }

  std::future<Result<Frame>> submit(const std::string& text, Duration patience = kPatience) {
    const auto promise = std::make_shared<std::promise<Result<Frame>>>();
    tokenizer_->submit(encode_request(text, true), Deadline::after(patience), promise,
                       [promise](Result<Frame> reply) { promise->set_value(std::move(reply)); });
    return promise->get_future();
  }

  // The ids, or the error's code.
  static std::variant<std::vector<int32_t>, Errc> outcome(std::future<Result<Frame>> reply) {
    if (reply.wait_for(2 * kPatience) != std::future_status::ready) return Errc::kInternal;
    const auto frame = reply.get();
    if (!frame.ok()) return frame.error().code;
    return encoded_ids(*frame, 256).value();
  }
  std::variant<std::vector<int32_t>, Errc> ask(const std::string& text) {
    return outcome(submit(text));
  }

  using Ids = std::variant<std::vector<int32_t>, Errc>;
  const Ids ab_ = std::vector<int32_t>{'a', 'b'};
  static constexpr std::chrono::seconds kPatience{30};
  test::TempDirectory directory_;
  TokenizerOptions options_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(TokenizerProcesses, AnswerInTurn) {
  start();
  EXPECT_EQ(tokenizer_->num_ids(), 256);
  EXPECT_EQ(tokenizer_->library(), "fake 1");
  auto first = submit("ab");
  auto second = submit("");
  EXPECT_EQ(outcome(std::move(first)), ab_);
  EXPECT_EQ(outcome(std::move(second)), Ids(std::vector<int32_t>()));
  const auto reply = tokenizer_->call(encode_request("ab", true), Deadline::after(kPatience));
  EXPECT_EQ(encoded_ids(*reply, 256).value(), std::get<0>(ab_));
}

TEST_F(TokenizerProcesses, ADeathCostsItsRequestAlone) {
  start();
  auto dies = submit("die");
  auto next = submit("ab");
  EXPECT_EQ(outcome(std::move(dies)), Ids(Errc::kUnavailable));
  EXPECT_EQ(outcome(std::move(next)), ab_);
  EXPECT_EQ(tokenizer_->health().replaced, 1);
  EXPECT_EQ(tokenizer_->health().ready, 1);
}

TEST_F(TokenizerProcesses, WhatHangsIsEndedAtTheDeadline) {
  start();
  auto hangs = submit("hang", std::chrono::milliseconds(50));
  auto next = submit("ab");
  EXPECT_EQ(outcome(std::move(hangs)), Ids(Errc::kDeadlineExceeded));
  EXPECT_EQ(outcome(std::move(next)), ab_);
}

TEST_F(TokenizerProcesses, AReplyThatIsNoFrameEndsTheProcess) {
  start();
  EXPECT_EQ(ask("lie"), Ids(Errc::kCorrupt));
  EXPECT_EQ(ask("ab"), ab_);
}

TEST_F(TokenizerProcesses, OneThatHangsDoesNotHoldUpAnother) {
  options_.processes = 2;
  start();
  auto hangs = submit("hang");
  EXPECT_EQ(ask("ab"), ab_);
  EXPECT_EQ(hangs.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
}

TEST_F(TokenizerProcesses, TheEndIsNotWaitedForAndIsTold) {
  start();
  auto hangs = submit("hang");
  auto waits = submit("ab");
  tokenizer_.reset();
  EXPECT_EQ(outcome(std::move(hangs)), Ids(Errc::kUnavailable));
  EXPECT_EQ(outcome(std::move(waits)), Ids(Errc::kUnavailable));
}

TEST_F(TokenizerProcesses, MoreThanMayWaitAreRefused) {
  options_.max_waiting = 0;
  start();
  EXPECT_EQ(ask("ab"), Ids(Errc::kExhausted));
}

TEST_F(TokenizerProcesses, WhatNobodyWantsAnyMoreIsNotAsked) {
  start();
  auto hangs = submit("hang", std::chrono::milliseconds(200));
  bool asked = false;
  {
    const auto wanted = std::make_shared<int>();
    tokenizer_->submit(encode_request("die", true), Deadline::after(kPatience), wanted,
                       [&asked](const Result<Frame>&) { asked = true; });
  }
  EXPECT_EQ(ask("ab"), ab_);
  EXPECT_FALSE(asked);
  EXPECT_EQ(tokenizer_->health().replaced, 1);  // for the one that hung
}

TEST_F(TokenizerProcesses, WhatTakesNoTimeGoesBeforeTexts) {
  start();
  auto hangs = submit("hang", std::chrono::milliseconds(200));
  std::string order;
  std::promise<void> both;
  const auto wanted = std::make_shared<int>();
  for (const auto& [name, turn] : {std::pair("text", Turn::kLast), {"next", Turn::kNext}}) {
    const std::string said = name;
    tokenizer_->submit(
        encode_request("ab", true), Deadline::after(kPatience), wanted,
        [&order, &both, said](const Result<Frame>&) {
          order += said + " ";
          if (order.size() > 5) both.set_value();
        },
        turn);
  }
  ASSERT_EQ(both.get_future().wait_for(kPatience), std::future_status::ready);
  EXPECT_EQ(order, "next text ");
}

TEST_F(TokenizerProcesses, WhatCannotBeLoadedIsToldAtTheStart) {
  greet(R"({"error":{"code":"corrupt","message":"/m/tokenizer.json: expected value"}})");
  const auto created = Tokenizer::create(options_);
  ASSERT_FALSE(created.ok());
  EXPECT_EQ(created.error().code, Errc::kCorrupt);
  EXPECT_EQ(created.error().message, "/m/tokenizer.json: expected value");
}

TEST_F(TokenizerProcesses, AProgramThatIsMissingIsNamed) {
  options_.process.python = "/nowhere/python3";
  const auto created = Tokenizer::create(options_);
  ASSERT_FALSE(created.ok());
  EXPECT_NE(created.error().message.find("/nowhere/python3"), std::string::npos);
}

TEST_F(TokenizerProcesses, AnotherVocabularyIsNotTakenUpLater) {
  start();
  greet(R"({"num_ids":512,"library":"fake 1"})");
  EXPECT_EQ(ask("die"), Ids(Errc::kUnavailable));
  EXPECT_EQ(ask("ab"), Ids(Errc::kUnavailable));
}

TEST_F(TokenizerProcesses, HaveNoDescriptorsOfTheirOwners) {
  const FileDescriptor leaky(::dup(STDERR_FILENO));
  start();
  const auto ids = std::get<0>(ask("descriptors"));
  std::string names;
  for (const int32_t byte : ids) names += static_cast<char>(byte);
  // The standard ones, the program, and the folder that is being listed.
  EXPECT_EQ(names, R"(["0", "1", "2", "3", "4"])");
}

}  // namespace
}  // namespace millrace::tokenizer
