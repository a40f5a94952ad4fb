// SPDX-License-Identifier: Apache-2.0
#include "coordinator/api/json_reader.h"
#include "coordinator/api/parse_prefill.h"
#include "coordinator/api/prefill_fields.h"

namespace millrace::coordinator {

namespace {

// Only one shape is possible, an object of scalars and one flat array.
class PrefillJson : public JsonSink {
 public:
  explicit PrefillJson(const PrefillBodyLimits& limits) : fields_(limits) {}

  Result<void> key(std::string_view name) override { return fields_.begin(name); }
  Result<void> value(const JsonScalar& value) override {
    return in_tokens_ ? fields_.add(value) : fields_.set(value);
  }
  Result<void> object_begins() override { return fields_.wrong_type("an object"); }
  Result<void> object_ends() override { return {}; }
  Result<void> array_begins() override {
    if (in_tokens_ || !fields_.takes_tokens()) return fields_.wrong_type("an array");
    in_tokens_ = true;
    return {};
  }
  Result<void> array_ends() override {
    in_tokens_ = false;
    return {};
  }
  const std::string& blamed() const override { return fields_.current(); }

  PrefillFields& fields() { return fields_; }

 private:
  PrefillFields fields_;
  bool in_tokens_ = false;
};

}  // namespace

ParsedPrefillBody parse_prefill_json(std::string_view body, const PrefillBodyLimits& limits) {
  PrefillJson json(limits);
  if (auto wrong = read_json_object(body, json)) return *std::move(wrong);
  return json.fields().finish();
}

}  // namespace millrace::coordinator
