// SPDX-License-Identifier: Apache-2.0
// Pulls of caches of which only some pages are kept: what comes, what is left alone, and what is
// refused.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <random>
#include <set>

#include "comm/local/local_transport.h"
#include "kvclient/kv_client.h"
#include "kvclient/pull_client.h"
#include "tests/unit/kvclient/fake_ranks.h"
#include "tests/unit/kvclient/paged_cache.h"

namespace millrace::kvclient {
namespace {

using test::FakeRanks;
using test::PagedCache;
using ::testing::HasSubstr;

Deadline ample() {
  return Deadline::after(std::chrono::seconds(60));
}

class PartialPullTest : public testing::Test {
 protected:
  PartialPullTest() {
    std::mt19937 random(3);
    KeptPages kept(3, 4, manifest_.num_pages());
    for (int32_t layer = 0; layer < 3; ++layer) {
      for (int32_t head = 0; head < 4; ++head) {
        kept.keep(layer, head, manifest_.num_pages() - 1);
        // Few pages of layer 1 are kept, and none of some ranks.
        for (int64_t page = 0; page < manifest_.num_pages(); ++page) {
          if (layer != 1 && random() % 2 == 0) kept.keep(layer, head, page);
        }
      }
    }
    manifest_.kept_pages = kept;
    manifest_.version = 2;
  }

  Result<void> note(const protocol::PageRequest& request) {
    const std::lock_guard lock(mutex_);
    std::vector<int64_t> pages(request.pages().begin(), request.pages().end());
    for (uint32_t i = 0; i < request.num_pages(); ++i) {
      pages.push_back(static_cast<int64_t>(request.first_page() + i));
    }
    for (const int64_t page : pages) {
      const auto layer = static_cast<int32_t>(request.layer());
      const auto head = static_cast<int32_t>(request.kv_head());
      if (!manifest_.has_page(layer, head, page)) ++num_absent_asked_;
    }
    return {};
  }
  PullRequest request(PagedCache& cache) {
    auto request = cache.request();
    request.takes_part = true;
    return request;
  }
  std::string refusal(const PullRequest& request) {
    PullClient client(transport_, {});
    const auto pull = client.start(manifest_, request);
    return pull.ok() ? "accepted" : pull.error().to_string();
  }

  comm::LocalTransport transport_;
  std::mutex mutex_;
  int64_t num_absent_asked_ = 0;
  const FakeRanks ranks_{transport_, {.num_layers = 3}, [this](const auto& r) { return note(r); }};
  Manifest manifest_ = ranks_.manifest();  // 4 kv heads on 2 x 2 ranks, 11 pages
};

TEST_F(PartialPullTest, BringsWhatThereIsInEitherOrderAndLeavesTheRestAlone) {
  ASSERT_TRUE(check_manifest(manifest_).ok());
  PullClient client(transport_, {.num_threads = 3, .pages_per_request = 2});
  for (const auto order : {PullOrder::kPosition, PullOrder::kCriticality}) {
    for (const int32_t block_tokens : {16, 64, 128}) {
      PagedCache cache(ranks_, test::whole(ranks_, test::Layout::kHndTwoTensors, block_tokens));
      cache.expect_pages_of(manifest_);
      auto wanted = request(cache);
      wanted.order = order;
      const auto pull = client.start(manifest_, wanted);
      ASSERT_TRUE(pull.ok()) << pull.error().to_string();
      const auto end = (*pull)->wait(ample());
      ASSERT_TRUE(end.has_value());
      ASSERT_TRUE(end->ok()) << end->error().to_string();
      EXPECT_EQ(cache.difference(), "");
      EXPECT_EQ((*pull)->stats().pages, manifest_.kept_pages->count());
      EXPECT_EQ((*pull)->stats().bytes, manifest_.kept_pages->count() * manifest_.page_bytes());
      EXPECT_EQ((*pull)->progress().layers_complete, 3);
      EXPECT_EQ((*pull)->progress().hot_layers_complete, 3);
    }
  }
  EXPECT_EQ(num_absent_asked_, 0);
}

TEST_F(PartialPullTest, AnEngineThatTakesWholeCachesIsRefused) {
  PagedCache cache(ranks_, test::whole(ranks_));
  EXPECT_THAT(refusal(cache.request()), HasSubstr("unsupported: request 'prompt-1': its cache is "
                                                  "kept in part (kv_budget)"));
  auto part = request(cache);
  part.num_tokens = 64;
  EXPECT_THAT(refusal(part), HasSubstr("tokens 0 + 64 of 700"));
  EXPECT_TRUE(cache.untouched());
}

TEST_F(PartialPullTest, APageByNameThatWasDroppedIsNotFound) {
  std::vector<std::byte> memory(static_cast<size_t>(manifest_.page_bytes()));
  EXPECT_THAT(refusal({.pages = {{{1, 2, 4}, memory.data()}}, .block_ids = {}, .layers = {}}),
              HasSubstr("layer 1, kv head 2, page 4 was dropped"));
  EXPECT_EQ(refusal({.pages = {{{1, 2, 10}, memory.data()}}, .block_ids = {}, .layers = {}}),
            "accepted");
  KvClient client(transport_, manifest_, {});
  EXPECT_EQ(client.pull(1, 2, 4, 1, memory, ample()).error().code, Errc::kNotFound);
  EXPECT_TRUE(client.pull(1, 2, 10, 1, memory, ample()).ok());
  const auto digests = client.pull_digests(1, 2, 9, 2, ample());
  ASSERT_TRUE(digests.ok());
  EXPECT_EQ(digests->front(), 0);
  EXPECT_EQ(digests->back(), ranks_.digest(1, 2, 10).back());
}

TEST_F(PartialPullTest, AManifestOfItComesBackFromJson) {
  const auto again = parse_manifest(to_json(manifest_), "test");
  ASSERT_TRUE(again.ok()) << again.error().to_string();
  EXPECT_EQ(again->kept_pages, manifest_.kept_pages);
  EXPECT_EQ(again->version, 2);
  const auto whole = parse_manifest(to_json(ranks_.manifest()), "test");
  EXPECT_FALSE(whole->kept_pages.has_value());
}

TEST_F(PartialPullTest, ManifestsThatDoNotFitTheirPagesAreRefused) {
  const auto why = [](const Manifest& manifest) {
    const auto checked = check_manifest(manifest);
    return checked.ok() ? "accepted" : checked.error().message;
  };
  auto wrong = manifest_;
  wrong.version = 1;
  EXPECT_EQ(why(wrong), "a manifest of version 1 names kept pages");
  wrong = manifest_;
  wrong.kept_pages.reset();
  EXPECT_EQ(why(wrong), "a manifest of version 2 does not name kept pages");
  wrong = manifest_;
  wrong.version = 5;
  EXPECT_EQ(why(wrong), "manifest version is 5; this client reads 1 to 4");
  wrong = manifest_;
  wrong.kept_pages = KeptPages(3, 4, 12);
  EXPECT_THAT(why(wrong), HasSubstr("are not those of 3 layers, 4 kv heads, 11 pages"));
  wrong.kept_pages = KeptPages(3, 4, 11);
  EXPECT_EQ(why(wrong), "layer 0, kv head 0: no page is kept");
  // Bytes of another size.
  auto text = to_json(manifest_);
  const auto at = text.find("\"pages\":\"", text.find("kept_pages")) + 9;
  text.erase(at, 4);
  const auto parsed = parse_manifest(text, "test");
  ASSERT_TRUE(parsed.ok()) << parsed.error().to_string();
  EXPECT_THAT(why(*parsed), HasSubstr("are not those of"));
}

}  // namespace
}  // namespace millrace::kvclient
