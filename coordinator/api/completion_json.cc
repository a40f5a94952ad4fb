// SPDX-License-Identifier: Apache-2.0
#include "coordinator/api/completion_json.h"

#include <algorithm>
#include <boost/json.hpp>
#include <limits>

#include "coordinator/api/request_json.h"
#include "protocol/sse_parser.h"

namespace millrace::coordinator {

namespace json = boost::json;

namespace {

// Groups report ten (engine/engine.h). Whatever a group sends, the deciding thread writes
// out no more than this.
constexpr int64_t kMaxListedTokens = 20;

// As vLLM writes tokens with return_tokens_as_token_ids.
std::string token_name(int32_t token_id) {
  return fmt::format("token_id:{}", token_id);
}

// What an answer calls the tokens of listed_tokens().
struct TokenNames {
  std::vector<std::string> names;
  bool are_words = false;  // the tokenizer's; else ids
};

TokenNames names_of(const std::vector<int32_t>& tokens, const CompletionOptions& options,
                    const CompletionWords& words) {
  if (!options.tokens_as_ids && words.tokens.size() == tokens.size()) return {words.tokens, true};
  TokenNames by_id;
  for (const int32_t token : tokens) by_id.names.push_back(token_name(token));
  return by_id;
}

// For listed_tokens(), whose names may be in `words`. If several tokens have one name, such as two
// spellings of a byte, the likeliest is listed.
json::value logprobs_json(const protocol::Manifest& manifest, const CompletionOptions& options,
                          const std::vector<int32_t>& tokens, const CompletionWords& words) {
  if (!options.logprobs) return nullptr;
  const auto names = names_of(tokens, options, words).names;
  json::object listed;
  json::value chosen = nullptr;
  for (size_t i = 1; i < tokens.size(); ++i) {
    const auto& token = manifest.top_logprobs(static_cast<int>(i) - 1);
    const json::value logprob = number_or_null(token.logprob());
    listed.emplace(names[i], logprob);
    if (token.token_id() == manifest.first_token_id()) chosen = logprob;
  }
  return json::object{{"tokens", json::array{names[0]}},
                      {"token_logprobs", json::array{std::move(chosen)}},
                      {"top_logprobs", json::array{std::move(listed)}},
                      {"text_offset", json::array{0}}};
}

// A token in a chat's list. Bytes that are not text have a name that says so, and no list of bytes.
json::object chat_token_json(const std::string& name, bool is_text, float logprob) {
  json::value bytes = nullptr;
  if (is_text && !name.starts_with("bytes:")) {
    bytes = json::array();
    for (const char byte : name) bytes.get_array().push_back(static_cast<unsigned char>(byte));
  }
  return {{"token", name}, {"logprob", number_or_null(logprob)}, {"bytes", std::move(bytes)}};
}

// The same in a chat's form.
json::value chat_logprobs_json(const protocol::Manifest& manifest, const CompletionOptions& options,
                               const std::vector<int32_t>& tokens, const CompletionWords& words) {
  if (!options.logprobs) return nullptr;
  const auto [names, are_words] = names_of(tokens, options, words);
  json::array listed;
  auto chosen = std::numeric_limits<float>::quiet_NaN();  // null, where no list has it
  for (size_t i = 1; i < tokens.size(); ++i) {
    const auto& token = manifest.top_logprobs(static_cast<int>(i) - 1);
    if (token.token_id() == manifest.first_token_id()) chosen = token.logprob();
    if (std::ssize(listed) == *options.logprobs) continue;
    listed.push_back(chat_token_json(names[i], are_words, token.logprob()));
  }
  json::object content = chat_token_json(names[0], are_words, chosen);
  content["top_logprobs"] = std::move(listed);
  return json::object{{"content", json::array{std::move(content)}}};
}

json::object choice_json(const Request& request, const CompletionOptions& options,
                         const CompletionWords& words) {
  const protocol::Manifest& manifest = request.result->manifest();
  const auto listed = listed_tokens(request, options);
  json::object choice{{"index", 0}};
  if (options.is_chat) {
    choice[options.stream ? "delta" : "message"] = {{"role", "assistant"}, {"content", words.text}};
  } else {
    choice["text"] = words.text;
  }
  choice["token_ids"] = json::array{manifest.first_token_id()};
  choice["logprobs"] = options.is_chat ? chat_logprobs_json(manifest, options, listed, words)
                                       : logprobs_json(manifest, options, listed, words);
  choice["finish_reason"] = "length";
  return choice;
}

// What whole answers and all events of a stream begin with.
json::object head_json(const Request& request, const CompletionOptions& options,
                       int64_t created_s) {
  const char* const chat = options.stream ? "chat.completion.chunk" : "chat.completion";
  return {{"id", (options.is_chat ? "chatcmpl-" : "cmpl-") + request.id},
          {"object", options.is_chat ? chat : "text_completion"},
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
  const json::object head = head_json(request, options, created_s);
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
