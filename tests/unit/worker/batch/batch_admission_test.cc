// SPDX-License-Identifier: Apache-2.0
// Which lines of an input are run, and under which ids.
#include "worker/batch/batch_admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/batch/batch_command.h"

namespace millrace::worker {
namespace {

using ::testing::HasSubstr;

InputLine line(int64_t number, const std::string& text) {
  return {.number = number, .num_bytes = std::ssize(text), .text = text};
}

class BatchAdmissionTest : public testing::Test {
 protected:
  std::string id_of(int64_t number, const std::string& text) {
    const auto id = admission_.claim_id(line(number, text));
    return id.ok() ? *id : id.error().message;
  }
  // Why a line is not admitted; empty if it is.
  std::string refusal(const std::string& text) const {
    const auto prompt = admission_.admit(line(1, text));
    return prompt.ok() ? "" : prompt.error().message;
  }

  const engine::PromptLimits limits_ = {.vocab_size = 101, .max_prompt_tokens = 4};
  BatchOptions options_ = {.max_line_bytes = 80};
  BatchText text_{"/nowhere", "/nowhere/python3", limits_.vocab_size};
  BatchAdmission admission_{limits_, options_, text_};
};

TEST_F(BatchAdmissionTest, ALineGoesByItsIdOrItsNumber) {
  EXPECT_EQ(id_of(1, R"({"id":"a"})"), "a");
  EXPECT_EQ(id_of(2, "no json"), "line-2");
}

TEST_F(BatchAdmissionTest, AnIdIsTheFirstLinesThatHasIt) {
  EXPECT_EQ(id_of(1, R"({"id":"a"})"), "a");
  EXPECT_EQ(id_of(2, R"({"id":"a"})"), "id 'a' is already used by an earlier line of the input");
  EXPECT_EQ(id_of(3, R"({"id":"b"})"), "b");
}

TEST_F(BatchAdmissionTest, ALineThatTheModelCannotRunIsRefused) {
  EXPECT_EQ(refusal(R"({"id":"a","prompt_token_ids":[1,2,3,4]})"), "");
  EXPECT_THAT(refusal(R"({"id":"a","prompt_token_ids":[1,2,3,4,5]})"), HasSubstr("limit 4"));
  EXPECT_THAT(refusal(R"({"id":"a","prompt_token_ids":[101]})"), HasSubstr("101"));
  EXPECT_THAT(refusal(std::string(81, ' ')), HasSubstr("line of 81 bytes, limit 80"));
}

TEST_F(BatchAdmissionTest, ATextWithoutATokenizerFailsItsLine) {
  EXPECT_THAT(refusal(R"({"id":"a","text":"b"})"), HasSubstr("/nowhere/python3"));
  EXPECT_EQ(refusal(R"({"id":"a","prompt_token_ids":[1]})"), "");
}

TEST_F(BatchAdmissionTest, AnIdThatNamesNoDirectoryIsRefusedOnlyWhereItIsToNameOne) {
  const std::string text = R"({"id":"../a","prompt_token_ids":[1]})";
  EXPECT_EQ(refusal(text), "");
  options_.save_kv = true;
  EXPECT_THAT(refusal(text), HasSubstr("id '../a' cannot name a directory"));
}

TEST(BatchCommand, APromptArrivesAsItWasSent) {
  const BatchPrompt sent = {.id = "a",
                            .token_ids = {5, 0, 100},
                            .max_tokens = 7,
                            .ignore_eos = true,
                            .probe_positions = {0, 2}};
  const auto received = from_command(to_command(sent).run());
  EXPECT_EQ(received.id, sent.id);
  EXPECT_EQ(received.token_ids, sent.token_ids);
  EXPECT_EQ(received.max_tokens, sent.max_tokens);
  EXPECT_EQ(received.ignore_eos, sent.ignore_eos);
  EXPECT_EQ(received.probe_positions, sent.probe_positions);
}

}  // namespace
}  // namespace millrace::worker
