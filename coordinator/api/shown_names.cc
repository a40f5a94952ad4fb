// SPDX-License-Identifier: Apache-2.0
#include "coordinator/api/shown_names.h"

#include <span>
#include <utility>

#include "common/check.h"
#include "common/content/sha256.h"

namespace millrace::coordinator {

namespace {

// Of 64 bits: no two of the requests that are shown at once have the same word.
constexpr size_t kShownDigits = 16;

}  // namespace

ShownNames ShownNames::hidden(std::string key) {
  MR_CHECK(!key.empty(), "no key");
  ShownNames names;
  names.key_ = std::move(key);
  return names;
}

std::string ShownNames::id_of(const Request& request) const {
  if (!are_hidden()) return request.id;
  const std::string keyed = key_ + request.id;
  return "hidden-" + sha256_hex(std::as_bytes(std::span(keyed))).substr(0, kShownDigits);
}

std::string ShownNames::owner_of(const Request& request) const {
  return are_hidden() ? "" : request.owner;
}

}  // namespace millrace::coordinator
