// SPDX-License-Identifier: Apache-2.0
#include "worker/batch/batch_prompt.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <limits>

namespace millrace::worker {
namespace {

TEST(BatchPrompt, ReadsAllFieldsAndIgnoresOthers) {
  const auto prompt = parse_batch_prompt(
      R"({"id":"a","prompt_token_ids":[1,2,3],"max_tokens":4,"probe_positions":[0,2],
          "probe_target_ids":[7,2],"ignore_eos":true,"note":"x"})");
  ASSERT_TRUE(prompt.ok()) << prompt.error().to_string();
  EXPECT_EQ(prompt->id, "a");
  EXPECT_EQ(prompt->token_ids, (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(prompt->max_tokens, 4);
  EXPECT_TRUE(prompt->ignore_eos);
  EXPECT_EQ(prompt->probe_positions, (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(prompt->probe_target_ids, (std::vector<int32_t>{7, 2}));
}

TEST(BatchPrompt, MayBeText) {
  for (const char* name : {"text", "prompt"}) {
    const auto prompt = parse_batch_prompt(
        fmt::format(R"({{"id":"a","{}":"b c","add_special_tokens":false}})", name));
    ASSERT_TRUE(prompt.ok()) << prompt.error().to_string();
    EXPECT_EQ(prompt->text, "b c");
    EXPECT_FALSE(prompt->add_special_tokens);
  }
  // A text next to token ids is a note for readers, and is ignored.
  const auto ids = parse_batch_prompt(R"({"id":"a","prompt_token_ids":[1],"prompt":"b"})");
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(ids->text, std::nullopt);
}

TEST(BatchPrompt, NamesTheFieldThatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"{", "not JSON"},
      {"\xef\xbb\xbf{}", "byte order mark of UTF-8"},
      {R"({"id":"\ud800","prompt_token_ids":[1]})", "half of a surrogate pair"},
      {"[1]", "not a JSON object"},
      {R"({"prompt_token_ids":[1]})", "id"},
      {R"({"id":7,"prompt_token_ids":[1]})", "id"},
      {R"({"id":"a"})", "prompt_token_ids: missing"},
      {R"({"id":"a","text":7})", "prompt_token_ids: missing"},
      {R"({"id":"a","text":"b","prompt_token_ids":[1]})", "not both"},
      {R"({"id":"a","text":"b","probe_positions":[0]})", "probe_positions: are of"},
      {R"({"id":"a","text":"b","add_special_tokens":1})", "add_special_tokens: 1"},
      {R"({"id":"a","prompt_token_ids":"1 2"})", "prompt_token_ids: not an array"},
      {R"({"id":"a","prompt_token_ids":[1,-2]})", "prompt_token_ids: -2"},
      {R"({"id":"a","prompt_token_ids":[1,2147483648]})", "2147483648"},
      {R"({"id":"a","prompt_token_ids":[1.5]})", "prompt_token_ids"},
      {R"({"id":"a","prompt_token_ids":[1],"max_tokens":0})", "max_tokens: 0"},
      {R"({"id":"a","prompt_token_ids":[1],"max_tokens":1000000})", "max_tokens"},
      {R"({"id":"a","prompt_token_ids":[1],"ignore_eos":1})", "ignore_eos: 1"},
      {R"({"id":"a","prompt_token_ids":[1,2],"probe_positions":[1,0]})", "0 comes after 1"},
      {R"({"id":"a","prompt_token_ids":[1,2],"probe_positions":[1,1]})", "1 comes after 1"},
      {R"({"id":"a","prompt_token_ids":[1,2],"probe_positions":[2]})", "2 is outside"},
      {R"({"id":"a","prompt_token_ids":[1,2],"probe_positions":[0,1],"probe_target_ids":[5]})",
       "probe_target_ids: has 1 entries for 2"},
      {R"({"id":"a","prompt_token_ids":[1,2],"probe_target_ids":[5]})",
       "probe_target_ids: has 1 entries for"},
      {R"({"id":"a","prompt_token_ids":[1],"probe_positions":[0],"probe_target_ids":[-5]})",
       "probe_target_ids: -5"},
      {"{\"id\":\"a\",\"x\":[[[[[[[[[[1]]]]]]]]]],\"prompt_token_ids\":[1]}", "not JSON"},
  };
  for (const auto& [line, expected] : cases) {
    const auto prompt = parse_batch_prompt(line);
    ASSERT_FALSE(prompt.ok()) << line;
    EXPECT_EQ(prompt.error().code, Errc::kInvalidArgument);
    EXPECT_NE(prompt.error().message.find(expected), std::string::npos)
        << line << " -> " << prompt.error().message;
  }
}

TEST(BatchResult, LineHoldsWhatTheReaderNeeds) {
  const BatchResult result{.num_tokens = 3,
                           .generated_token_ids = {9, 8},
                           .finish_reason = "stop",
                           .top_tokens = {{9, 2.5F, -0.25F}},
                           .probe_token_ids = {4},
                           .probe_logprobs = {-0.5, -std::numeric_limits<double>::infinity()},
                           .density = 0.5,
                           .recall = 1,
                           .recall_p01 = 1,
                           .total_s = 2};
  const auto line = boost::json::parse(batch_result_line("a", result)).as_object();
  EXPECT_EQ(line.at("status"), "ok");
  EXPECT_TRUE(line.at("error").is_null());
  EXPECT_EQ(line.at("generated_token_ids").as_array().size(), 2U);
  EXPECT_EQ(line.at("finish_reason"), "stop");
  EXPECT_EQ(line.at("top_logprobs").as_array()[0].as_array()[1].as_double(), -0.25);
  EXPECT_EQ(line.at("top_logits").as_array()[0].as_array()[1].as_double(), 2.5);
  EXPECT_EQ(line.at("probe_logprobs").as_array()[0].as_double(), -0.5);
  EXPECT_TRUE(line.at("probe_logprobs").as_array()[1].is_null());
  EXPECT_EQ(line.at("seconds").as_object().at("total").as_double(), 2);
  EXPECT_FALSE(line.contains("recall_by_head"));
}

TEST(BatchResult, RecallByHeadHasARowForEachLayer) {
  BatchResult result{.recall_by_head = engine::HeadRecalls(2, 3)};
  result.recall_by_head.at(1, 2).add(0.25F);
  result.recall_by_head.at(1, 2).add(0.75F);
  const auto line = boost::json::parse(batch_result_line("a", result));
  EXPECT_EQ(line.at("recall_by_head"),
            boost::json::parse(R"({"mean": [[1.0, 1.0, 1.0], [1.0, 1.0, 0.5]],
                                   "least": [[1.0, 1.0, 1.0], [1.0, 1.0, 0.25]]})"));
}

}  // namespace
}  // namespace millrace::worker
