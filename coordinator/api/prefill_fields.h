// Sets the fields of a PrefillBody by name, with their checks; what the JSON and the query form of
// a request have in common.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "coordinator/api/parse_prefill.h"

namespace millrace::coordinator {

class PrefillFields {
 public:
  enum class Kind { kString, kInt, kBool, kTokens, kNumber };
  struct Field {
    std::string_view name;
    Kind kind;
    uint32_t bit;
  };
  // Of the JSON form; the query takes all but the tokens.
  static std::span<const Field> all();

  explicit PrefillFields(const PrefillBodyLimits& limits) : limits_(limits) {}

  // Names the field that the next set_ is for; refuses unknown and repeated ones.
  Result<void> begin(std::string_view field);
  const std::string& current() const { return current_; }

  Result<void> set_string(std::string_view value);
  Result<void> set_int(int64_t value);
  Result<void> set_number(double value);
  Result<void> set_bool(bool value);
  // From a query parameter: "true", "1500", "name".
  Result<void> set_text(std::string_view value);
  Result<void> add_token(int64_t token);
  // Before the first one, where their number is known.
  Result<void> expect_tokens(size_t count);
  // The value has a type that no field has, e.g. "null".
  Error wrong_type(std::string_view got) const;

  bool takes_tokens() const { return current_ == "prompt_token_ids"; }

  // Required fields there?
  Result<void> finish();
  PrefillBody take() { return std::move(body_); }

 private:
  Result<void> set_handover(std::string_view value);

  static const Field* find(std::string_view name);
  Kind kind() const { return find(current_)->kind; }

  PrefillBodyLimits limits_;
  PrefillBody body_;
  std::string current_;
  uint32_t seen_ = 0;  // a bit a field
};

}  // namespace millrace::coordinator
