// SPDX-License-Identifier: Apache-2.0
// Pulls of pages by name.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/local/fault_transport.h"
#include "comm/local/local_transport.h"
#include "kvclient/pull_client.h"
#include "tests/unit/kvclient/fake_ranks.h"

namespace millrace::kvclient {
namespace {

using test::FakeRanks;
using ::testing::HasSubstr;

Deadline ample() {
  return Deadline::after(std::chrono::seconds(60));
}

class NamedPullTest : public testing::Test {
 protected:
  PullRequest request(const std::vector<PageName>& names) {
    const auto bytes = static_cast<size_t>(ranks_.manifest().page_bytes());
    memory_.assign(names.size() * bytes, std::byte{0xee});
    PullRequest request;
    for (size_t i = 0; i < names.size(); ++i) {
      request.pages.push_back({names[i], memory_.data() + (names.size() - 1 - i) * bytes});
    }
    return request;
  }
  void expect_pulled(comm::Transport& transport, const std::vector<PageName>& names,
                     int64_t corrupt_pages = 0) {
    PullClient client(transport, {.num_threads = 3, .pages_per_request = 2});
    const auto asked = request(names);
    const auto pull = client.start(ranks_.manifest(), asked);
    ASSERT_TRUE(pull.ok()) << pull.error().to_string();
    const auto end = (*pull)->wait(ample());
    ASSERT_TRUE(end.has_value());
    ASSERT_TRUE(end->ok()) << end->error().to_string();
    for (const auto& [name, to] : asked.pages) {
      const auto expected = ranks_.page(name.layer, name.kv_head, name.page);
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), to))
          << name.layer << " " << name.kv_head << " " << name.page;
    }
    const auto stats = (*pull)->stats();
    EXPECT_EQ(stats.pages, std::ssize(names));
    EXPECT_EQ((*pull)->num_pages(), std::ssize(names));
    EXPECT_EQ(stats.corrupt_pages, corrupt_pages);
  }

  comm::LocalTransport transport_;
  const FakeRanks ranks_{transport_, {}};  // 2 layers, 4 kv heads on 2 x 2 ranks, 11 pages
  std::vector<std::byte> memory_;
};

TEST_F(NamedPullTest, PagesOfAnyLayersHeadsAndRanksLieWhereEachIsToGo) {
  expect_pulled(transport_, {{0, 0, 3}});
  expect_pulled(transport_, {{0, 0, 0},
                             {0, 0, 2},
                             {0, 0, 3},
                             {0, 0, 10},
                             {0, 3, 10},
                             {1, 1, 0},
                             {1, 1, 1},
                             {1, 1, 4},
                             {1, 2, 5},
                             {1, 3, 2}});
  std::vector<PageName> all;
  for (int32_t layer = 0; layer < 2; ++layer) {
    for (int32_t head = 0; head < 4; ++head) {
      for (int64_t page = 0; page < 11; ++page) all.push_back({layer, head, page});
    }
  }
  expect_pulled(transport_, all);
}

TEST_F(NamedPullTest, APageThatArrivesWrongIsFetchedAgain) {
  comm::FaultTransport faulty(transport_,
                              {.faults = {{.kind = comm::FaultKind::kFlipByte, .byte = 700}}});
  expect_pulled(faulty, {{0, 0, 0}, {0, 0, 1}}, 1);
}

TEST_F(NamedPullTest, APageThatStaysWrongFailsThePull) {
  comm::FaultTransport faulty(
      transport_,
      {.faults = {{.kind = comm::FaultKind::kFlipByte, .num_calls = 100, .byte = 700}}});
  PullClient client(faulty, {.max_refetches = 2});
  const auto pull = client.start(ranks_.manifest(), request({{0, 0, 0}}));
  ASSERT_TRUE(pull.ok());
  const auto end = (*pull)->wait(ample());
  ASSERT_TRUE(end.has_value() && !end->ok());
  EXPECT_EQ(end->error().code, Errc::kCorrupt);
}

TEST_F(NamedPullTest, NamesThatAreWrongAreRefused) {
  PullClient client(transport_, {});
  for (const auto& [names, message] : std::vector<std::pair<std::vector<PageName>, std::string>>{
           {{{0, 0, 11}}, "outside the manifest"},
           {{{2, 0, 0}}, "outside the manifest"},
           {{{0, 4, 0}}, "outside the manifest"},
           {{{0, 0, -1}}, "outside the manifest"},
           {{{0, 0, 1}, {0, 0, 0}}, "does not ascend"},
           {{{0, 0, 1}, {0, 0, 1}}, "does not ascend"}}) {
    const auto pull = client.start(ranks_.manifest(), request(names));
    ASSERT_FALSE(pull.ok());
    EXPECT_EQ(pull.error().code, Errc::kInvalidArgument);
    EXPECT_THAT(pull.error().message, HasSubstr(message));
  }
  auto nowhere = request({{0, 0, 1}});
  nowhere.pages.front().to = nullptr;
  EXPECT_FALSE(client.start(ranks_.manifest(), nowhere).ok());
  auto mixed = request({{0, 0, 1}});
  mixed.block_ids = {0};
  EXPECT_FALSE(client.start(ranks_.manifest(), mixed).ok());
}

}  // namespace
}  // namespace millrace::kvclient
