// SPDX-License-Identifier: Apache-2.0
#include "coordinator/api/completion_json.h"

#include <gtest/gtest.h>

#include <limits>

namespace millrace::coordinator {
namespace {

constexpr const char* kHead =
    R"({"id":"cmpl-r1","object":"text_completion","created":1700000000,"model":"m",)";
constexpr const char* kParams =
    R"("kv_transfer_params":{"millrace":{"request_id":"r1","lease_id":"lease-1",)"
    R"("prompt_sha256":"abc"}}})";
constexpr const char* kUsage =
    R"("usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4,"prompt_tokens_details":{"cached_tokens":0}})";

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
  return completion_text(request, options, {}, "abc", 1700000000);
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
  const std::string answer = completion_text(done(), options, words, "abc", 1700000000);
  EXPECT_NE(answer.find(R"("text":"a",)"), std::string::npos) << answer;
  EXPECT_NE(answer.find(R"({"tokens":["a"],"token_logprobs":[-2.5E-1],)"
                        R"("top_logprobs":[{"a":-2.5E-1,"bytes:\\xe2":-2E0}],"text_offset":[0]})"),
            std::string::npos)
      << answer;
}

TEST(CompletionJson, WhoAsksForIdsGetsThem) {
  const CompletionWords words{.text = "a", .tokens = {"a", "a"}};
  const std::string answer =
      completion_text(done(), {.tokens_as_ids = true, .logprobs = 1}, words, "abc", 1700000000);
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
    return completion_text(done(), options, words, "abc", 1700000000);
  };
  const std::string head =
      R"({"id":"chatcmpl-r1","object":"chat.completion","created":1700000000,"model":"m",)";
  EXPECT_EQ(
      answer({.is_chat = true}),
      fmt::format(R"({}"choices":[{{"index":0,"message":{{"role":"assistant","content":"é"}},)"
                  R"("token_ids":[13],"logprobs":null,"finish_reason":"length"}}],{},{})",
                  head, kUsage, kParams));
  const std::string chosen = R"("token":"é","logprob":-2.5E-1,"bytes":[195,169])";
  const std::string listed = answer({.logprobs = 2, .is_chat = true});
  EXPECT_NE(
      listed.find(fmt::format(R"("logprobs":{{"content":[{{{},"top_logprobs":[{{{}}},)"
                              R"({{"token":"bytes:\\xe2","logprob":-2E0,"bytes":null}}]}}]}})",
                              chosen, chosen)),
      std::string::npos)
      << listed;
  EXPECT_NE(answer({.logprobs = 0, .is_chat = true}).find(R"("top_logprobs":[])"),
            std::string::npos);
  EXPECT_NE(answer({.tokens_as_ids = true, .logprobs = 1, .is_chat = true})
                .find(R"({"token":"token_id:13","logprob":-2.5E-1,"bytes":null})"),
            std::string::npos);
}

TEST(ChatJson, AStreamIsOfChunks) {
  const std::string events =
      completion_text(done(), {.stream = true, .is_chat = true}, {}, "abc", 1700000000);
  EXPECT_TRUE(events.starts_with(
      R"(data: {"id":"chatcmpl-r1","object":"chat.completion.chunk","created":1700000000,)"
      R"("model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""},)"))
      << events;
  EXPECT_TRUE(events.ends_with("data: [DONE]\n\n")) << events;
}

}  // namespace
}  // namespace millrace::coordinator
