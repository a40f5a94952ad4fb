// SPDX-License-Identifier: Apache-2.0
#include "coordinator/api/completion_json.h"

#include <algorithm>
#include <boost/json.hpp>
#include <limits>

#include "common/text/utf8.h"
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

// The same in vLLM's form without words.
json::value generate_logprobs_json(const protocol::Manifest& manifest,
                                   const CompletionOptions& options,
                                   const std::vector<int32_t>& tokens) {
  if (!options.logprobs) return nullptr;
  const auto token_json = [](int32_t token, float logprob) {
    return json::object{{"token_id", token}, {"logprob", number_or_null(logprob)}};
  };
  json::array listed;
  auto chosen = std::numeric_limits<float>::quiet_NaN();
  for (size_t i = 1; i < tokens.size(); ++i) {
    const auto& token = manifest.top_logprobs(static_cast<int>(i) - 1);
    if (token.token_id() == manifest.first_token_id()) chosen = token.logprob();
    if (std::ssize(listed) == *options.logprobs) continue;
    listed.push_back(token_json(token.token_id(), token.logprob()));
  }
  json::object content = token_json(tokens[0], chosen);
  content["top_logprobs"] = std::move(listed);
  return json::object{{"content", json::array{std::move(content)}}};
}

// A choice but for what follows from the result.
json::object choice_json(const CompletionOptions& options, const std::string& text,
                         json::array token_ids) {
  json::object choice{{"index", 0}};
  if (options.shape == AnswerShape::kChat) {
    choice[options.stream ? "delta" : "message"] = {{"role", "assistant"}, {"content", text}};
  } else if (options.shape == AnswerShape::kCompletion) {
    choice["text"] = text;
  }
  choice["token_ids"] = std::move(token_ids);
  return choice;
}

json::object choice_json(const Request& request, const CompletionOptions& options,
                         const CompletionWords& words) {
  const protocol::Manifest& manifest = request.result->manifest();
  const auto listed = listed_tokens(request, options);
  json::object choice = choice_json(options, words.text, json::array{manifest.first_token_id()});
  switch (options.shape) {
    case AnswerShape::kCompletion:
      choice["logprobs"] = logprobs_json(manifest, options, listed, words);
      break;
    case AnswerShape::kChat:
      choice["logprobs"] = chat_logprobs_json(manifest, options, listed, words);
      break;
    case AnswerShape::kGenerate:
      choice["logprobs"] = generate_logprobs_json(manifest, options, listed);
      break;
  }
  choice["finish_reason"] = "length";
  return choice;
}

// What whole answers and all events of a stream begin with.
json::object head_json(const std::string& request_id, const std::string& model,
                       const CompletionOptions& options, int64_t created_s) {
  if (options.shape == AnswerShape::kGenerate) {
    return {{"request_id", request_id},
            {"created", created_s},
            {"model", model},
            {"output_mode", "tokens"}};
  }
  const bool is_chat = options.shape == AnswerShape::kChat;
  const char* const chat = options.stream ? "chat.completion.chunk" : "chat.completion";
  return {{"id", (is_chat ? "chatcmpl-" : "cmpl-") + request_id},
          {"object", is_chat ? chat : "text_completion"},
          {"created", created_s},
          {"model", model}};
}

json::object usage_json(int64_t num_tokens, int num_new, int64_t cached_tokens) {
  return {{"prompt_tokens", num_tokens},
          {"completion_tokens", num_new},
          {"total_tokens", num_tokens + num_new},
          {"prompt_tokens_details", {{"cached_tokens", cached_tokens}}}};
}

json::array ids_json(const std::vector<int32_t>& token_ids) {
  json::array ids;
  ids.reserve(token_ids.size());
  for (const int32_t id : token_ids) ids.emplace_back(id);
  return ids;
}

std::string event(std::string data) {
  return to_text(protocol::SseEvent{"", std::move(data)});
}

// Whole answers have their usage before what leads to the cache; in a stream it is an event of its
// own, after an event that says so.
std::string answer_text(const json::object& head, json::value choice, const json::object& usage,
                        json::object rest, const CompletionOptions& options) {
  json::object answer = head;
  answer["choices"] = json::array{std::move(choice)};
  if (!options.stream) {
    answer["usage"] = usage;
  } else if (options.include_usage) {
    answer["usage"] = nullptr;
  }
  for (auto& member : rest) answer[member.key()] = std::move(member.value());
  if (!options.stream) return json::serialize(answer);
  std::string events = event(json::serialize(answer));
  if (options.include_usage) {
    json::object last = head;
    last["choices"] = json::array{};
    last["usage"] = usage;
    events += event(json::serialize(last));
  }
  return events + event("[DONE]");
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
                            const CompletionWords& words, const AnsweredPrompt& prompt,
                            int64_t created_s) {
  json::object choice = choice_json(request, options, words);
  json::object rest;
  // vLLM has them in the choice of a completion, which may have several prompts.
  if (!prompt.token_ids.empty()) {
    const bool in_choice = options.shape == AnswerShape::kCompletion;
    (in_choice ? choice : rest)["prompt_token_ids"] = ids_json(prompt.token_ids);
  }
  json::object params{{"millrace",
                       {{"request_id", request.id},
                        {"lease_id", request.result->manifest().lease_id()},
                        {"prompt_sha256", prompt.sha256}}}};
  if (!prompt.for_the_decoder.empty()) {
    params["prompt_token_ids"] = ids_json(prompt.for_the_decoder);
  }
  rest["kv_transfer_params"] = std::move(params);
  return answer_text(
      head_json(request.id, request.model, options, created_s), std::move(choice),
      usage_json(request.num_tokens, 1, static_cast<int64_t>(request.result->cached_tokens())),
      std::move(rest), options);
}

std::string declined_text(const std::string& request_id, const std::string& model,
                          int64_t num_tokens, const CompletionOptions& options, const Error& why,
                          int64_t created_s) {
  json::object choice = choice_json(options, "", json::array{});
  choice["logprobs"] = nullptr;
  choice["finish_reason"] = "abort";
  json::object rest{
      {"kv_transfer_params", {{"millrace", false}}},
      {"declined",
       {{"type", std::string(errc_name(why.code))}, {"message", as_utf8(why.message)}}}};
  return answer_text(head_json(request_id, model, options, created_s), std::move(choice),
                     usage_json(num_tokens, 0, 0), std::move(rest), options);
}

std::string stream_error(std::string error) {
  return event(std::move(error)) + event("[DONE]");
}

// llama.cpp's name and fields, and Millrace's own: it computes all tokens of a layer at once, so
// that a share of the layers counts as that share of the tokens.
std::string completion_progress(const Request& request, const CompletionOptions& options,
                                int64_t created_s, TimePoint now) {
  json::object event_json = head_json(request.id, request.model, options, created_s);
  event_json["choices"] = json::array{};
  event_json["prompt_progress"] = progress_json(request, now);
  return event(json::serialize(event_json));
}

}  // namespace millrace::coordinator
