// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/text_messages.h"

#include <algorithm>
#include <bit>
#include <boost/json.hpp>
#include <cstring>

#include "tokenizer/reply_error.h"

namespace millrace::tokenizer {

namespace json = boost::json;

static_assert(std::endian::native == std::endian::little, "token ids are copied as they are");

namespace {

std::string to_bytes(std::span<const int32_t> token_ids) {
  std::string bytes(token_ids.size_bytes(), '\0');
  if (!token_ids.empty()) std::memcpy(bytes.data(), token_ids.data(), bytes.size());
  return bytes;
}

Error not_as_expected(const Frame& reply) {
  return error(Errc::kCorrupt, "the tokenizer said {:.200}", reply.header);
}

}  // namespace

Frame encode_request(std::string text, bool add_special_tokens) {
  const json::object header{{"do", "encode"}, {"add_special_tokens", add_special_tokens}};
  return {.header = json::serialize(header), .body = std::move(text)};
}

Frame chat_request(std::string body, bool add_special_tokens) {
  const json::object header{{"do", "chat"}, {"add_special_tokens", add_special_tokens}};
  return {.header = json::serialize(header), .body = std::move(body)};
}

Result<std::vector<int32_t>> encoded_ids(const Frame& reply, int64_t num_ids) {
  MR_RETURN_IF_ERROR(read_header(reply));
  if (reply.body.size() % sizeof(int32_t) != 0) return not_as_expected(reply);
  std::vector<int32_t> ids(reply.body.size() / sizeof(int32_t));
  if (!ids.empty()) std::memcpy(ids.data(), reply.body.data(), reply.body.size());
  const auto bad = std::find_if(ids.begin(), ids.end(),
                                [num_ids](int32_t id) { return id < 0 || id >= num_ids; });
  if (bad == ids.end()) return ids;
  return error(Errc::kCorrupt, "the tokenizer made token id {} of a vocabulary of {}", *bad,
               num_ids);
}

Frame following_request(std::span<const int32_t> context, const std::vector<int32_t>& token_ids,
                        const std::vector<int32_t>& listed) {
  const json::object header{{"do", "follow"},
                            {"token_ids", json::value_from(token_ids)},
                            {"listed", json::value_from(listed)}};
  return {.header = json::serialize(header),
          .body = to_bytes(context.last(std::min(context.size(), kContextTokens)))};
}

Result<FollowingText> following_text(const Frame& reply) {
  MR_ASSIGN_OR_RETURN(const json::object header, read_header(reply));
  const json::value* text = header.if_contains("text");
  const json::value* names = header.if_contains("names");
  if (text == nullptr || !text->is_string() || names == nullptr || !names->is_array()) {
    return not_as_expected(reply);
  }
  FollowingText following{.text = std::string(text->get_string())};
  for (const json::value& name : names->get_array()) {
    if (!name.is_string()) return not_as_expected(reply);
    following.names.emplace_back(name.get_string());
  }
  return following;
}

}  // namespace millrace::tokenizer
