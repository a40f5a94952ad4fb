// SPDX-License-Identifier: Apache-2.0
// What a group publishes about its cached pages.

#include <algorithm>
#include <memory>

#include "tests/support/damage_files.h"
#include "tests/unit/worker/group/event_recorder.h"
#include "tests/unit/worker/group/group_service_case.h"

namespace millrace::worker {
namespace {

using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::SizeIs;

class GroupEventsTest : public GroupServiceTest {
 protected:
  GroupEventsTest() {
    options_.device_pages = 64;
    options_.host_pages = 448;
    options_.open_events = recorder_->opener();
  }

  static std::vector<int32_t> tokens(int count, int variant) {
    std::vector<int32_t> made;
    for (int i = 0; i < count; ++i) {
      made.push_back((i * i % 89 + i * 7 + variant) % 101);
    }
    return made;
  }
  protocol::PrefillDone run(const std::string& id, const std::vector<int32_t>& tokens,
                            protocol::CacheUse cache = protocol::CACHE_BOTH) {
    auto envelope = prefill_request(id, static_cast<int>(tokens.size()), "dense");
    auto& message = *envelope.mutable_prefill_request();
    message.set_prompt_token_ids(engine::encode_token_ids(tokens));
    message.mutable_options()->set_cache(cache);
    link().push(envelope);
    return expect_done();
  }
  // Once the group has made them: it answers about a lease when the prompt before is completely
  // done.
  std::vector<KvEvent> events_of(const protocol::PrefillDone& done) {
    link().push(release(done.manifest()));
    expect_lease_reply();
    return recorder_->take();
  }

  // A group's last events come when it ends, after the test.
  const std::shared_ptr<test::EventRecorder> recorder_ = std::make_shared<test::EventRecorder>();
};

class GroupEventsOnGridsTest : public GroupEventsTest,
                               public ::testing::WithParamInterface<engine::GridShape> {
 protected:
  GroupEventsOnGridsTest() { options_.grid = GetParam(); }
};

TEST_P(GroupEventsOnGridsTest, StoredChainsHaveThePromptsTokensAndBeginBehindWhatWasThere) {
  group().start();
  const auto first = tokens(700, 1);
  const auto stored = events_of(run("a", first));
  ASSERT_THAT(stored, SizeIs(1));
  const auto& chain = std::get<BlocksStored>(stored[0]);
  EXPECT_THAT(chain.hashes, SizeIs(10));
  EXPECT_EQ(chain.parent, std::nullopt);
  EXPECT_EQ(chain.token_ids, std::vector(first.begin(), first.begin() + 640));
  EXPECT_THAT(events_of(run("again", first)), IsEmpty());
  // The first 320 tokens are the same.
  auto second = first;
  const auto others = tokens(600, 2);
  second.resize(600);
  std::copy(others.begin() + 320, others.end(), second.begin() + 320);
  const auto behind = events_of(run("b", second));
  ASSERT_THAT(behind, SizeIs(1));
  const auto& branch = std::get<BlocksStored>(behind[0]);
  EXPECT_EQ(branch.parent, chain.hashes[4]);
  EXPECT_EQ(branch.token_ids, std::vector(second.begin() + 320, second.begin() + 576));
}

INSTANTIATE_TEST_SUITE_P(Grids, GroupEventsOnGridsTest,
                         ::testing::Values(engine::GridShape{1, 1}, engine::GridShape{1, 3},
                                           engine::GridShape{2, 2}),
                         [](const auto& grid) {
                           return fmt::format("tp{}cp{}", grid.param.tp, grid.param.cp);
                         });

TEST_F(GroupEventsTest, PromptsThatDoNotWriteLeaveNone) {
  group().start();
  EXPECT_THAT(events_of(run("off", tokens(300, 1), protocol::CACHE_OFF)), IsEmpty());
  EXPECT_THAT(events_of(run("read", tokens(300, 1), protocol::CACHE_READ)), IsEmpty());
}

TEST_F(GroupEventsTest, WhatGivesWayIsRemoved) {
  // Two ranks with room for 20 blocks each.
  options_.device_pages = 64;
  options_.host_pages = 96;
  group().start();
  const auto first = events_of(run("a", tokens(1024, 1)));
  const auto& a = std::get<BlocksStored>(first.at(0)).hashes;
  EXPECT_THAT(events_of(run("b", tokens(1024, 2))), SizeIs(1));
  const auto third = events_of(run("c", tokens(1024, 3)));
  ASSERT_THAT(third, SizeIs(2));
  const auto& gone = std::get<BlocksRemoved>(third[1]).hashes;
  EXPECT_GE(gone.size(), 8u);
  const auto first_gone = std::ranges::find_first_of(a, gone);
  ASSERT_NE(first_gone, a.end());
  EXPECT_EQ(run("a-2", tokens(1024, 1)).cached_tokens(),
            static_cast<uint64_t>(first_gone - a.begin()) * 64);
}

TEST_F(GroupEventsTest, PagesThatAreFoundDamagedAreRemoved) {
  const test::TempDirectory disk;
  options_.grid = {1, 1};
  options_.device_pages = 16;
  options_.host_pages = 16;
  options_.disk_pages = 512;
  options_.disk_directory = disk.path();
  group().start();
  const auto stored = events_of(run("a", tokens(700, 1)));
  test::damage_open_files(disk.path());
  const auto reader = run("b", tokens(700, 1), protocol::CACHE_READ);
  const auto removed = events_of(reader);
  ASSERT_THAT(removed, SizeIs(1));
  const auto& gone = std::get<BlocksRemoved>(removed[0]).hashes;
  EXPECT_THAT(std::get<BlocksStored>(stored.at(0)).hashes, IsSupersetOf(gone));
  EXPECT_LT(reader.cached_tokens(), 576u);
}

TEST_F(GroupEventsTest, AGroupThatCannotPublishDoesNotStart) {
  options_.open_events = []() -> Result<std::unique_ptr<EventPublisher>> {
    return Error(Errc::kIo, "tcp://*:5557: taken");
  };
  group().start();
  for (const auto& outcome : group().outcomes()) {
    ASSERT_FALSE(outcome.ok());
    EXPECT_EQ(outcome.error().code, Errc::kIo);
    EXPECT_THAT(outcome.error().message, ::testing::HasSubstr("tcp://*:5557: taken"));
  }
}

}  // namespace
}  // namespace millrace::worker
