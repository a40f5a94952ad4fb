// SPDX-License-Identifier: Apache-2.0
#include "coordinator/api/parse_prefill.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "coordinator/api/api_error.h"

namespace millrace::coordinator {
namespace {

using std::string_view_literals::operator""sv;

ParsedPrefillBody parse(std::string_view text, PrefillBodyLimits limits = {}) {
  return parse_prefill_json(text, limits);
}
// "param: message" of a refusal.
std::string refusal(const ParsedPrefillBody& parsed) {
  const auto* wrong = std::get_if<Refusal>(&parsed);
  return wrong ? wrong->field + ": " + wrong->error.message : "accepted";
}
const PrefillBody& accepted(const ParsedPrefillBody& parsed) {
  EXPECT_TRUE(std::holds_alternative<PrefillBody>(parsed)) << refusal(parsed);
  return std::get<PrefillBody>(parsed);
}

TEST(PrefillBody, ReadsAllFieldsOfTheJsonForm) {
  const auto parsed = parse(R"({"model":"m","request_id":"a.b:c-d_1","prompt_token_ids":[0,1,
      2147483647],"head_plan":"dense","deadline_ms":5,"lease_ms":6,"stream":true})");
  const PrefillBody& body = accepted(parsed);
  EXPECT_EQ(body.model, "m");
  EXPECT_EQ(body.request_id, "a.b:c-d_1");
  EXPECT_EQ(body.prompt_token_ids, (std::vector<int32_t>{0, 1, 2147483647}));
  EXPECT_EQ(body.options.head_plan(), "dense");
  EXPECT_EQ(body.options.deadline_ms(), 5u);
  EXPECT_EQ(body.options.lease_ms(), 6u);
  EXPECT_TRUE(body.stream);
}

TEST(PrefillBody, APromptMayBeText) {
  const auto json = parse(R"({"model":"m","text":"a\n\u00e9","add_special_tokens":false})");
  EXPECT_EQ(accepted(json).text, "a\n\xc3\xa9");
  EXPECT_FALSE(accepted(json).add_special_tokens);
  EXPECT_EQ(accepted(json).prompt_name, "text");
  const auto plain =
      parse_prefill_text("a\0\xc3\xa9"sv, "model=m&add_special_tokens=false&lease_ms=6", {});
  EXPECT_EQ(accepted(plain).text, "a\0\xc3\xa9"sv);
  EXPECT_FALSE(accepted(plain).add_special_tokens);
  EXPECT_EQ(accepted(plain).options.lease_ms(), 6u);
}

TEST(PrefillBody, TextThatIsNotUtf8IsRefusedAndWhereIsTold) {
  for (const auto& [text, at] : {std::pair("\xff"sv, 0),
                                 {"ab\xc3"sv, 2},
                                 {"\xed\xa0\x80"sv, 0},
                                 {"a\xc0\x80"sv, 1},
                                 {"\xc3\xa9\xf5"sv, 2}}) {
    EXPECT_EQ(refusal(parse_prefill_text(text, "model=m", {})),
              fmt::format("text: the text is not UTF-8: byte {} of {}", at, text.size()));
  }
  EXPECT_EQ(refusal(parse("{\"model\":\"m\",\"text\":\"a\xff\"}")),
            ": malformed JSON at byte 22: not UTF-8");
}

TEST(PrefillBody, APromptIsGivenOnce) {
  EXPECT_EQ(refusal(parse(R"({"model":"m","text":"a","prompt_token_ids":[1]})")),
            "text: the prompt is 'text' or 'prompt_token_ids', not both");
  EXPECT_EQ(refusal(parse_prefill_text("a", "model=m&text=a", {})),
            "text: 'text' is a parameter, but the prompt is the body");
  EXPECT_EQ(refusal(parse_prefill_binary("", "model=m&text=a", {})),
            "text: 'text' is a parameter, but the prompt is the body");
  EXPECT_EQ(refusal(parse(R"({"model":"m","text":5})")),
            "text: 'text' must be a string, not a number");
}

TEST(PrefillBody, DefaultsAreEmpty) {
  const auto parsed = parse(R"({"prompt_token_ids":[1],"model":"m"})");
  EXPECT_EQ(accepted(parsed).request_id, "");
  EXPECT_FALSE(accepted(parsed).stream);
}

TEST(PrefillBody, NamesTheFieldThatIsUnknownRepeatedMissingOrOfTheWrongType) {
  EXPECT_TRUE(refusal(parse(R"({"modell":"m"})")).starts_with("modell: unknown field 'modell'"));
  EXPECT_EQ(refusal(parse(R"({"model":"m","model":"m"})")), "model: field 'model' given twice");
  EXPECT_EQ(refusal(parse(R"({"prompt_token_ids":[1]})")), "model: 'model' is missing");
  EXPECT_EQ(refusal(parse(R"({"model":"m"})")), "prompt_token_ids: the prompt is empty");
  EXPECT_EQ(refusal(parse(R"({"model":"m","prompt_token_ids":[]})")),
            "prompt_token_ids: the prompt is empty");
  EXPECT_EQ(refusal(parse(R"({"model":3})")), "model: 'model' must be a string, not a number");
  EXPECT_EQ(refusal(parse(R"({"model":null})")), "model: 'model' must be a string, not null");
  EXPECT_EQ(refusal(parse(R"({"model":{}})")), "model: 'model' must be a string, not an object");
  EXPECT_EQ(refusal(parse(R"({"model":[1]})")), "model: 'model' must be a string, not an array");
  EXPECT_EQ(refusal(parse(R"({"stream":"yes"})")),
            "stream: 'stream' must be true or false, not a string");
  EXPECT_EQ(refusal(parse(R"({"deadline_ms":1.5})")),
            "deadline_ms: 'deadline_ms' must be an integer, not a number with a fraction or "
            "exponent");
}

TEST(PrefillBody, AnUnknownFieldIsAnsweredWithTheKnownOnes) {
  EXPECT_EQ(
      refusal(parse(R"({"color":"red"})")),
      "color: unknown field 'color'; known: model, request_id, prompt_token_ids, text, "
      "add_special_tokens, head_plan, "
      "min_recall, recall_by_head, deadline_ms, lease_ms, priority, stream, handover, cache, "
      "cache_salt, cache_impure, kv_budget, kv_budget_tokens, on_disconnect, return_progress");
}

TEST(PrefillBody, TheOptionsOfBothFormsAreTheSame) {
  const auto json = parse(
      R"({"model":"m","prompt_token_ids":[1],"head_plan":"dense","min_recall":0.5,)"
      R"("recall_by_head":true,"deadline_ms":7,"lease_ms":8,"priority":-3,"stream":true,"handover":"streaming",)"
      R"("cache":"read","cache_salt":"s","cache_impure":true})");
  const auto binary = parse_prefill_binary(
      "\1\0\0\0"sv,
      "model=m&head_plan=dense&min_recall=0.5&deadline_ms=7&recall_by_head=true&"
      "lease_ms=8&priority=-3&stream=true&handover=streaming&cache=read&cache_salt=s&cache_impure="
      "true",
      {});
  const protocol::PrefillOptions& options = accepted(json).options;
  EXPECT_EQ(options.SerializeAsString(), accepted(binary).options.SerializeAsString());
  EXPECT_EQ(options.min_recall(), 0.5);
  EXPECT_TRUE(options.recall_by_head());
  EXPECT_EQ(options.handover(), protocol::HANDOVER_STREAMING);
}

TEST(PrefillBody, SaysWhatBecomesOfThePrefillOfAClientThatLeaves) {
  const auto json = [](const std::string& fields) {
    return parse(R"({"model":"m","prompt_token_ids":[1])" + fields + "}");
  };
  EXPECT_FALSE(accepted(json("")).on_disconnect);
  EXPECT_EQ(accepted(json(R"(,"on_disconnect":"cancel","cache":"off")")).on_disconnect,
            OnDisconnect::kCancel);
  EXPECT_EQ(accepted(json(R"(,"on_disconnect":"finish")")).on_disconnect, OnDisconnect::kFinish);
  EXPECT_EQ(accepted(json(R"(,"on_disconnect":"suspend")")).on_disconnect, OnDisconnect::kSuspend);
  const auto binary =
      parse_prefill_binary("\1\0\0\0"sv, "model=m&on_disconnect=finish&cache=read", {});
  EXPECT_EQ(accepted(binary).on_disconnect, OnDisconnect::kFinish);
  EXPECT_EQ(refusal(json(R"(,"on_disconnect":"wait")")),
            "on_disconnect: 'on_disconnect' is 'wait'; must be cancel, finish or suspend");
}

TEST(PrefillBody, PromptsShareCachedPagesUnlessTheySayOtherwise) {
  const auto json = [](const std::string& fields) {
    return parse(R"({"model":"m","prompt_token_ids":[1])" + fields + "}");
  };
  EXPECT_EQ(accepted(json("")).options.cache(), protocol::CACHE_BOTH);
  EXPECT_EQ(accepted(json(R"(,"cache":"off")")).options.cache(), protocol::CACHE_OFF);
  EXPECT_EQ(accepted(json(R"(,"cache":"read")")).options.cache(), protocol::CACHE_READ);
  EXPECT_EQ(accepted(json(R"(,"cache":"write")")).options.cache(), protocol::CACHE_WRITE);
  EXPECT_EQ(accepted(json(R"(,"cache":"both")")).options.cache(), protocol::CACHE_BOTH);
  EXPECT_EQ(refusal(json(R"(,"cache":"on")")),
            "cache: 'cache' is 'on'; must be off, read, write or both");
  EXPECT_EQ(refusal(json(R"(,"cache_salt":"a b")")),
            "cache_salt: 'cache_salt' may have printable ASCII characters, and no blanks");
  EXPECT_EQ(refusal(json(R"(,"cache_salt":")" + std::string(300, 'x') + "\"")),
            "cache_salt: 'cache_salt' of 300 characters, limit 256");
}

// It would share the pages of whoever forgot to set one.
TEST(PrefillBody, AnEmptySaltIsRefused) {
  const char* why = "cache_salt: 'cache_salt' is empty; leave it out to share with all";
  EXPECT_EQ(refusal(parse(R"({"model":"m","prompt_token_ids":[1],"cache_salt":""})")), why);
  EXPECT_EQ(refusal(parse_prefill_binary("\1\0\0\0"sv, "model=m&cache_salt=", {})), why);
}

TEST(PrefillBody, ATextInAnotherEncodingIsNamed) {
  EXPECT_EQ(refusal(parse_prefill_text("\xff\xfeh\0i\0"sv, "model=m", {})),
            "text: the text is not UTF-8: it has a byte order mark of UTF-16");
}

TEST(PrefillBody, ABudgetIsAShareAboveZeroAndAtMostOne) {
  const auto json = [](const std::string& fields) {
    return parse(R"({"model":"m","prompt_token_ids":[1],)" + fields + "}");
  };
  EXPECT_EQ(accepted(parse(R"({"model":"m","prompt_token_ids":[1]})")).options.kv_budget(), 0);
  EXPECT_EQ(accepted(json(R"("kv_budget":0.25)")).options.kv_budget(), 0.25);
  EXPECT_EQ(accepted(json(R"("kv_budget":1)")).options.kv_budget(), 1);
  for (const auto* budget : {"0", "-0.5", "1.001", "2", "1e300"}) {
    EXPECT_TRUE(refusal(json(fmt::format(R"("kv_budget":{})", budget)))
                    .starts_with("kv_budget: 'kv_budget' is "))
        << budget;
  }
  EXPECT_EQ(refusal(json(R"("kv_budget":"0.5")")),
            "kv_budget: 'kv_budget' must be a number, not a string");
  // JSON has no word for it; a query has.
  EXPECT_NE(refusal(json(R"("kv_budget":NaN)")), "accepted");
  EXPECT_EQ(refusal(parse_prefill_binary("\1\0\0\0"sv, "model=m&kv_budget=nan", {})),
            "kv_budget: 'kv_budget' is nan; must be above 0, at most 1");
  EXPECT_EQ(
      accepted(parse_prefill_binary("\1\0\0\0"sv, "model=m&kv_budget=0.5", {})).options.kv_budget(),
      0.5);
}

TEST(PrefillBody, ABudgetBelowOneGoesWithNeitherStreamingNorAWrittenCache) {
  const auto json = [](const std::string& fields) {
    return parse(R"({"model":"m","prompt_token_ids":[1],"stream":true,)" + fields + "}");
  };
  EXPECT_EQ(accepted(json(R"("kv_budget":0.5)")).options.cache(), protocol::CACHE_READ);
  EXPECT_EQ(accepted(json(R"("kv_budget":0.5,"cache":"read")")).options.cache(),
            protocol::CACHE_READ);
  EXPECT_EQ(accepted(json(R"("kv_budget":0.5,"cache":"off")")).options.cache(),
            protocol::CACHE_OFF);
  EXPECT_EQ(accepted(json(R"("kv_budget":1,"handover":"streaming")")).options.cache(),
            protocol::CACHE_BOTH);
  for (const auto* cache : {"write", "both"}) {
    EXPECT_TRUE(refusal(json(fmt::format(R"("kv_budget":0.5,"cache":"{}")", cache)))
                    .starts_with("cache: 'kv_budget' below 1 requires 'cache' off or read"));
  }
  EXPECT_TRUE(refusal(json(R"("kv_budget":0.5,"handover":"streaming")"))
                  .starts_with("kv_budget: 'kv_budget' below 1 requires 'handover' at-end"));
}

TEST(PrefillBody, ABudgetInTokensIsOneOfAShareInOtherWords) {
  const auto json = [](const std::string& fields) {
    return parse(R"({"model":"m","prompt_token_ids":[1],"stream":true,)" + fields + "}");
  };
  const PrefillBody body = accepted(json(R"("kv_budget_tokens":4096)"));
  EXPECT_EQ(body.kv_budget_tokens, 4096);
  EXPECT_EQ(body.options.kv_budget(), 0);  // the prompt's length says it
  EXPECT_EQ(body.options.cache(), protocol::CACHE_READ);
  EXPECT_EQ(accepted(parse_prefill_binary("\1\0\0\0"sv, "model=m&kv_budget_tokens=64", {}))
                .kv_budget_tokens,
            64);
  for (const auto* budget : {"0", "-1", "9223372036854775807"}) {
    EXPECT_TRUE(refusal(json(fmt::format(R"("kv_budget_tokens":{})", budget)))
                    .starts_with("kv_budget_tokens: 'kv_budget_tokens' is "))
        << budget;
  }
  EXPECT_EQ(refusal(json(R"("kv_budget_tokens":0.5)")),
            "kv_budget_tokens: 'kv_budget_tokens' must be an integer, not a number with a fraction "
            "or exponent");
  EXPECT_EQ(refusal(json(R"("kv_budget_tokens":64,"kv_budget":1)")),
            "kv_budget_tokens: the budget is 'kv_budget' or 'kv_budget_tokens', not both");
  EXPECT_TRUE(refusal(json(R"("kv_budget_tokens":64,"cache":"both")"))
                  .starts_with("cache: 'kv_budget_tokens' requires 'cache' off or read"));
  EXPECT_TRUE(refusal(json(R"("kv_budget_tokens":64,"handover":"streaming")"))
                  .starts_with("kv_budget_tokens: 'kv_budget_tokens' requires 'handover' at-end"));
}

TEST(PrefillBody, RefusesWhatIsNoTokenId) {
  const auto with = [](const std::string& tokens) {
    return refusal(parse(R"({"model":"m","prompt_token_ids":[)" + tokens + "]}"));
  };
  EXPECT_EQ(with("1,-1"),
            "prompt_token_ids: prompt_token_ids[1] is -1; token ids are 0 to 2147483647");
  EXPECT_EQ(with("2147483648"),
            "prompt_token_ids: prompt_token_ids[0] is 2147483648; token ids are 0 to 2147483647");
  for (const char* bad :
       {"18446744073709551615", "1.0", "1e3", "\"1\"", "true", "null", "[1]", "{}"}) {
    EXPECT_TRUE(with(bad).starts_with("prompt_token_ids: ")) << bad << " gives " << with(bad);
  }
}

TEST(PrefillBody, RefusesValuesOutOfBounds) {
  EXPECT_TRUE(refusal(parse(R"({"deadline_ms":0})")).starts_with("deadline_ms: "));
  EXPECT_TRUE(refusal(parse(R"({"lease_ms":99999999999})")).starts_with("lease_ms: "));
  EXPECT_TRUE(refusal(parse(R"({"request_id":"a/b"})")).starts_with("request_id: "));
  EXPECT_TRUE(refusal(parse(R"({"request_id":""})")).starts_with("request_id: "));
  const std::string long_plan = R"({"head_plan":")" + std::string(5000, 'x') + "\"}";
  EXPECT_TRUE(refusal(parse(long_plan)).starts_with("head_plan: 'head_plan' of 5000"));
}

TEST(PrefillBody, AHeadPlanIsReadHereInBothForms) {
  const auto json = [](const std::string& plan) {
    return parse(R"({"model":"m","prompt_token_ids":[1],"head_plan":")" + plan + "\"}");
  };
  const auto binary = [](const std::string& plan) {
    return parse_prefill_binary("\1\0\0\0"sv, "model=m&head_plan=" + plan, {});
  };
  for (const char* plan : {"", "auto", "dense", "adaptive:0.8", "vertical-slash:1000,6096"}) {
    EXPECT_EQ(accepted(json(plan)).options.head_plan(), plan);
    EXPECT_EQ(accepted(binary(plan)).options.head_plan(), plan);
  }
  for (const char* plan : {"dens", "adaptive:2", "plan.json", "/etc/passwd"}) {
    EXPECT_TRUE(refusal(json(plan)).starts_with("head_plan: head plan ")) << refusal(json(plan));
    EXPECT_EQ(refusal(binary(plan)), refusal(json(plan)));
  }
}

TEST(PrefillBody, AHandoverIsAtEndOrStreamingInBothForms) {
  const auto json = [](const std::string& rest) {
    return parse(R"({"model":"m","prompt_token_ids":[1],)" + rest + "}");
  };
  const auto binary = [](const std::string& rest) {
    return parse_prefill_binary("\1\0\0\0"sv, "model=m&" + rest, {});
  };
  for (const auto& parsed : {json(R"("handover":"streaming","stream":true)"),
                             json(R"("stream":true,"handover":"streaming")"),
                             binary("handover=streaming&stream=true")}) {
    EXPECT_EQ(accepted(parsed).options.handover(), protocol::HANDOVER_STREAMING);
  }
  for (const auto& parsed : {json(R"("handover":"at-end")"), json(R"("stream":true)"),
                             binary("handover=at-end"), binary("stream=false")}) {
    EXPECT_EQ(accepted(parsed).options.handover(), protocol::HANDOVER_AT_END);
  }
  EXPECT_EQ(refusal(json(R"("handover":"push")")),
            "handover: 'handover' is 'push'; must be at-end or streaming");
  EXPECT_EQ(refusal(binary("handover=")),
            "handover: 'handover' is ''; must be at-end or streaming");
  EXPECT_EQ(refusal(json(R"("handover":true)")),
            "handover: 'handover' must be a string, not a boolean");
}

TEST(PrefillBody, AStreamingHandoverNeedsEvents) {
  const std::string why =
      "handover: 'handover' streaming requires 'stream' true: the events tell a decode node which "
      "layers it can pull";
  const std::string required = R"({"model":"m","prompt_token_ids":[1],"handover":"streaming")";
  EXPECT_EQ(refusal(parse(required + "}")), why);
  EXPECT_EQ(refusal(parse(required + R"(,"stream":false})")), why);
  EXPECT_EQ(refusal(parse_prefill_binary("\1\0\0\0"sv, "model=m&handover=streaming", {})), why);
}

TEST(PrefillBody, SaysWhereJsonIsMalformed) {
  EXPECT_TRUE(refusal(parse(R"({"model": tru})")).starts_with(": malformed JSON at byte 1"));
  EXPECT_TRUE(refusal(parse("")).starts_with(": malformed JSON at byte 0"));
  EXPECT_TRUE(refusal(parse(R"({"model":"m","prompt_token_ids":[1,)")).find("malformed JSON") !=
              std::string::npos);
  EXPECT_NE(refusal(parse(R"({"model":"m","prompt_token_ids":[1]} x)")), "accepted");
}

TEST(PrefillBody, RefusesABodyThatIsNoObject) {
  for (const char* text : {"3", "\"x\"", "true", "null", "[1,2]"}) {
    EXPECT_EQ(refusal(parse(text)), ": the body is not a JSON object") << text;
  }
}

TEST(PrefillBody, StopsAtTheTokenLimitWithoutReadingOn) {
  PrefillBodyLimits limits;
  limits.max_prompt_tokens = 2;
  const auto parsed =
      parse(R"({"model":"m","prompt_token_ids":[1,2,3, this is not even JSON)", limits);
  EXPECT_EQ(refusal(parsed), "prompt_token_ids: the prompt exceeds the limit of 2 tokens");
  EXPECT_EQ(ApiError(std::get<Refusal>(parsed)).http_status(), 413);
}

TEST(PrefillBody, ABinaryPromptOverTheLimitIsRefusedWithBothNumbers) {
  PrefillBodyLimits limits;
  limits.max_prompt_tokens = 2;
  const auto parsed = parse_prefill_binary(std::string(12, '\0'), "model=m", limits);
  EXPECT_EQ(refusal(parsed), "prompt_token_ids: prompt of 3 tokens, limit 2");
  EXPECT_EQ(ApiError(std::get<Refusal>(parsed)).http_status(), 413);
}

TEST(PrefillBody, APriorityIsAnIntegerOfEitherSign) {
  const auto with = [](const std::string& value) {
    return parse(R"({"model":"m","prompt_token_ids":[1],"priority":)" + value + "}");
  };
  EXPECT_EQ(accepted(parse(R"({"model":"m","prompt_token_ids":[1]})")).options.priority(), 0);
  EXPECT_EQ(accepted(with("-1000")).options.priority(), -1000);
  EXPECT_EQ(accepted(with("1000")).options.priority(), 1000);
  EXPECT_EQ(refusal(with("-1001")), "priority: 'priority' is -1001; must be -1000 to 1000");
  EXPECT_EQ(refusal(with("1001")), "priority: 'priority' is 1001; must be -1000 to 1000");
  EXPECT_EQ(refusal(with("0.5")),
            "priority: 'priority' must be an integer, not a number with a fraction or exponent");
  EXPECT_EQ(refusal(with("\"high\"")), "priority: 'priority' must be an integer, not a string");
  EXPECT_EQ(refusal(with("null")), "priority: 'priority' must be an integer, not null");
  const auto query = [](const std::string& value) {
    return parse_prefill_binary("\1\0\0\0"sv, "model=m&priority=" + value, {});
  };
  EXPECT_EQ(accepted(query("12")).options.priority(), 12);
  EXPECT_EQ(refusal(query("low")), "priority: 'priority' must be an integer, not 'low'");
  EXPECT_EQ(refusal(query("99999999999999999999")),
            "priority: 'priority' must be an integer, not '99999999999999999999'");
}

TEST(PrefillBody, ReadsTheBinaryForm) {
  const auto parsed = parse_prefill_binary("\1\0\0\0\xff\xff\xff\x7f"sv,
                                           "model=a%2Fb+c&stream=true&deadline_ms=7", {});
  const PrefillBody& body = accepted(parsed);
  EXPECT_EQ(body.model, "a/b c");
  EXPECT_TRUE(body.stream);
  EXPECT_EQ(body.options.deadline_ms(), 7u);
  EXPECT_EQ(body.prompt_token_ids, (std::vector<int32_t>{1, 2147483647}));
}

TEST(PrefillBody, RefusesABadBinaryForm) {
  const auto with = [](std::string_view body, std::string_view query) {
    return refusal(parse_prefill_binary(body, query, {}));
  };
  EXPECT_EQ(with("abc"sv, "model=m"),
            "prompt_token_ids: a body of 3 bytes is not an array of int32");
  EXPECT_EQ(with(""sv, "model=m"), "prompt_token_ids: the prompt is empty");
  EXPECT_EQ(with("\xff\xff\xff\xff"sv, "model=m"),
            "prompt_token_ids: prompt_token_ids[0] is -1; token ids are 0 to 2147483647");
  EXPECT_EQ(with("\1\0\0\0"sv, ""), "model: 'model' is missing");
  EXPECT_TRUE(with("\1\0\0\0"sv, "model=m&color=red").starts_with("color: unknown field"));
  EXPECT_TRUE(with("\1\0\0\0"sv, "model=m&stream=1").starts_with("stream: "));
  EXPECT_TRUE(with("\1\0\0\0"sv, "model=%zz").find("hex") != std::string::npos);
  EXPECT_TRUE(with("\1\0\0\0"sv, "prompt_token_ids=1").starts_with("prompt_token_ids: "));
}

TEST(PrefillBody, ARefusalIsJsonWhateverTheQueryHolds) {
  const auto blamed = [](const std::string& query) {
    const auto parsed = parse_prefill_binary("\1\0\0\0"sv, query, {});
    const auto body = boost::json::parse(ApiError(std::get<Refusal>(parsed)).to_json());
    return std::string(body.at("error").at("param").get_string());
  };
  EXPECT_EQ(blamed("caf%C3%A9=1"), "caf\xc3\xa9");
  EXPECT_EQ(blamed("a%FFb=1"),
            "a\xef\xbf\xbd"
            "b");
  for (const char* value : {"%FF", "%C3", "%C0%80", "%ED%A0%80", "%F4%90%80%80"}) {
    EXPECT_EQ(blamed(fmt::format("handover={}", value)), "handover") << value;
  }
  // Cut in the middle of a character.
  const std::string name(127, 'x');
  EXPECT_EQ(blamed(name + "%C3%A9=1"), name + "\xef\xbf\xbd");
}

}  // namespace
}  // namespace millrace::coordinator
