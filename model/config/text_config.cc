// SPDX-License-Identifier: Apache-2.0
#include "model/config/text_config.h"

#include <algorithm>
#include <array>
#include <boost/json/array.hpp>
#include <boost/json/value.hpp>
#include <string_view>
#include <utility>

#include "model/json/json_fields.h"

namespace millrace::model {

namespace {

// An architecture for images and text, the model_type of its text_config, and that text model's
// architecture.
struct Wrapped {
  std::string_view architecture, model_type, text_architecture;
};
constexpr std::array kWrapped = {
    Wrapped{"Gemma3ForConditionalGeneration", "gemma3_text", "Gemma3ForCausalLM"},
    Wrapped{"Mistral3ForConditionalGeneration", "mistral", "MistralForCausalLM"},
};

// Empty unless there is exactly one architecture.
std::string_view architecture_of(const boost::json::object& config) {
  const auto* names = config.if_contains("architectures");
  if (names == nullptr || !names->is_array() || names->get_array().size() != 1) return {};
  const auto* name = names->get_array()[0].if_string();
  return name == nullptr ? std::string_view() : std::string_view(*name);
}

}  // namespace

Result<boost::json::object> text_config(boost::json::object config, const std::string& path) {
  const auto* wrapped =
      std::ranges::find(kWrapped, architecture_of(config), &Wrapped::architecture);
  if (wrapped == kWrapped.end()) return config;
  MR_ASSIGN_OR_RETURN(const auto fields, JsonFields(config, path).object("text_config"));
  MR_ASSIGN_OR_RETURN(const auto type, fields.string_or("model_type", wrapped->model_type));
  if (type != wrapped->model_type) {
    return fields.unsupported("model_type", fmt::format("\"{}\"", wrapped->model_type));
  }
  boost::json::object text = std::move(config["text_config"].get_object());
  text["architectures"] = boost::json::array{wrapped->text_architecture};
  for (const char* field : {"quantization_config", "eos_token_id"}) {
    const auto* value = config.if_contains(field);
    const auto* of_text = text.if_contains(field);
    if (value != nullptr && (of_text == nullptr || of_text->is_null())) text[field] = *value;
  }
  // The class around the text model has the last layer, and ties it unless told otherwise.
  const auto* tied = config.if_contains("tie_word_embeddings");
  text["tie_word_embeddings"] =
      tied == nullptr || tied->is_null() ? boost::json::value(true) : *tied;
  return text;
}

}  // namespace millrace::model
