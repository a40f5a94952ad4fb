#include "coordinator/api/completion_json.h"

#include <algorithm>
#include <boost/json.hpp>

#include "coordinator/api/json_number.h"
#include "protocol/sse_parser.h"

namespace millrace::coordinator {

namespace json = boost::json;

namespace {

// Groups know ten (worker/engine/engine.h); what else one may send is not for the deciding thread to
// write.
constexpr int64_t kMaxListedTokens = 20;

// As vLLM writes tokens with return_tokens_as_token_ids.
std::string token_name(int32_t token_id) {
  return fmt::format("token_id:{}", token_id);
}

// By listed_tokens(), of which `words` may have the names. Of several tokens of one name, as two
// spellings of a byte, the likeliest is listed.
json::value logprobs_json(const protocol::Manifest& manifest, const CompletionOptions& options,
                          const std::vector<int32_t>& tokens, const CompletionWords& words) {
  if (!options.logprobs) return nullptr;
  const bool by_name = !options.tokens_as_ids && words.tokens.size() == tokens.size();
  const auto name = [&](size_t i) { return by_name ? words.tokens[i] : token_name(tokens[i]); };
  json::object listed;
  json::value chosen = nullptr;
  for (size_t i = 1; i < tokens.size(); ++i) {
    const auto& token = manifest.top_logprobs(static_cast<int>(i) - 1);
    const json::value logprob = number_or_null(token.logprob());
    listed.emplace(name(i), logprob);
    if (token.token_id() == manifest.first_token_id()) chosen = logprob;
  }
  return json::object{{"tokens", json::array{name(0)}},
                      {"token_logprobs", json::array{std::move(chosen)}},
                      {"top_logprobs", json::array{std::move(listed)}},
                      {"text_offset", json::array{0}}};
}

json::object choice_json(const Request& request, const CompletionOptions& options,
                         const CompletionWords& words) {
  const protocol::Manifest& manifest = request.result->manifest();
  return {{"index", 0},
          {"text", words.text},
          {"token_ids", json::array{manifest.first_token_id()}},
          {"logprobs", logprobs_json(manifest, options, listed_tokens(request, options), words)},
          {"finish_reason", "length"}};
}

// What whole answers and all events of a stream begin with.
json::object head_json(const Request& request, int64_t created_s) {
  return {{"id", "cmpl-" + request.id},
          {"object", "text_completion"},
          {"created", created_s},
          {"model", request.model}};
}

json::object usage_json(const Request& request) {
  return {{"prompt_tokens", request.num_tokens},
          {"completion_tokens", 1},
          {"total_tokens", request.num_tokens + 1},
          {"prompt_tokens_details", {{"cached_tokens", request.result->cached_tokens()}}}};
}

std::string event(std::string data) {
  return to_text(protocol::SseEvent{"", std::move(data)});
}

}  // namespace

// The chosen token is the best one, and listed in any case.
std::vector<int32_t> listed_tokens(const Request& request, const CompletionOptions& options) {
  if (!options.logprobs) return {};
  const protocol::Manifest& manifest = request.result->manifest();
  std::vector<int32_t> tokens = {manifest.first_token_id()};
  const int64_t num_listed = std::clamp<int64_t>(*options.logprobs, 1, kMaxListedTokens);
  for (const auto& token : manifest.top_logprobs()) {
    if (std::ssize(tokens) > num_listed) break;
    tokens.push_back(token.token_id());
  }
  return tokens;
}

std::string completion_text(const Request& request, const CompletionOptions& options,
                            const CompletionWords& words, const std::string& prompt_sha256,
                            int64_t created_s) {
  const protocol::Manifest& manifest = request.result->manifest();
  const json::object head = head_json(request, created_s);
  json::object answer = head;
  answer["choices"] = json::array{choice_json(request, options, words)};
  if (!options.stream) {
    answer["usage"] = usage_json(request);
  } else if (options.include_usage) {
    answer["usage"] = nullptr;  // comes in an event of its own
  }
  answer["kv_transfer_params"] = {{"millrace",
                                   {{"request_id", request.id},
                                    {"lease_id", manifest.lease_id()},
                                    {"prompt_sha256", prompt_sha256}}}};
  if (!options.stream) return json::serialize(answer);
  std::string events = event(json::serialize(answer));
  if (options.include_usage) {
    json::object usage = head;
    usage["choices"] = json::array{};
    usage["usage"] = usage_json(request);
    events += event(json::serialize(usage));
  }
  return events + event("[DONE]");
}

}  // namespace millrace::coordinator
