// SPDX-License-Identifier: Apache-2.0
// Sets and checks the fields of a PrefillBody by name: the part that all forms of a request have in
// common.
#pragma once

#include <bitset>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "coordinator/api/json_reader.h"
#include "coordinator/api/parse_prefill.h"

namespace millrace::coordinator {

class PrefillFields {
 public:
  enum class Kind { kString, kInt, kBool, kTokens, kNumber, kText };
  // A value for a field, in the member that the field's kind names, and where it goes.
  struct Setting {
    PrefillBody& body;
    const PrefillBodyLimits& limits;
    std::string_view shown;  // the client's name for the field
    std::string_view text;
    int64_t integer = 0;
    double number = 0;
    bool truth = false;
  };
  struct Field {
    std::string_view name;
    Kind kind;
    Result<void> (*set)(const Setting& value) = nullptr;  // null: the prompt, set in pieces
  };
  static constexpr size_t kMaxNameChars = 128;  // of a name that an error quotes
  // The fields of the JSON form; the query takes all of them except the prompt.
  static std::span<const Field> fields();

  // `prompt_name`: what the client calls its prompt.
  explicit PrefillFields(const PrefillBodyLimits& limits,
                         std::string_view prompt_name = "prompt_token_ids");

  // Names the field that is set next; refuses unknown and repeated ones. `shown`: the client's name
  // for it.
  Result<void> begin(std::string_view name, std::string_view shown);
  Result<void> begin(std::string_view name) { return begin(name, name); }
  // The last field named, as the client calls it; "" before the first.
  const std::string& current() const { return current_; }

  // The functions below need a begin() that returned no error.
  Result<void> set(const JsonScalar& value);
  // From a query parameter: "true", "1500", "name".
  Result<void> set_text(std::string_view value);
  bool takes_tokens() const { return kind() == Kind::kTokens; }
  bool takes_prompt() const { return takes_tokens() || kind() == Kind::kText; }
  // To be called before the first token, if their number is known.
  Result<void> expect_tokens(size_t count);
  Result<void> add(const JsonScalar& element);
  Result<void> add_token(int64_t token);
  size_t num_tokens() const { return body_.prompt_token_ids.size(); }
  // A prompt in UTF-8, in place of tokens.
  Result<void> set_prompt_text(std::string_view text);
  bool has_text() const { return body_.text.has_value(); }
  void set_add_special_tokens(bool add) { body_.add_special_tokens = add; }
  void set_is_chat() { body_.is_chat = true; }
  // The error for a value of another type, such as "null".
  Error wrong_type(std::string_view got) const;

  // Checks that all required fields are there. Nothing can be set any more.
  ParsedPrefillBody finish();

 private:
  static std::optional<size_t> find(std::string_view name);  // in fields()
  Kind kind() const { return fields()[field_].kind; }
  bool was_given(std::string_view name) const { return seen_.test(*find(name)); }
  // Checks that a cache in part is allowed with the other fields.
  std::optional<Refusal> check_kv_budget();

  PrefillBodyLimits limits_;
  PrefillBody body_;
  size_t field_ = 0;  // in fields()
  std::string current_;
  std::bitset<64> seen_;  // by place in fields()
};

}  // namespace millrace::coordinator
