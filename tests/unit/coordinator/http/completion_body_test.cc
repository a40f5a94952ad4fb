// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "coordinator/api/api_error.h"
#include "coordinator/api/parse_completion.h"

namespace millrace::coordinator {
namespace {

ParsedCompletionBody parse(std::string_view text, PrefillBodyLimits limits = {}) {
  return parse_completion(text, limits);
}
// A body with more than the required fields.
ParsedCompletionBody with(const std::string& more) {
  return parse(R"({"model":"m","prompt":[1],)" + more + "}");
}
// "param: message" of a refusal.
std::string refusal(const ParsedCompletionBody& parsed) {
  const auto* wrong = std::get_if<Refusal>(&parsed);
  return wrong ? wrong->field + ": " + wrong->error.message : "accepted";
}
const CompletionBody& accepted(const ParsedCompletionBody& parsed) {
  EXPECT_TRUE(std::holds_alternative<CompletionBody>(parsed)) << refusal(parsed);
  return std::get<CompletionBody>(parsed);
}

TEST(CompletionBody, IsAPrefillWithOptionsOfItsOwn) {
  const auto parsed = parse(R"({"model":"m","prompt":[0,1,2147483647],"request_id":"r1","n":1,
      "max_tokens":1,"stream":true,"stream_options":{"include_usage":true},"logprobs":5,
      "millrace":{"head_plan":"dense","min_recall":0.5,"deadline_ms":5,"lease_ms":6}})");
  const CompletionBody& body = accepted(parsed);
  EXPECT_EQ(body.prefill.model, "m");
  EXPECT_EQ(body.prefill.request_id, "r1");
  EXPECT_EQ(body.prefill.prompt_token_ids, (std::vector<int32_t>{0, 1, 2147483647}));
  EXPECT_EQ(body.prefill.options.head_plan(), "dense");
  EXPECT_EQ(body.prefill.options.min_recall(), 0.5);
  EXPECT_EQ(body.prefill.options.deadline_ms(), 5u);
  EXPECT_EQ(body.prefill.options.lease_ms(), 6u);
  EXPECT_FALSE(body.prefill.stream);  // there are no events of a prefill in this answer
  EXPECT_TRUE(body.options.stream);
  EXPECT_TRUE(body.options.include_usage);
  EXPECT_EQ(body.options.logprobs, 5);
}

TEST(CompletionBody, TakesWhatRoutersSend) {
  // As vLLM's proxies and llm-d's sidecar send it, with a client's fields that they pass on.
  const auto parsed = parse(R"({"model":"m","prompt":[1,2],"temperature":0.7,"top_p":0.9,"seed":3,
      "stop":["\n","END"],"user":"u","logit_bias":{"7":-100},"min_tokens":0,"ignore_eos":true,
      "response_format":{"type":"json_schema","json_schema":{"model":5,"prompt":["x",{"n":2}]}},
      "kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,
        "remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null},
      "stream":false,"max_tokens":1,"max_completion_tokens":1,"cache_hit_threshold":0,
      "vllm_xargs":{"deep":[[[{"max_tokens":99}]]]}})");
  EXPECT_EQ(accepted(parsed).prefill.prompt_token_ids, (std::vector<int32_t>{1, 2}));
}

TEST(CompletionBody, APromptMayBeTheOnlyOneOfAList) {
  EXPECT_EQ(accepted(parse(R"({"model":"m","prompt":[[4,5]]})")).prefill.prompt_token_ids,
            (std::vector<int32_t>{4, 5}));
  const auto prompt = [](const std::string& text) {
    return refusal(parse(R"({"model":"m","prompt":)" + text + "}"));
  };
  const std::string several =
      "prompt: 'prompt' must be text or a list of token ids, not several prompts";
  for (const char* text : {"[[1],[2]]", "[1,[2]]", "[[1],2]", "[[1,[2]]]", "[[],[1]]"}) {
    EXPECT_EQ(prompt(text), several) << text;
  }
  for (const char* text : {"[]", "[[]]", "null"}) {
    EXPECT_EQ(prompt(text), "prompt: the prompt is empty") << text;
  }
  EXPECT_EQ(prompt("[1,-1]"), "prompt: prompt[1] is -1; token ids are 0 to 2147483647");
  EXPECT_EQ(prompt("[1.5]"),
            "prompt: 'prompt' must be an array of integers, not an array with a number with a "
            "fraction or exponent");
  EXPECT_EQ(prompt("{}"), "prompt: 'prompt' must be text or a list of token ids, not an object");
  EXPECT_EQ(prompt("[{}]"), "prompt: 'prompt' must be text or a list of token ids, not an object");
  EXPECT_EQ(prompt("7"), "prompt: 'prompt' must be text or a list of token ids, not a number");
}

TEST(CompletionBody, APromptMayBeText) {
  for (const char* prompt : {R"("a\u0000\ud83d\ude00")", R"(["a\u0000\ud83d\ude00"])"}) {
    const auto parsed = parse(fmt::format(R"({{"model":"m","prompt":{}}})", prompt));
    EXPECT_EQ(accepted(parsed).prefill.text, std::string("a\0\xf0\x9f\x98\x80", 6)) << prompt;
    EXPECT_TRUE(accepted(parsed).prefill.add_special_tokens);
    EXPECT_EQ(accepted(parsed).prefill.prompt_name, "prompt");
  }
  EXPECT_EQ(accepted(parse(R"({"model":"m","prompt":""})")).prefill.text, "");
  EXPECT_FALSE(accepted(parse(R"({"model":"m","prompt":"a","add_special_tokens":false})"))
                   .prefill.add_special_tokens);
  EXPECT_EQ(accepted(parse(R"({"model":"m","prompt":[1]})")).prefill.text, std::nullopt);
}

TEST(CompletionBody, TextAmongOthersIsSeveralPrompts) {
  for (const char* prompt : {R"(["a","b"])", R"(["a",1])", R"([1,"a"])", R"([[1],"a"])",
                             R"(["a",[1]])", R"(["a",[]])"}) {
    EXPECT_EQ(refusal(parse(fmt::format(R"({{"model":"m","prompt":{}}})", prompt))),
              "prompt: 'prompt' must be text or a list of token ids, not several prompts")
        << prompt;
  }
  EXPECT_EQ(refusal(parse(R"({"model":"m","prompt":[["a"]]})")),
            "prompt: 'prompt' must be an array of integers, not an array with a string");
}

TEST(CompletionBody, TextHasALimit) {
  PrefillBodyLimits limits;
  limits.max_text_bytes = 3;
  accepted(parse_completion(R"({"model":"m","prompt":"abc"})", limits));
  EXPECT_EQ(refusal(parse_completion(R"({"model":"m","prompt":"abcd"})", limits)),
            "prompt: 'prompt' of 4 bytes of text, limit 3");
}

TEST(CompletionBody, WhatOneTokenCannotStandForIsRefusedByName) {
  const std::string why = ": a prefill has one prompt and answers with the one token after it";
  for (const char* name : {"max_tokens", "max_completion_tokens", "n", "best_of"}) {
    for (const char* value : {"16", "0", "-1", "1.0", "\"1\"", "true", "[1]", "{}"}) {
      EXPECT_EQ(refusal(with(fmt::format(R"("{}":{})", name, value))),
                fmt::format("{0}: '{0}' must be 1{1}", name, why));
    }
    accepted(with(fmt::format(R"("{}":1)", name)));
  }
  for (const char* name : {"echo", "use_beam_search"}) {
    EXPECT_EQ(refusal(with(fmt::format(R"("{}":true)", name))),
              fmt::format("{0}: '{0}' must be false{1}", name, why));
    accepted(with(fmt::format(R"("{}":false)", name)));
  }
  for (const char* name :
       {"suffix", "prompt_embeds", "prompt_logprobs", "truncate_prompt_tokens"}) {
    for (const char* value : {"\"x\"", "0", "[\"x\"]"}) {
      EXPECT_EQ(refusal(with(fmt::format(R"("{}":{})", name, value))),
                fmt::format("{0}: '{0}' must be null{1}", name, why));
    }
  }
}

TEST(CompletionBody, NullIsAsIfAFieldWereNotThere) {
  const auto parsed = with(R"("max_tokens":null,"echo":null,"suffix":null,"stream":null,
      "stream_options":null,"logprobs":null,"request_id":null,"millrace":null)");
  EXPECT_FALSE(accepted(parsed).options.stream);
  EXPECT_EQ(accepted(parsed).options.logprobs, std::nullopt);
  const auto inside =
      with(R"("stream_options":{"include_usage":null,"continuous_usage_stats":[1]})");
  EXPECT_FALSE(accepted(inside).options.include_usage);
  EXPECT_EQ(refusal(parse(R"({"model":null,"prompt":[1]})")), "model: 'model' is missing");
}

TEST(CompletionBody, NamesTheFieldThatIsOfTheWrongTypeRepeatedOrUnknown) {
  EXPECT_EQ(refusal(parse(R"({"model":3})")), "model: 'model' must be a string, not a number");
  EXPECT_EQ(refusal(with(R"("stream":"yes")")),
            "stream: 'stream' must be true or false, not a string");
  EXPECT_EQ(refusal(with(R"("stream":[true])")),
            "stream: 'stream' must be true or false, not an array");
  EXPECT_EQ(refusal(with(R"("stream_options":true)")),
            "stream_options: 'stream_options' must be an object, not a boolean");
  EXPECT_EQ(refusal(with(R"("stream_options":{"include_usage":1})")),
            "stream_options.include_usage: 'stream_options.include_usage' must be true or false, "
            "not a number");
  EXPECT_EQ(refusal(with(R"("logprobs":-1)")),
            "logprobs: 'logprobs' must be an integer from 0 on, not negative");
  EXPECT_EQ(refusal(with(R"("logprobs":true)")),
            "logprobs: 'logprobs' must be an integer from 0 on, not a boolean");
  EXPECT_EQ(refusal(with(R"("request_id":"a/b")")).substr(0, 12), "request_id: ");
  EXPECT_EQ(refusal(with(R"("prompt":[1])")), "prompt: field 'prompt' given twice");
  EXPECT_EQ(refusal(with(R"("n":1,"n":1)")), "n: field 'n' given twice");
}

TEST(CompletionBody, ThePriorityIsWhereVllmHasItOrMillracesAlone) {
  const auto priority_of = [](const std::string& fields) {
    return accepted(with(fields)).prefill.options.priority();
  };
  EXPECT_EQ(priority_of(R"("priority":-2)"), -2);
  EXPECT_EQ(priority_of(R"("priority":null)"), 0);
  EXPECT_EQ(priority_of(R"("millrace":{"priority":7})"), 7);
  EXPECT_EQ(priority_of(R"("priority":null,"millrace":{"priority":7})"), 7);
  EXPECT_EQ(refusal(with(R"("priority":1,"millrace":{"priority":7})")),
            "millrace.priority: field 'millrace.priority' given twice");
  EXPECT_EQ(refusal(with(R"("millrace":{"priority":7},"priority":1)")),
            "priority: field 'priority' given twice");
  EXPECT_EQ(refusal(with(R"("priority":null,"priority":1)")),
            "priority: field 'priority' given twice");
  EXPECT_EQ(refusal(with(R"("priority":1001)")),
            "priority: 'priority' is 1001; must be -1000 to 1000");
  EXPECT_EQ(refusal(with(R"("priority":"high")")),
            "priority: 'priority' must be an integer, not a string");
  EXPECT_EQ(refusal(with(R"("priority":[1])")),
            "priority: 'priority' must be an integer, not an array");
}

TEST(CompletionBody, OptionsOfMillraceAreCheckedAsThoseOfAPrefill) {
  const auto millrace = [](const std::string& text) {
    return refusal(with(R"("millrace":)" + text));
  };
  EXPECT_EQ(millrace(R"({"lease_ms":0})"),
            "millrace.lease_ms: 'millrace.lease_ms' is 0; must be 1 to 86400000");
  EXPECT_EQ(millrace(R"({"lease_ms":"5"})"),
            "millrace.lease_ms: 'millrace.lease_ms' must be an integer, not a string");
  EXPECT_EQ(millrace(R"({"lease_ms":null})"),
            "millrace.lease_ms: 'millrace.lease_ms' must be an integer, not null");
  EXPECT_EQ(millrace(R"({"min_recall":{}})"),
            "millrace.min_recall: 'millrace.min_recall' must be a number, not an object");
  EXPECT_TRUE(millrace(R"({"head_plan":"dens"})").starts_with("millrace.head_plan: head plan "));
  EXPECT_EQ(millrace(R"({"lease_ms":5,"lease_ms":6})"),
            "millrace.lease_ms: field 'millrace.lease_ms' given twice");
  for (const char* name : {"handover", "model", "prompt_token_ids", "lease"}) {
    EXPECT_EQ(
        millrace(fmt::format(R"({{"{}":1}})", name)),
        fmt::format(
            "millrace.{0}: unknown field 'millrace.{0}'; 'millrace' may have "
            "head_plan, min_recall, deadline_ms, decline_after_ms, lease_ms, priority, cache, "
            "cache_salt, cache_impure, on_disconnect",
            name));
  }
  EXPECT_EQ(millrace("[1]"), "millrace: 'millrace' must be an object, not an array");
}

// vLLM's own field: its pages are shared by it, and so must ours be.
TEST(CompletionBody, TheSaltIsWhereVllmHasIt) {
  EXPECT_EQ(accepted(with(R"("cache_salt":"s")")).prefill.options.cache_salt(), "s");
  EXPECT_EQ(accepted(with(R"("cache_salt":null)")).prefill.options.cache_salt(), "");
  EXPECT_EQ(refusal(with(R"("cache_salt":"")")),
            "cache_salt: 'cache_salt' is empty; leave it out to share with all");
  EXPECT_EQ(refusal(with(R"("millrace":{"cache_salt":""})")),
            "millrace.cache_salt: 'millrace.cache_salt' is empty; leave it out to share with all");
  EXPECT_EQ(refusal(with(R"("cache_salt":"s","millrace":{"cache_salt":"s"})")),
            "millrace.cache_salt: field 'millrace.cache_salt' given twice");
}

TEST(CompletionBody, AMistakeInItsJsonIsNamed) {
  EXPECT_EQ(refusal(parse("\xef\xbb\xbf{}")),
            ": malformed JSON at byte 0: a byte order mark of UTF-8; JSON is UTF-8 without one");
  EXPECT_NE(refusal(with(R"("user":"\ud800")")).find("half of a surrogate pair"),
            std::string::npos);
  EXPECT_NE(refusal(with(R"("temperature":NaN)")).find("NaN and Infinity"), std::string::npos);
}

TEST(CompletionBody, FieldsForTheEngineMayBeDeep) {
  const std::string deep = std::string(100, '[') + std::string(100, ']');
  EXPECT_EQ(refusal(with(R"("tools":)" + deep)), "accepted");
}

TEST(CompletionBody, MalformedJsonAndOtherDocumentsAreRefused) {
  EXPECT_TRUE(refusal(parse(R"({"prompt":[1)")).starts_with(": malformed JSON at byte"));
  EXPECT_TRUE(refusal(with(R"("x":{"y":[1,})")).starts_with(": malformed JSON at byte"));
  for (const char* text : {"[]", "7", "null"}) {
    EXPECT_EQ(refusal(parse(text)), ": the body is not a JSON object") << text;
  }
}

TEST(CompletionBody, StopsAtTheTokenLimitWithoutReadingOn) {
  PrefillBodyLimits limits;
  limits.max_prompt_tokens = 2;
  const auto parsed = parse(R"({"model":"m","prompt":[[1,2,3, this is not even JSON)", limits);
  EXPECT_EQ(refusal(parsed), "prompt: the prompt exceeds the limit of 2 tokens");
  EXPECT_EQ(ApiError(std::get<Refusal>(parsed)).http_status(), 413);
}

// Computed in Python: hashlib.sha256(struct.pack("<3i", 1, 2, 3)), and for 0 and 2147483647.
TEST(PromptDigest, IsOfLittleEndianInt32) {
  EXPECT_EQ(prompt_digest({1, 2, 3}),
            "4636993d3e1da4e9d6b8f87b79e8f7c6d018580d52661950eabc3845c5897a4d");
  EXPECT_EQ(prompt_digest({0, 2147483647}),
            "b6d07a2a406a5dd243cf8c120962fb2882e59d3df90510233499846f2ab5ff26");
}

ParsedCompletionBody chat(const std::string& more, PrefillBodyLimits limits = {}) {
  return parse_chat(R"({"model":"m",)" + more + "}", limits);
}

TEST(ChatBody, IsThePromptItself) {
  const std::string text = R"({"model":"m","request_id":"r1","messages":[{"role":"user",
      "content":[{"type":"text","text":"a","messages":[[]]}]}],"tools":[{"n":2}],"n":1,
      "chat_template_kwargs":{"model":5,"max_tokens":99},"stream":true,"temperature":0.7,
      "millrace":{"head_plan":"dense"}})";
  const auto parsed = parse_chat(text, {});
  const CompletionBody& body = accepted(parsed);
  EXPECT_EQ(body.prefill.text, text);
  EXPECT_TRUE(body.prefill.is_chat);
  EXPECT_FALSE(body.prefill.add_special_tokens);
  EXPECT_EQ(body.prefill.prompt_name, "messages");
  EXPECT_EQ(body.prefill.request_id, "r1");
  EXPECT_EQ(body.prefill.options.head_plan(), "dense");
  EXPECT_EQ(body.options.shape, AnswerShape::kChat);
  EXPECT_TRUE(body.options.stream);
  EXPECT_EQ(body.options.logprobs, std::nullopt);
  EXPECT_TRUE(
      accepted(chat(R"("messages":[],"add_special_tokens":true)")).prefill.add_special_tokens);
}

TEST(ChatBody, ListsTokensWhereTheyAreWanted) {
  const auto logprobs = [](const std::string& more) {
    return accepted(chat(R"("messages":[],)" + more)).options.logprobs;
  };
  EXPECT_EQ(logprobs(R"("logprobs":true,"top_logprobs":3)"), 3);
  EXPECT_EQ(logprobs(R"("top_logprobs":3,"logprobs":true)"), 3);
  EXPECT_EQ(logprobs(R"("logprobs":true)"), 0);
  EXPECT_EQ(logprobs(R"("logprobs":false,"top_logprobs":3)"), std::nullopt);
}

TEST(ChatBody, WhatIsWrongHasAName) {
  EXPECT_EQ(accepted(chat(R"("messages":[],"priority":4)")).prefill.options.priority(), 4);
  EXPECT_EQ(refusal(chat(R"("tools":[])")), "messages: 'messages' is missing");
  EXPECT_EQ(refusal(chat(R"("messages":null)")), "messages: 'messages' is missing");
  EXPECT_EQ(refusal(chat(R"("messages":{})")),
            "messages: 'messages' must be a list of messages, not an object");
  EXPECT_EQ(refusal(chat(R"("messages":[],"messages":[])")),
            "messages: field 'messages' given twice");
  EXPECT_EQ(refusal(chat(R"("messages":[],"chat_template":"{{ 1 }}")")),
            "chat_template: 'chat_template' is not taken: the model's own is used");
  EXPECT_EQ(refusal(chat(R"("messages":[],"chat_template":null)")), "accepted");
  EXPECT_EQ(refusal(chat(R"("messages":[],"logprobs":2)")),
            "logprobs: 'logprobs' must be true or false, not a number");
  EXPECT_EQ(refusal(chat(R"("messages":[],"max_tokens":2)")).substr(0, 30),
            "max_tokens: 'max_tokens' must ");
  EXPECT_EQ(refusal(chat(R"("messages":["0123456789"])", {.max_text_bytes = 10})),
            "messages: 'messages' of 39 bytes of text, limit 10");
}

TEST(CompletionBody, SaysWhatItsAnswerMayHave) {
  const CompletionOptions& plain = accepted(parse(R"({"model":"m","prompt":[1]})")).options;
  EXPECT_EQ(plain.return_token_ids, std::nullopt);
  EXPECT_EQ(plain.decline_after_ms, std::nullopt);
  EXPECT_FALSE(plain.return_progress);
  const auto parsed =
      with(R"("return_token_ids":false,"return_progress":true,"millrace":{"decline_after_ms":7})");
  EXPECT_EQ(accepted(parsed).options.return_token_ids, false);
  EXPECT_TRUE(accepted(parsed).options.return_progress);
  EXPECT_EQ(accepted(parsed).options.decline_after_ms, 7);
  EXPECT_EQ(refusal(with(R"("return_token_ids":1)")),
            "return_token_ids: 'return_token_ids' must be true or false, not a number");
  EXPECT_EQ(refusal(with(R"("millrace":{"decline_after_ms":0})")),
            "millrace.decline_after_ms: 'millrace.decline_after_ms' is 0; must be 1 to 86400000");
  EXPECT_EQ(refusal(with(R"("millrace":{"decline_after_ms":1,"decline_after_ms":2})")),
            "millrace.decline_after_ms: field 'millrace.decline_after_ms' given twice");
  EXPECT_EQ(refusal(with(R"("millrace":{"decline_after_ms":"1"})")),
            "millrace.decline_after_ms: 'millrace.decline_after_ms' must be an integer, not a "
            "string");
}

TEST(CompletionBody, ANullLeavesTheFieldToMillrace) {
  for (const char* more : {R"("priority":null,"millrace":{"priority":3})",
                           R"("millrace":{"priority":3},"priority":null)"}) {
    EXPECT_EQ(accepted(with(more)).prefill.options.priority(), 3) << more;
  }
  EXPECT_EQ(refusal(with(R"("millrace":{"priority":3},"priority":3)")),
            "priority: field 'priority' given twice");
  EXPECT_EQ(refusal(with(R"("request_id":[])")),
            "request_id: 'request_id' must be a string, not an array");
}

ParsedCompletionBody generate(const std::string& more) {
  return parse_generate(R"({"model":"m","token_ids":[1,2])" + more + "}", {});
}

TEST(GenerateBody, TakesWhatLlmdsCoordinatorSends) {
  const auto parsed = generate(R"(,"request_id":"r1","stream":false,"sampling_params":{
      "max_tokens":1,"min_tokens":0,"stop":["a"],"extra_args":{"kv_transfer_params":{
        "do_remote_decode":true,"remote_block_ids":null,"n":[2]}}})");
  const CompletionBody& body = accepted(parsed);
  EXPECT_EQ(body.prefill.prompt_token_ids, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(body.prefill.request_id, "r1");
  EXPECT_EQ(body.options.shape, AnswerShape::kGenerate);
}

TEST(GenerateBody, SamplingIsCheckedAsInACompletion) {
  const auto parsed = generate(R"(,"sampling_params":{"logprobs":2,"n":1},"priority":-3,
      "stream":true,"stream_options":{"include_usage":true},"output_mode":"tokens")");
  EXPECT_EQ(accepted(parsed).options.logprobs, 2);
  EXPECT_EQ(accepted(parsed).prefill.options.priority(), -3);
  EXPECT_TRUE(accepted(parsed).options.include_usage);
  const std::string one_token =
      ": a prefill has one prompt and answers with the one token after it";
  EXPECT_EQ(refusal(generate(R"(,"sampling_params":{"max_tokens":16})")),
            "sampling_params.max_tokens: 'sampling_params.max_tokens' must be 1" + one_token);
  EXPECT_EQ(refusal(generate(R"(,"sampling_params":{"prompt_logprobs":1})")),
            "sampling_params.prompt_logprobs: 'sampling_params.prompt_logprobs' must be null" +
                one_token);
  EXPECT_EQ(refusal(generate(R"(,"sampling_params":[])")),
            "sampling_params: 'sampling_params' must be an object, not an array");
  EXPECT_EQ(refusal(generate(R"(,"features":{"mm_hashes":{}})")),
            "features: 'features' must be null" + one_token);
  EXPECT_EQ(refusal(generate(R"(,"output_mode":"text")")),
            "output_mode: 'output_mode' must be tokens, not a string");
}

TEST(GenerateBody, ThePromptIsOneListOfTokenIds) {
  const auto prompt = [](const std::string& text) {
    return refusal(parse_generate(R"({"model":"m","token_ids":)" + text + "}", {}));
  };
  EXPECT_EQ(prompt("[]"), "token_ids: the prompt is empty");
  EXPECT_EQ(prompt("\"a\""), "token_ids: 'token_ids' must be a list of token ids, not a string");
  EXPECT_EQ(prompt("[[1]]"),
            "token_ids: 'token_ids' must be a list of token ids, not a list of lists");
  EXPECT_EQ(prompt("[\"a\"]"),
            "token_ids: 'token_ids' must be an array of integers, not an array with a string");
  EXPECT_EQ(refusal(parse_generate(R"({"model":"m"})", {})), "token_ids: the prompt is empty");
}

}  // namespace
}  // namespace millrace::coordinator
