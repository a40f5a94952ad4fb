// SPDX-License-Identifier: Apache-2.0
#include "kvstore/pages/cache_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace millrace::kvstore {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

PageContentKey key(int number) {
  PageContentKey made{};
  made.back() = static_cast<std::byte>(number);
  return made;
}

std::shared_ptr<const CachedPrompt> prompt(size_t num_pages) {
  CachedPrompt made;
  made.page_keys.resize(num_pages);
  return std::make_shared<const CachedPrompt>(std::move(made));
}

// "+1" for page 1 that came, "-1" for one that went, "p" for a prompt.
std::vector<std::string> read(const CacheLog& log, int64_t from) {
  std::vector<std::string> changes;
  for (const auto& change : log.read(from).value_or(CacheNews()).changes) {
    if (change.kind == CacheChange::Kind::kPrompt) {
      changes.emplace_back("p");
      continue;
    }
    const char sign = change.kind == CacheChange::Kind::kAdded ? '+' : '-';
    changes.push_back(sign + std::to_string(std::to_integer<int>(change.key.back())));
  }
  return changes;
}

TEST(CacheLog, EachReaderReadsOnFromWhereItStopped) {
  CacheLog log;
  const int64_t start = log.end();
  log.entered(key(1));
  log.remembered(prompt(1));
  const int64_t later = log.read(start)->end;
  log.left(key(1));
  EXPECT_THAT(read(log, start), ElementsAre("+1", "p", "-1"));
  EXPECT_THAT(read(log, later), ElementsAre("-1"));
  EXPECT_THAT(read(log, log.end()), IsEmpty());
}

TEST(CacheLog, APageThatIsKeptNeitherComesNorGoes) {
  std::set<PageContentKey> kept;
  CacheLog log([&](const PageContentKey& one) { return kept.contains(one); });
  const int64_t start = log.end();
  log.entered(key(1));
  kept.insert(key(1));
  log.left(key(1));
  log.entered(key(1));
  kept.clear();
  log.left(key(1));
  EXPECT_THAT(read(log, start), ElementsAre("+1", "-1"));
}

TEST(CacheLog, AReaderThatStoppedTooEarlyIsToldSo) {
  CacheLog log(nullptr, /*most_pages=*/3);
  const int64_t start = log.end();
  for (int i = 1; i <= 3; ++i) log.entered(key(i));
  EXPECT_TRUE(log.read(start));
  log.entered(key(4));
  EXPECT_FALSE(log.read(start));
  EXPECT_THAT(read(log, start + 1), ElementsAre("+2", "+3", "+4"));
  // A prompt counts with its pages, and is read even if it is too long.
  const int64_t before = log.end();
  log.remembered(prompt(2));
  EXPECT_THAT(read(log, before), ElementsAre("p"));
  EXPECT_FALSE(log.read(before - 1));
  log.remembered(prompt(9));
  EXPECT_THAT(read(log, before + 1), ElementsAre("p"));
}

}  // namespace
}  // namespace millrace::kvstore
