// SPDX-License-Identifier: Apache-2.0
#include "worker/batch/batch_prompt.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <functional>
#include <limits>

#include "common/text/read_json.h"

namespace millrace::worker {

namespace json = boost::json;

namespace {

Result<json::object> parse_object(std::string_view line) {
  constexpr size_t kMaxDepth = 8;
  auto value = read_json(line, kMaxDepth);
  if (!value.ok()) {
    return error(Errc::kInvalidArgument, "the line is not JSON: {}", value.error().message);
  }
  if (!value->is_object()) return error(Errc::kInvalidArgument, "the line is not a JSON object");
  return std::move(value->get_object());
}

// An integer in [low, high], however JSON spells it (1, 1.0).
Result<int64_t> integer(const json::value& value, std::string_view field, int64_t low,
                        int64_t high) {
  json::error_code status;
  const auto number = value.to_number<int64_t>(status);
  if (status || number < low || number > high) {
    return error(Errc::kInvalidArgument, "{}: {} is not an integer from {} to {}", field,
                 json::serialize(value), low, high);
  }
  return number;
}

template <typename T>
Result<std::vector<T>> integers(const json::value& value, std::string_view field, int64_t low,
                                int64_t high) {
  if (!value.is_array()) return error(Errc::kInvalidArgument, "{}: not an array", field);
  std::vector<T> numbers;
  numbers.reserve(value.get_array().size());
  for (const auto& element : value.get_array()) {
    MR_ASSIGN_OR_RETURN(const int64_t number, integer(element, field, low, high));
    numbers.push_back(static_cast<T>(number));
  }
  return numbers;
}

Result<void> read_bool(const json::object& object, std::string_view name, bool& value) {
  const auto* given = object.if_contains({name.data(), name.size()});
  if (given == nullptr) return {};
  if (!given->is_bool()) {
    return error(Errc::kInvalidArgument, "{}: {} is not true or false", name,
                 json::serialize(*given));
  }
  value = given->get_bool();
  return {};
}

// Token ids or text, but not both.
Result<void> read_prompt(const json::object& object, BatchPrompt& prompt) {
  const auto* tokens = object.if_contains("prompt_token_ids");
  const auto* text = object.if_contains("text");
  if (text == nullptr) text = object.if_contains("prompt");
  const bool is_text = text != nullptr && text->is_string();
  if (tokens == nullptr && !is_text) {
    return error(Errc::kInvalidArgument, "prompt_token_ids: missing, and so is text");
  }
  if (tokens != nullptr && object.if_contains("text") != nullptr) {
    return error(Errc::kInvalidArgument, "the prompt is text or prompt_token_ids, not both");
  }
  if (tokens == nullptr) {
    prompt.text = std::string(text->get_string());
    return read_bool(object, "add_special_tokens", prompt.add_special_tokens);
  }
  MR_ASSIGN_OR_RETURN(prompt.token_ids, integers<int32_t>(*tokens, "prompt_token_ids", 0,
                                                          std::numeric_limits<int32_t>::max()));
  return {};
}

// Only for a prompt of token ids.
Result<void> check_probes(const BatchPrompt& prompt) {
  const auto& probes = prompt.probe_positions;
  const auto disorder = std::ranges::adjacent_find(probes, std::greater_equal());
  if (disorder != probes.end()) {
    return error(Errc::kInvalidArgument, "probe_positions: must ascend, but {} comes after {}",
                 disorder[1], disorder[0]);
  }
  if (!probes.empty() && probes.back() >= static_cast<int64_t>(prompt.token_ids.size())) {
    return error(Errc::kInvalidArgument, "probe_positions: {} is outside the prompt of {} tokens",
                 probes.back(), prompt.token_ids.size());
  }
  const auto& targets = prompt.probe_target_ids;
  if (!targets.empty() && targets.size() != probes.size()) {
    return error(Errc::kInvalidArgument, "probe_target_ids: has {} entries for {} probe_positions",
                 targets.size(), probes.size());
  }
  return {};
}

// Empty when there is none.
std::string text_field(const json::object& object, std::string_view name) {
  const auto* value = object.if_contains({name.data(), name.size()});
  return value != nullptr && value->is_string() ? std::string(value->get_string()) : std::string();
}

json::array pairs(const std::vector<model::TokenScore>& tokens, float model::TokenScore::*score) {
  json::array array;
  for (const auto& token : tokens) array.push_back({token.token_id, token.*score});
  return array;
}

// JSON cannot express a number that is not finite.
json::array finite_or_null(const std::vector<double>& numbers) {
  json::array array;
  for (const double number : numbers) {
    array.push_back(std::isfinite(number) ? json::value(number) : json::value());
  }
  return array;
}

// {"mean": [[...], ...], "least": [[...], ...]}, one row a layer.
json::object by_layer_and_head(const engine::HeadRecalls& recalls) {
  json::array mean, least;
  for (size_t i = 0; i < recalls.all().size(); ++i) {
    if (i % static_cast<size_t>(recalls.num_heads()) == 0) {
      mean.emplace_back(json::array());
      least.emplace_back(json::array());
    }
    mean.back().as_array().emplace_back(recalls.all()[i].mean());
    least.back().as_array().emplace_back(recalls.all()[i].least);
  }
  return {{"mean", std::move(mean)}, {"least", std::move(least)}};
}

}  // namespace

Result<BatchPrompt> parse_batch_prompt(std::string_view line) {
  MR_ASSIGN_OR_RETURN(const auto object, parse_object(line));
  BatchPrompt prompt;
  const auto* id = object.if_contains("id");
  if (id == nullptr || !id->is_string()) return error(Errc::kInvalidArgument, "id: no string");
  prompt.id = std::string(id->get_string());
  MR_RETURN_IF_ERROR(read_prompt(object, prompt));
  if (const auto* max_tokens = object.if_contains("max_tokens")) {
    MR_ASSIGN_OR_RETURN(const int64_t number,
                        integer(*max_tokens, "max_tokens", 1, kMaxBatchNewTokens));
    prompt.max_tokens = static_cast<int32_t>(number);
  }
  MR_RETURN_IF_ERROR(read_bool(object, "ignore_eos", prompt.ignore_eos));
  if (const auto* probes = object.if_contains("probe_positions")) {
    MR_ASSIGN_OR_RETURN(
        prompt.probe_positions,
        integers<int64_t>(*probes, "probe_positions", 0, std::numeric_limits<int64_t>::max()));
  }
  if (const auto* targets = object.if_contains("probe_target_ids")) {
    MR_ASSIGN_OR_RETURN(
        prompt.probe_target_ids,
        integers<int32_t>(*targets, "probe_target_ids", 0, std::numeric_limits<int32_t>::max()));
  }
  if (prompt.text && !prompt.probe_positions.empty()) {
    return error(Errc::kInvalidArgument, "probe_positions: are of prompt_token_ids, not of text");
  }
  MR_RETURN_IF_ERROR(check_probes(prompt));
  return prompt;
}

std::string batch_prompt_id(std::string_view line) {
  const auto object = parse_object(line);
  return object.ok() ? text_field(*object, "id") : std::string();
}

std::string batch_result_line(const std::string& id, const BatchResult& result) {
  json::object phases = {{"total", result.total_s}};
  for (size_t i = 0; i < engine::kPhaseNames.size(); ++i) {
    phases[engine::kPhaseNames[i]] = result.phases.seconds()[i];
  }
  json::object line = {{"id", id},
                       {"status", "ok"},
                       {"error", nullptr},
                       {"num_tokens", result.num_tokens},
                       {"generated_token_ids", json::value_from(result.generated_token_ids)},
                       {"finish_reason", result.finish_reason},
                       {"top_logprobs", pairs(result.top_tokens, &model::TokenScore::logprob)},
                       {"top_logits", pairs(result.top_tokens, &model::TokenScore::logit)},
                       {"probe_token_ids", json::value_from(result.probe_token_ids)},
                       {"probe_logprobs", finite_or_null(result.probe_logprobs)},
                       {"density", result.density},
                       {"recall", result.recall},
                       {"recall_p01", result.recall_p01},
                       {"dense_for_length", result.dense_for_length},
                       {"seconds", std::move(phases)}};
  if (!result.recall_by_head.empty()) {
    line["recall_by_head"] = by_layer_and_head(result.recall_by_head);
  }
  if (result.generated_text) line["generated_text"] = *result.generated_text;
  if (result.dropped) {
    line["dropped"] = {{"pages", result.dropped->pages},
                       {"bytes", result.dropped->bytes},
                       {"mass", result.dropped->mass}};
  }
  return json::serialize(line) + "\n";
}

std::string batch_error_line(const std::string& id, const Error& error) {
  return json::serialize(json::object{
             {"id", id},
             {"status", "error"},
             {"error", {{"code", errc_name(error.code)}, {"message", error.message}}}}) +
         "\n";
}

EarlierResult read_result_line(std::string_view line) {
  const auto object = parse_object(line);
  if (!object.ok()) return {};
  return {.id = text_field(*object, "id"), .ok = text_field(*object, "status") == "ok"};
}

}  // namespace millrace::worker
