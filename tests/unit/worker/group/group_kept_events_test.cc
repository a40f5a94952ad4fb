// SPDX-License-Identifier: Apache-2.0
// What a group tells at its start of the pages that its former life kept: those that prompts find,
// and no others.
#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "tests/unit/worker/group/event_recorder.h"
#include "tests/unit/worker/group/group_service_case.h"

namespace millrace::worker {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

// For each block stored in these events: its parent's hash and its tokens.
using Blocks = std::map<BlockHash, std::pair<std::optional<BlockHash>, std::vector<int32_t>>>;

// `known`: blocks that were stored before.
Blocks blocks_of(const std::vector<KvEvent>& events, const Blocks& known = {}) {
  Blocks blocks;
  for (const auto& event : events) {
    const auto& stored = std::get<BlocksStored>(event);
    auto parent = stored.parent;
    for (size_t i = 0; i < stored.hashes.size(); ++i) {
      EXPECT_TRUE(!parent || blocks.contains(*parent) || known.contains(*parent))
          << "a block before its parent";
      const auto first = stored.token_ids.begin() + static_cast<std::ptrdiff_t>(64 * i);
      const bool is_new =
          blocks.insert({stored.hashes[i], {parent, std::vector(first, first + 64)}}).second;
      EXPECT_TRUE(is_new) << "stored twice";
      parent = stored.hashes[i];
    }
  }
  return blocks;
}

class GroupKeptEventsTest : public GroupServiceTest,
                            public ::testing::WithParamInterface<engine::GridShape> {
 protected:
  GroupKeptEventsTest() {
    options_.grid = GetParam();
    options_.device_pages = 64;
    options_.host_pages = 700;
    options_.disk_directory = disk_.path();
    options_.kept_bytes = 4 << 20;
    options_.open_events = recorder_->opener();
    options_.model_directory = model().path();
  }
  // A new life of the group, after the former one ended in good order.
  void restart() {
    end();
    running_ = std::make_unique<test::RunningGroup>(options_);
    running_->start();
  }
  void end() {
    if (running_ == nullptr) return;
    running_->clock().advance(std::chrono::hours(1));
    running_->stop();
    for (const auto& outcome : running_->outcomes()) {
      EXPECT_TRUE(outcome.ok()) << outcome.error().to_string();
    }
    running_.reset();
  }

  static std::vector<int32_t> tokens(int count, int variant) {
    std::vector<int32_t> made;
    for (int i = 0; i < count; ++i) made.push_back((i * i % 89 + i * 7 + variant) % 101);
    return made;
  }
  // Returns how many of its tokens were cached.
  uint64_t run(const std::string& id, const std::vector<int32_t>& tokens,
               const std::string& salt = "") {
    auto envelope = prefill_request(id, static_cast<int>(tokens.size()), "dense");
    auto& message = *envelope.mutable_prefill_request();
    message.set_prompt_token_ids(engine::encode_token_ids(tokens));
    message.mutable_options()->set_cache(protocol::CACHE_BOTH);
    message.mutable_options()->set_cache_salt(salt);
    running_->link().push(envelope);
    const auto done = running_->link().wait_for(protocol::Envelope::kPrefillDone);
    EXPECT_TRUE(done.has_value());
    if (!done) return 0;
    // The group answers this when the prompt before is completely done.
    running_->link().push(release(done->prefill_done().manifest()));
    EXPECT_TRUE(running_->link().wait_for(protocol::Envelope::kLeaseReply).has_value());
    return done->prefill_done().cached_tokens();
  }
  // The beginnings of which a coordinator is told when it connects.
  std::set<uint64_t> told() {
    const auto all = running_->board().cached_prefixes();
    return {all.added().begin(), all.added().end()};
  }
  std::string journal() const {
    for (const auto& entry : std::filesystem::directory_iterator(disk_.file("rank-0"))) {
      if (entry.path().extension() == ".pages") return entry.path();
    }
    return "";
  }

  const test::TempDirectory disk_;
  const std::shared_ptr<test::EventRecorder> recorder_ = std::make_shared<test::EventRecorder>();
  std::unique_ptr<test::RunningGroup> running_;
};

TEST_P(GroupKeptEventsTest, AllThatWasKeptIsPublishedBeforeAnyPrompt) {
  restart();
  run("a", tokens(700, 1));
  run("branch", [] {
    auto made = tokens(600, 1);
    std::fill(made.begin() + 320, made.end(), 5);
    return made;
  }());
  run("salted", tokens(300, 1), "salt");
  const auto stored = recorder_->take();
  EXPECT_THAT(recorder_->take_start(), IsEmpty());
  const auto told_before = told();
  EXPECT_THAT(told_before, SizeIs(2));
  restart();
  // The prompt's answer shows that the group has started.
  EXPECT_EQ(run("again", tokens(700, 1)), 576U);
  EXPECT_EQ(told(), told_before);
  const auto start = recorder_->take_start();
  EXPECT_EQ(blocks_of(start), blocks_of(stored));
  EXPECT_THAT(recorder_->take(), IsEmpty());
  const auto is_salted = [](const KvEvent& event) {
    return std::get<BlocksStored>(event).cache_salt == "salt";
  };
  EXPECT_EQ(std::ranges::count_if(start, is_salted), 1);
  // And once more: the journal continues with what was found.
  run("b", tokens(500, 2));
  const auto more = recorder_->take();
  restart();
  run("c", tokens(100, 3));
  auto all = blocks_of(stored);
  all.merge(blocks_of(more));
  EXPECT_EQ(blocks_of(recorder_->take_start()), all);
}

TEST_P(GroupKeptEventsTest, WhatARankLostIsNotPublished) {
  restart();
  run("a", tokens(700, 1));
  recorder_->take();
  end();
  const int last = GetParam().tp * GetParam().cp - 1;
  std::filesystem::remove_all(disk_.file(fmt::format("rank-{}", last)));
  restart();
  const uint64_t cached = run("again", tokens(700, 1));
  const auto published = blocks_of(recorder_->take_start());
  EXPECT_EQ(published.size(), cached / 64);
  EXPECT_LT(published.size(), 9U);
  // The prompt brings the rest back, and it is published.
  EXPECT_EQ(blocks_of(recorder_->take(), published).size() + published.size(), 10U);
}

TEST_P(GroupKeptEventsTest, WithoutItsJournalOrWithADamagedOneNothingWrongIsPublished) {
  restart();
  run("a", tokens(700, 1));
  const auto stored = blocks_of(recorder_->take());
  end();
  const auto whole = std::filesystem::file_size(journal());
  std::filesystem::resize_file(journal(), whole - 100);
  restart();
  EXPECT_EQ(run("again", tokens(700, 1)), 576U);
  const auto published = blocks_of(recorder_->take_start());
  EXPECT_EQ(published.size() + 1, stored.size());
  EXPECT_TRUE(std::ranges::includes(stored, published));
  // The prompt begins with them, and then they are published.
  EXPECT_THAT(recorder_->take(), SizeIs(1));
  end();
  std::filesystem::remove(journal());
  restart();
  run("third", tokens(700, 1));
  EXPECT_THAT(recorder_->take_start(), IsEmpty());
  EXPECT_EQ(blocks_of(recorder_->take()), stored);
}

TEST_P(GroupKeptEventsTest, WithoutEventsNoTokensAreNoted) {
  options_.open_events = nullptr;
  restart();
  run("a", tokens(700, 1));
  end();
  constexpr size_t kBlockBytes = 64 * sizeof(int32_t);
  EXPECT_LT(std::filesystem::file_size(journal()), 10 * kBlockBytes);
  restart();
  run("b", tokens(100, 2));
  EXPECT_THAT(told(), SizeIs(1));
}

INSTANTIATE_TEST_SUITE_P(Grids, GroupKeptEventsTest,
                         ::testing::Values(engine::GridShape{1, 1}, engine::GridShape{1, 3},
                                           engine::GridShape{2, 2}),
                         [](const auto& grid) {
                           return fmt::format("tp{}cp{}", grid.param.tp, grid.param.cp);
                         });

}  // namespace
}  // namespace millrace::worker
