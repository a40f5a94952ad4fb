// SPDX-License-Identifier: Apache-2.0
// Bodies, queries and targets of HTTP requests. The first byte picks the parser. What is accepted
// must be within the limits.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/check.h"
#include "coordinator/api/api_error.h"
#include "coordinator/api/parse_completion.h"
#include "coordinator/http/route.h"
#include "coordinator/text/request_id.h"

using namespace millrace::coordinator;

namespace {

void check(const Refusal& wrong) {
  const ApiError answer(wrong);
  MR_CHECK(answer.http_status() >= 400 && !answer.to_json().empty(), "refusal");
}

void check(const PrefillBody& body, const PrefillBodyLimits& limits) {
  const auto num_tokens = static_cast<int64_t>(body.prompt_token_ids.size());
  MR_CHECK(num_tokens > 0 && num_tokens <= limits.max_prompt_tokens, "{} tokens", num_tokens);
  for (const int32_t token : body.prompt_token_ids) MR_CHECK(token >= 0, "token {}", token);
  MR_CHECK(!body.model.empty(), "no model");
  MR_CHECK(body.options.deadline_ms() <= static_cast<uint64_t>(limits.max_duration_ms), "deadline");
  MR_CHECK(body.request_id.empty() || check_request_id(body.request_id).ok(), "request id");
}

void check(const ParsedPrefillBody& parsed, const PrefillBodyLimits& limits) {
  if (const auto* wrong = std::get_if<Refusal>(&parsed)) return check(*wrong);
  check(std::get<PrefillBody>(parsed), limits);
}

void check(const ParsedCompletionBody& parsed, const PrefillBodyLimits& limits) {
  if (const auto* wrong = std::get_if<Refusal>(&parsed)) return check(*wrong);
  const auto& body = std::get<CompletionBody>(parsed);
  MR_CHECK(!body.prefill.stream && body.options.logprobs.value_or(0) >= 0, "options");
  check(body.prefill, limits);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  PrefillBodyLimits limits;
  limits.max_prompt_tokens = 64;
  const std::string_view text(reinterpret_cast<const char*>(data + 1), size - 1);
  switch (data[0] % 4) {
    case 0:
      check(parse_prefill_json(text, limits), limits);
      break;
    case 1: {
      const size_t cut = text.find('\n');
      const std::string_view body = cut == std::string_view::npos ? "" : text.substr(cut + 1);
      check(parse_prefill_binary(body, text.substr(0, cut), limits), limits);
      break;
    }
    case 2:
      check(parse_completion(text, limits), limits);
      break;
    default: {
      const Route route = find_route("GET", text);
      MR_CHECK(route.endpoint != Endpoint::kStatus || check_request_id(route.id).ok(), "route");
    }
  }
  return 0;
}
