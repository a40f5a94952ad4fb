// SPDX-License-Identifier: Apache-2.0
#include "common/content/page_keys.h"

#include "common/check.h"
#include "common/content/canonical_cbor.h"
#include "common/page_tokens.h"

namespace millrace {

namespace {

void add_origin(CanonicalCbor& cbor, const PageOrigin& origin) {
  cbor.begin_array(7);
  cbor.add("millrace");
  cbor.add(kPageKeyVersion);
  cbor.add(origin.model);
  cbor.add(origin.dtype);
  cbor.add(int64_t{origin.long_rope ? 1 : 0});
  cbor.add(origin.plan);
  cbor.add(origin.salt);
}

}  // namespace

std::vector<PageContentKey> page_keys(std::span<const int32_t> token_ids, int64_t num_pages,
                                      const PageOrigin& origin) {
  MR_CHECK(num_pages >= 0 && num_pages * kPageTokens <= std::ssize(token_ids),
           "{} full pages of {} tokens", num_pages, token_ids.size());
  std::vector<PageContentKey> keys;
  keys.reserve(static_cast<size_t>(num_pages));
  CanonicalCbor cbor;
  for (int64_t page = 0; page < num_pages; ++page) {
    cbor.clear();
    cbor.begin_array(3);
    page == 0 ? cbor.add_null() : cbor.add(std::span<const std::byte>(keys.back()));
    const auto tokens = token_ids.subspan(static_cast<size_t>(page * kPageTokens), kPageTokens);
    cbor.begin_array(tokens.size());
    for (const int32_t token : tokens) cbor.add(int64_t{token});
    page == 0 ? add_origin(cbor, origin) : cbor.add_null();
    keys.push_back(sha256(cbor.bytes()));
  }
  return keys;
}

}  // namespace millrace
