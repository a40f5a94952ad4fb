// SPDX-License-Identifier: Apache-2.0
#include "worker/events/journal_file.h"

#include <cstring>
#include <optional>
#include <string_view>
#include <unordered_set>

namespace millrace::worker {

namespace {

constexpr char kFormat = 1;
constexpr size_t kFixedBytes =
    2 + 2 * sizeof(PageContentKey) + sizeof(decltype(StoredPage::token_ids));

template <typename T>
void put(std::string& bytes, const T& value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// The caller has checked that there are enough bytes.
template <typename T>
void take(std::string_view& bytes, T& value) {
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes.remove_prefix(sizeof value);
}

std::vector<std::string> encode(std::span<const StoredPage> pages) {
  std::vector<std::string> bodies;
  bodies.reserve(pages.size());
  for (const auto& page : pages) {
    std::string& body = bodies.emplace_back();
    body.reserve(kFixedBytes + page.cache_salt.size());
    put(body, kFormat);
    put(body, page.key);
    put(body, static_cast<char>(page.parent ? 1 : 0));
    put(body, page.parent.value_or(PageContentKey{}));
    put(body, page.token_ids);
    body += page.cache_salt;
  }
  return bodies;
}

// None for another format.
std::optional<StoredPage> decode(std::string_view body) {
  if (body.size() < kFixedBytes || body.front() != kFormat) return std::nullopt;
  body.remove_prefix(sizeof kFormat);
  StoredPage page;
  char has_parent = 0;
  take(body, page.key);
  take(body, has_parent);
  take(body, page.parent.emplace());
  if (has_parent == 0) page.parent.reset();
  take(body, page.token_ids);
  page.cache_salt = body;
  return page;
}

}  // namespace

Result<JournalFile> JournalFile::open(const std::string& path) {
  MR_ASSIGN_OR_RETURN(auto file, RecordFile::open(path));
  return JournalFile(std::move(file));
}

Result<std::vector<StoredPage>> JournalFile::read(const Filter& is_wanted) const {
  std::vector<StoredPage> pages;
  std::unordered_set<PageContentKey, PageContentKeyHash> known;
  MR_RETURN_IF_ERROR(file_.read(kMaxBytes, [&](std::string_view body) {
    if (pages.size() == kMaxPages) return;
    auto page = decode(body);
    if (!page || known.contains(page->key) || !is_wanted(page->key)) return;
    if (page->parent && !known.contains(*page->parent)) return;
    known.insert(page->key);
    pages.push_back(*std::move(page));
  }));
  return pages;
}

Result<void> JournalFile::append(std::span<const StoredPage> pages) {
  return file_.append(encode(pages));
}

Result<void> JournalFile::replace(std::span<const StoredPage> pages) {
  return file_.replace(encode(pages));
}

}  // namespace millrace::worker
