// Sets the fields of a PrefillBody by name and checks them: what the JSON and the binary form of a
// request have in common.
#pragma once

#include <optional>
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
  };
  // Of the JSON form; the query takes all but the tokens.
  static std::span<const Field> fields();

  explicit PrefillFields(const PrefillBodyLimits& limits) : limits_(limits) {}

  // Names the field that the next set_ sets; refuses unknown and repeated ones.
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
  // For a value of the wrong type, such as "null".
  Error wrong_type(std::string_view got) const;

  bool takes_tokens() const { return current_ == "prompt_token_ids"; }

  // Checks that all required fields are there.
  Result<void> finish();
  PrefillBody take() { return std::move(body_); }

 private:
  Result<void> set_handover(std::string_view value);

  static std::optional<size_t> find(std::string_view name);  // its place among the fields
  Kind kind() const { return fields()[*find(current_)].kind; }

  PrefillBodyLimits limits_;
  PrefillBody body_;
  std::string current_;
  uint32_t seen_ = 0;  // one bit per field
};

}  // namespace millrace::coordinator
