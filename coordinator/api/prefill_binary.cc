// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <cstring>

#include "common/text/utf8.h"
#include "coordinator/api/parse_prefill.h"
#include "coordinator/api/prefill_fields.h"
#include "coordinator/text/http_text.h"

namespace millrace::coordinator {

static_assert(std::endian::native == std::endian::little, "token ids are copied as they are");

namespace {

Result<void> read_query(std::string_view query, PrefillFields& fields) {
  MR_ASSIGN_OR_RETURN(const auto parameters, parse_query(query));
  for (const auto& [name, value] : parameters) {
    MR_RETURN_IF_ERROR(fields.begin(name));
    if (fields.takes_prompt()) {
      return error(Errc::kInvalidArgument, "'{}' is a parameter, but the prompt is the body",
                   fields.current());
    }
    MR_RETURN_IF_ERROR(fields.set_text(value));
  }
  return {};
}

Result<void> read_tokens(std::string_view body, PrefillFields& fields) {
  MR_RETURN_IF_ERROR(fields.begin("prompt_token_ids"));
  if (body.size() % sizeof(int32_t) != 0) {
    return error(Errc::kInvalidArgument, "a body of {} bytes is not an array of int32",
                 body.size());
  }
  MR_RETURN_IF_ERROR(fields.expect_tokens(body.size() / sizeof(int32_t)));
  for (size_t at = 0; at < body.size(); at += sizeof(int32_t)) {
    int32_t token = 0;
    std::memcpy(&token, body.data() + at, sizeof token);
    MR_RETURN_IF_ERROR(fields.add_token(token));
  }
  return {};
}

Result<void> read_text(std::string_view body, PrefillFields& fields) {
  MR_RETURN_IF_ERROR(fields.begin("text"));
  MR_RETURN_IF_ERROR(fields.set_prompt_text(body));
  const size_t valid = utf8_prefix(body);
  if (valid == body.size()) return {};
  if (const auto encoding = byte_order_mark(body); !encoding.empty() && valid == 0) {
    return error(Errc::kInvalidArgument, "the text is not UTF-8: it has a byte order mark of {}",
                 encoding);
  }
  return error(Errc::kInvalidArgument, "the text is not UTF-8: byte {} of {}", valid, body.size());
}

}  // namespace

ParsedPrefillBody parse_prefill_text(std::string_view body, std::string_view query,
                                     const PrefillBodyLimits& limits) {
  PrefillFields fields(limits);
  Result<void> read = read_query(query, fields);
  if (read.ok()) read = read_text(body, fields);
  if (!read.ok()) return Refusal(std::move(read).error(), fields.current());
  return fields.finish();
}

ParsedPrefillBody parse_prefill_binary(std::string_view body, std::string_view query,
                                       const PrefillBodyLimits& limits) {
  PrefillFields fields(limits);
  Result<void> read = read_query(query, fields);
  if (read.ok()) read = read_tokens(body, fields);
  if (!read.ok()) return Refusal(std::move(read).error(), fields.current());
  return fields.finish();
}

}  // namespace millrace::coordinator
