// SPDX-License-Identifier: Apache-2.0
#include "coordinator/api/completion_json.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <limits>

namespace millrace::coordinator {
namespace {

namespace json = boost::json;

constexpr const char* kHead =
    R"({"id":"cmpl-r1","object":"text_completion","created":1700000000,"model":"m",)";
constexpr const char* kParams =
    R"("kv_transfer_params":{"millrace":{"request_id":"r1","lease_id":"lease-1",)"
    R"("prompt_sha256":"abc"}}})";
constexpr const char* kUsage =
    R"("usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4,"prompt_tokens_details":{"cached_tokens":0}})";

const AnsweredPrompt kPrompt{.sha256 = "abc", .token_ids = {}, .for_the_decoder = {}};

Request done() {
  Request request;
  request.id = std::string("r1");
  request.model = std::string("m");
  request.num_tokens = 3;
  protocol::PrefillDone message;
  protocol::Manifest& manifest = *message.mutable_manifest();
  manifest.set_first_token_id(13);
  manifest.set_lease_id("lease-1");
  const float logprobs[] = {-0.25F, -2, -std::numeric_limits<float>::infinity()};
  for (int i = 0; i < 3; ++i) {
    auto& token = *manifest.add_top_logprobs();
    token.set_token_id(13 + i);
    token.set_logprob(logprobs[i]);
  }
  request.result = std::make_shared<const protocol::PrefillDone>(std::move(message));
  return request;
}

std::string text(const CompletionOptions& options, const Request& request = done()) {
  return completion_text(request, options, {}, kPrompt, 1700000000);
}
std::string choices(const std::string& logprobs) {
  return fmt::format(R"("choices":[{{"index":0,"text":"","token_ids":[13],"logprobs":{},)"
                     R"("finish_reason":"length"}}],)",
                     logprobs);
}

TEST(CompletionJson, HasTheTokenTheUsageAndWhereTheCacheIs) {
  EXPECT_EQ(text({}), fmt::format("{}{}{},{}", kHead, choices("null"), kUsage, kParams));
}

TEST(CompletionJson, LogprobsListTheBestTokensById) {
  const auto listed = [](const std::string& top) {
    return fmt::format(R"({{"tokens":["token_id:13"],"token_logprobs":[-2.5E-1],)"
                       R"("top_logprobs":[{{{}}}],"text_offset":[0]}})",
                       top);
  };
  const std::string one = R"("token_id:13":-2.5E-1)";
  const std::string two = one + R"(,"token_id:14":-2E0)";
  const std::string all = two + R"(,"token_id:15":null)";  // JSON has no infinity
  for (const auto& [wanted, top] : {std::pair(0, one), {1, one}, {2, two}, {3, all}, {20, all}}) {
    const std::string answer = text({.logprobs = wanted});
    EXPECT_NE(answer.find(choices(listed(top))), std::string::npos) << wanted << " " << answer;
  }
}

TEST(CompletionJson, ATokenizersWordsTakeThePlaceOfIds) {
  const CompletionOptions options{.logprobs = 3};
  EXPECT_EQ(listed_tokens(done(), options), (std::vector<int32_t>{13, 13, 14, 15}));
  EXPECT_EQ(listed_tokens(done(), {}), std::vector<int32_t>());
  // If two tokens have the same text, the likelier one is listed.
  const CompletionWords words{.text = "a", .tokens = {"a", "a", "bytes:\\xe2", "a"}};
  const std::string answer = completion_text(done(), options, words, kPrompt, 1700000000);
  EXPECT_NE(answer.find(R"("text":"a",)"), std::string::npos) << answer;
  EXPECT_NE(answer.find(R"({"tokens":["a"],"token_logprobs":[-2.5E-1],)"
                        R"("top_logprobs":[{"a":-2.5E-1,"bytes:\\xe2":-2E0}],"text_offset":[0]})"),
            std::string::npos)
      << answer;
}

TEST(CompletionJson, WhoAsksForIdsGetsThem) {
  const CompletionWords words{.text = "a", .tokens = {"a", "a"}};
  const std::string answer =
      completion_text(done(), {.tokens_as_ids = true, .logprobs = 1}, words, kPrompt, 1700000000);
  EXPECT_NE(answer.find(R"("text":"a",)"), std::string::npos) << answer;
  EXPECT_NE(answer.find(R"("tokens":["token_id:13"])"), std::string::npos) << answer;
}

TEST(CompletionJson, AGroupThatListsNothingLeavesTheLogprobUnknown) {
  Request request = done();
  protocol::PrefillDone message = *request.result;
  message.mutable_manifest()->clear_top_logprobs();
  request.result = std::make_shared<const protocol::PrefillDone>(std::move(message));
  EXPECT_NE(text({.logprobs = 2}, request)
                .find(R"({"tokens":["token_id:13"],"token_logprobs":[null],"top_logprobs":[{}],)"),
            std::string::npos);
}

TEST(CompletionJson, AStreamIsOneEventAndItsEnd) {
  EXPECT_EQ(text({.stream = true}),
            fmt::format("data: {}{}{}\n\ndata: [DONE]\n\n", kHead, choices("null"), kParams));
}

TEST(CompletionJson, UsageInAStreamIsAnEventOfItsOwn) {
  EXPECT_EQ(text({.stream = true, .include_usage = true}),
            fmt::format("data: {0}{1}\"usage\":null,{2}\n\n"
                        "data: {0}\"choices\":[],{3}}}\n\ndata: [DONE]\n\n",
                        kHead, choices("null"), kParams, kUsage));
}

TEST(ChatJson, HasTheShapeOfAChat) {
  const CompletionWords words{.text = "é", .tokens = {"é", "é", "bytes:\\xe2"}};
  const auto answer = [&](const CompletionOptions& options) {
    return completion_text(done(), options, words, kPrompt, 1700000000);
  };
  const std::string head =
      R"({"id":"chatcmpl-r1","object":"chat.completion","created":1700000000,"model":"m",)";
  EXPECT_EQ(
      answer({.shape = AnswerShape::kChat}),
      fmt::format(R"({}"choices":[{{"index":0,"message":{{"role":"assistant","content":"é"}},)"
                  R"("token_ids":[13],"logprobs":null,"finish_reason":"length"}}],{},{})",
                  head, kUsage, kParams));
  const std::string chosen = R"("token":"é","logprob":-2.5E-1,"bytes":[195,169])";
  const std::string listed = answer({.logprobs = 2, .shape = AnswerShape::kChat});
  EXPECT_NE(
      listed.find(fmt::format(R"("logprobs":{{"content":[{{{},"top_logprobs":[{{{}}},)"
                              R"({{"token":"bytes:\\xe2","logprob":-2E0,"bytes":null}}]}}]}})",
                              chosen, chosen)),
      std::string::npos)
      << listed;
  EXPECT_NE(answer({.logprobs = 0, .shape = AnswerShape::kChat}).find(R"("top_logprobs":[])"),
            std::string::npos);
  EXPECT_NE(answer({.tokens_as_ids = true, .logprobs = 1, .shape = AnswerShape::kChat})
                .find(R"({"token":"token_id:13","logprob":-2.5E-1,"bytes":null})"),
            std::string::npos);
}

TEST(ChatJson, AStreamIsOfChunks) {
  const std::string events = completion_text(done(), {.stream = true, .shape = AnswerShape::kChat},
                                             {}, kPrompt, 1700000000);
  EXPECT_TRUE(events.starts_with(
      R"(data: {"id":"chatcmpl-r1","object":"chat.completion.chunk","created":1700000000,)"
      R"("model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""},)"))
      << events;
  EXPECT_TRUE(events.ends_with("data: [DONE]\n\n")) << events;
}

TEST(GenerateJson, HasVllmsFieldsAndNoText) {
  const CompletionOptions options{.logprobs = 1, .shape = AnswerShape::kGenerate};
  EXPECT_EQ(
      text(options),
      fmt::format(R"({{"request_id":"r1","created":1700000000,"model":"m","output_mode":"tokens",)"
                  R"("choices":[{{"index":0,"token_ids":[13],"logprobs":{{"content":[)"
                  R"({{"token_id":13,"logprob":-2.5E-1,)"
                  R"("top_logprobs":[{{"token_id":13,"logprob":-2.5E-1}}]}}]}},)"
                  R"("finish_reason":"length"}}],{},{})",
                  kUsage, kParams));
}

TEST(CompletionJson, ThePromptsIdsAreWhereVllmHasThem) {
  const AnsweredPrompt prompt{
      .sha256 = "abc", .token_ids = {4, 5, 6}, .for_the_decoder = {7, 8, 9}};
  const auto answer = [&](AnswerShape shape) {
    return json::parse(completion_text(done(), {.shape = shape}, {}, prompt, 1700000000));
  };
  const json::value ids{4, 5, 6};
  for (const auto shape : {AnswerShape::kCompletion, AnswerShape::kChat, AnswerShape::kGenerate}) {
    const json::value got = answer(shape);
    const bool in_choice = shape == AnswerShape::kCompletion;
    const json::value& choice = got.at("choices").at(0);
    EXPECT_EQ((in_choice ? choice : got).at("prompt_token_ids"), ids);
    EXPECT_EQ((in_choice ? got : choice).as_object().count("prompt_token_ids"), 0u);
    EXPECT_EQ(got.at("kv_transfer_params").at("prompt_token_ids"), (json::value{7, 8, 9}));
  }
}

TEST(CompletionJson, ADeclinedPromptLeadsToNoCache) {
  const auto declined = [](const CompletionOptions& options) {
    return declined_text("r1", "m", 3, options, Error(Errc::kExhausted, "full \xff"), 1700000000);
  };
  const std::string rest =
      R"("usage":{"prompt_tokens":3,"completion_tokens":0,"total_tokens":3,)"
      R"("prompt_tokens_details":{"cached_tokens":0}},"kv_transfer_params":{"millrace":false},)"
      R"("declined":{"type":"exhausted","message":"full �"}})";
  EXPECT_EQ(declined({}),
            kHead + (R"("choices":[{"index":0,"text":"","token_ids":[],"logprobs":null,)"
                     R"("finish_reason":"abort"}],)" +
                     rest));
  const std::string events = declined({.stream = true, .shape = AnswerShape::kGenerate});
  EXPECT_TRUE(events.starts_with(R"(data: {"request_id":"r1",)")) << events;
  EXPECT_TRUE(events.ends_with("\n\ndata: [DONE]\n\n")) << events;
}

TEST(CompletionJson, ProgressIsAnEventWithoutAChoice) {
  Request request = done();
  request.state = RequestState::kRunning;
  request.num_tokens = 1000;
  request.foreseen_tokens = 200;
  request.num_layers = 4;
  request.layer_density = {0.5, 0.5, 0.5};
  const TimePoint later = request.queued_at + std::chrono::milliseconds(1500);
  EXPECT_EQ(completion_progress(request, {.stream = true}, 1700000000, later),
            fmt::format("data: {}\"choices\":[],\"prompt_progress\":{{\"status\":\"running\","
                        "\"total\":1000,\"cache\":200,\"processed\":800,\"time_ms\":1500,"
                        "\"layers_done\":3,\"num_layers\":4}}}}\n\n",
                        kHead));
  // What an earlier group had done does not count.
  request.state = RequestState::kQueued;
  EXPECT_NE(completion_progress(request, {}, 1700000000, later).find(R"("processed":0,)"),
            std::string::npos);
}

}  // namespace
}  // namespace millrace::coordinator
