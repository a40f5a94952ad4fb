// SPDX-License-Identifier: Apache-2.0
#include "worker/events/journal_file.h"

#include <cstring>
#include <optional>
#include <string_view>
#include <unordered_set>

#include "common/page_tokens.h"

namespace millrace::worker {

namespace {

constexpr char kPageRecord = 'P';
constexpr char kOriginRecord = 'O';
constexpr size_t kFixedBytes =
    1 + 2 * sizeof(PageContentKey) + sizeof(StoredPage::prefix_key) + sizeof(uint32_t);

template <typename T>
void put(std::string& bytes, const T& value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// The caller has checked that there are enough bytes.
template <typename T>
T take(std::string_view& bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes.remove_prefix(sizeof value);
  return value;
}

std::string encode(const StoredPage& page) {
  std::string body;
  body.reserve(kFixedBytes + page.token_ids.size() * sizeof(int32_t) + page.cache_salt.size());
  put(body, kPageRecord);
  put(body, page.key);
  put(body, page.parent.value_or(PageContentKey{}));
  put(body, page.prefix_key);
  put(body, static_cast<uint32_t>(page.token_ids.size()));
  for (const int32_t token : page.token_ids) put(body, token);
  return body + page.cache_salt;
}

std::vector<std::string> encode(const JournalFile::Contents& contents) {
  std::vector<std::string> bodies;
  bodies.reserve(contents.origins.size() + contents.pages.size());
  for (const auto& origin : contents.origins) {
    bodies.push_back(kOriginRecord + origin.SerializeAsString());
  }
  for (const auto& page : contents.pages) bodies.push_back(encode(page));
  return bodies;
}

// None if it is not a page's.
std::optional<StoredPage> decode_page(std::string_view body) {
  if (body.size() < kFixedBytes || take<char>(body) != kPageRecord) return std::nullopt;
  StoredPage page{.key = take<PageContentKey>(body), .parent = take<PageContentKey>(body)};
  if (page.parent == PageContentKey{}) page.parent.reset();
  page.prefix_key = take<uint64_t>(body);
  const auto num_tokens = take<uint32_t>(body);
  if (num_tokens > kPageTokens || body.size() < num_tokens * sizeof(int32_t)) return std::nullopt;
  for (uint32_t i = 0; i < num_tokens; ++i) page.token_ids.push_back(take<int32_t>(body));
  page.cache_salt = body;
  return page;
}

std::optional<protocol::PlanOrigin> decode_origin(std::string_view body) {
  protocol::PlanOrigin origin;
  if (body.empty() || take<char>(body) != kOriginRecord ||
      !origin.ParseFromArray(body.data(), static_cast<int>(body.size()))) {
    return std::nullopt;
  }
  return origin;
}

}  // namespace

Result<JournalFile> JournalFile::open(const std::string& path) {
  MR_ASSIGN_OR_RETURN(auto file, RecordFile::open(path));
  return JournalFile(std::move(file));
}

Result<JournalFile::Contents> JournalFile::read(const Filter& is_wanted, size_t most_pages) const {
  Contents contents;
  std::unordered_set<PageContentKey, PageContentKeyHash> known;
  MR_RETURN_IF_ERROR(file_.read(kMaxBytes, [&](std::string_view body) {
    if (auto origin = decode_origin(body)) {
      if (contents.origins.size() == kMaxOrigins) contents.origins.erase(contents.origins.begin());
      contents.origins.push_back(*std::move(origin));
      return;
    }
    if (contents.pages.size() == most_pages) return;
    auto page = decode_page(body);
    if (!page || known.contains(page->key) || !is_wanted(page->key)) return;
    if (page->parent && !known.contains(*page->parent)) return;
    known.insert(page->key);
    contents.pages.push_back(*std::move(page));
  }));
  return contents;
}

Result<void> JournalFile::append(const Contents& contents) {
  return file_.append(encode(contents));
}

Result<void> JournalFile::replace(const Contents& contents) {
  return file_.replace(encode(contents));
}

}  // namespace millrace::worker
