// SPDX-License-Identifier: Apache-2.0
// A short prompt between two layers of a long one, on whole groups.
#include <algorithm>
#include <memory>

#include "kvclient/kv_client.h"
#include "kvclient/manifest/manifest_proto.h"
#include "tests/unit/worker/group/group_service_case.h"

namespace millrace::worker {
namespace {

using protocol::Envelope;
using ::testing::ElementsAre;

class GroupPreemptionTest : public GroupServiceTest,
                            public ::testing::WithParamInterface<engine::GridShape> {
 protected:
  GroupPreemptionTest() {
    options_.grid = GetParam();
    options_.max_preempting_tokens = 150;
    options_.host_pages = 400;
  }

  // All pages of layers 0 and 1 of a cache whose 4 kv heads have `num_pages` each.
  std::vector<std::byte> pages_of(const protocol::Manifest& manifest) {
    kvclient::KvClient client(group().transport(), kvclient::from_protocol(manifest), {});
    const auto num_pages = static_cast<int64_t>((manifest.num_tokens() + 63) / 64);
    std::vector<std::byte> all;
    for (int32_t layer = 0; layer < 2; ++layer) {
      for (int32_t head = 0; head < 4; ++head) {
        std::vector<std::byte> pages(static_cast<size_t>(num_pages * client.page_bytes()));
        const auto pulled = client.pull(layer, head, 0, num_pages, pages,
                                        Deadline::after(std::chrono::seconds(60)));
        EXPECT_TRUE(pulled.ok()) << pulled.error().to_string();
        all.insert(all.end(), pages.begin(), pages.end());
      }
    }
    return all;
  }
  // "started a", "layer 0 of a", "done a", "failed a".
  std::vector<std::string> story() {
    std::vector<std::string> told;
    for (const Envelope& sent : link().sent()) {
      if (sent.has_prefill_started()) {
        told.push_back("started " + sent.prefill_started().request_id());
      } else if (sent.has_layer_done()) {
        told.push_back(fmt::format("layer {} of {}", sent.layer_done().layer(),
                                   sent.layer_done().request_id()));
      } else if (sent.has_prefill_done()) {
        told.push_back("done " + sent.prefill_done().request_id());
      } else if (sent.has_prefill_failed()) {
        told.push_back("failed " + sent.prefill_failed().request_id());
      }
    }
    return told;
  }
};

TEST_P(GroupPreemptionTest, BothCachesAreThoseOfPromptsThatRanAlone) {
  after_first_layer_of("long", [this] { link().push(prefill_request("short", 130, "adaptive")); });
  group().start();
  link().push(prefill_request("long", 700, "adaptive"));
  const auto short_done = expect_done();
  const auto long_done = expect_done();
  EXPECT_THAT(story(),
              ElementsAre("started long", "layer 0 of long", "started short", "layer 0 of short",
                          "layer 1 of short", "done short", "layer 1 of long", "done long"));
  link().push(prefill_request("short alone", 130, "adaptive"));
  const auto short_alone = expect_done();
  link().push(prefill_request("long alone", 700, "adaptive"));
  const auto long_alone = expect_done();
  for (const auto& [with, alone] :
       {std::pair(&short_done, &short_alone), std::pair(&long_done, &long_alone)}) {
    const auto& manifest = with->manifest();
    EXPECT_EQ(manifest.first_token_id(), alone->manifest().first_token_id());
    EXPECT_EQ(pages_of(manifest), pages_of(alone->manifest())) << manifest.request_id();
  }
}

TEST_P(GroupPreemptionTest, AFailureOfTheShortOneIsItsOwn) {
  after_first_layer_of("long", [this] { link().push(prefill_request("bad", 130, "diagonal:3")); });
  group().start();
  link().push(prefill_request("long", 400));
  expect_failed("bad", Errc::kInvalidArgument, "diagonal:3");
  EXPECT_EQ(expect_done().request_id(), "long");
  expect_next_request_works();
}

TEST_P(GroupPreemptionTest, NothingRunsBeforeALayerThatWillNotBe) {
  after_first_layer_of("long", [this] {
    link().push(prefill_request("short", 130));
    link().push(cancel("long"));
  });
  group().start();
  link().push(prefill_request("long", 400));
  expect_failed("long", Errc::kCancelled, "after layer 1 of 2");
  EXPECT_EQ(expect_done().request_id(), "short");
}

TEST_P(GroupPreemptionTest, TheShortOneIsCancelledAlone) {
  link().set_on_send([this](const Envelope& sent) {
    if (!sent.has_layer_done() || sent.layer_done().layer() != 0) return;
    if (sent.layer_done().request_id() == "long") link().push(prefill_request("short", 130));
    if (sent.layer_done().request_id() == "short") link().push(cancel("short"));
  });
  group().start();
  link().push(prefill_request("long", 400));
  expect_failed("short", Errc::kCancelled, "after layer 1 of 2");
  EXPECT_EQ(expect_done().request_id(), "long");
  expect_next_request_works();
}

TEST_P(GroupPreemptionTest, ADeadlineThatPassesMeanwhileEndsTheLongOneAtItsBoundary) {
  link().set_on_send([this](const Envelope& sent) {
    if (!sent.has_layer_done() || sent.layer_done().layer() != 0) return;
    if (sent.layer_done().request_id() == "long") link().push(prefill_request("short", 130));
    if (sent.layer_done().request_id() == "short") {
      group().clock().advance(std::chrono::milliseconds(1000));
    }
  });
  group().start();
  link().push(prefill_request("long", 400, "", /*deadline_ms=*/1000));
  EXPECT_EQ(expect_done().request_id(), "short");
  expect_failed("long", Errc::kDeadlineExceeded, "");
  expect_next_request_works();
}

TEST_P(GroupPreemptionTest, ALeaseEndsWhileAPromptIsSetAside) {
  const auto before = std::make_shared<protocol::Manifest>();
  link().set_on_send([this, before](const Envelope& sent) {
    if (sent.has_prefill_done() && sent.prefill_done().request_id() == "before") {
      *before = sent.prefill_done().manifest();
    }
    if (!sent.has_layer_done() || sent.layer_done().layer() != 0) return;
    if (sent.layer_done().request_id() == "long") link().push(prefill_request("short", 130));
    if (sent.layer_done().request_id() == "short") link().push(release(*before));
  });
  group().start();
  link().push(prefill_request("before", 130));
  const auto manifest = expect_done().manifest();
  EXPECT_TRUE(pull_a_page(manifest).ok());
  link().push(prefill_request("long", 400));
  EXPECT_FALSE(expect_lease_reply().has_error());
  EXPECT_EQ(expect_done().request_id(), "short");
  EXPECT_FALSE(pull_a_page(manifest).ok());
  EXPECT_EQ(expect_done().request_id(), "long");
}

// More tokens than may be computed there, but some are cached.
TEST_P(GroupPreemptionTest, OnlyTokensThatAreNotCachedCount) {
  options_.host_pages = 700;
  const auto with_cache = [](const std::string& id) {
    auto prompt = prefill_request(id, 700);
    prompt.mutable_prefill_request()->set_foreseen_tokens(640);
    prompt.mutable_prefill_request()->mutable_options()->set_cache(protocol::CACHE_BOTH);
    return prompt;
  };
  link().set_on_send([this, with_cache](const Envelope& sent) {
    if (!sent.has_layer_done() || sent.layer_done().layer() != 0) return;
    if (sent.layer_done().request_id() == "first") link().push(with_cache("not cached"));
    if (sent.layer_done().request_id() == "second") link().push(with_cache("cached"));
  });
  group().start();
  link().push(prefill_request("first", 800));
  expect_failed("not cached", Errc::kExhausted, "0 of 700 tokens are cached here");
  EXPECT_EQ(expect_done().request_id(), "first");
  link().push(with_cache("writes"));
  expect_done();
  link().push(prefill_request("second", 800));
  const auto cached = expect_done();
  EXPECT_EQ(cached.request_id(), "cached");
  EXPECT_EQ(cached.cached_tokens(), 576U);
  EXPECT_EQ(expect_done().request_id(), "second");
}

TEST_P(GroupPreemptionTest, AStreamingHandOverGoesOnAfterwards) {
  after_first_layer_of("long", [this] { link().push(streaming_request("short", 130)); });
  group().start();
  link().push(streaming_request("long", 400));
  EXPECT_EQ(expect_done().request_id(), "short");
  EXPECT_EQ(expect_done().request_id(), "long");
}

Envelope suspend(const std::string& id) {
  Envelope envelope;
  envelope.mutable_suspend()->set_request_id(id);
  return envelope;
}
Envelope resume(const std::string& id) {
  Envelope envelope;
  envelope.mutable_resume()->set_request_id(id);
  return envelope;
}

// The other prompt is longer than what may run between two layers.
TEST_P(GroupPreemptionTest, ASuspendedPromptGoesOnWhereItStoppedWhenItIsResumed) {
  after_first_layer_of("long", [this] { link().push(suspend("long")); });
  group().start();
  link().push(prefill_request("long", 700, "adaptive"));
  link().push(prefill_request("other", 300, "adaptive"));
  const auto other = expect_done();
  EXPECT_EQ(other.request_id(), "other");
  link().push(resume("long"));
  const auto long_done = expect_done();
  EXPECT_THAT(story(),
              ElementsAre("started long", "layer 0 of long", "started other", "layer 0 of other",
                          "layer 1 of other", "done other", "layer 1 of long", "done long"));
  link().push(prefill_request("other alone", 300, "adaptive"));
  const auto other_alone = expect_done();
  link().push(prefill_request("long alone", 700, "adaptive"));
  const auto long_alone = expect_done();
  for (const auto& [with, alone] :
       {std::pair(&other, &other_alone), std::pair(&long_done, &long_alone)}) {
    EXPECT_EQ(with->manifest().first_token_id(), alone->manifest().first_token_id());
    EXPECT_EQ(pages_of(with->manifest()), pages_of(alone->manifest()));
  }
}

TEST_P(GroupPreemptionTest, SeveralSuspendedPromptsGoOnInTheOrderInWhichTheyAreResumed) {
  options_.host_pages = 700;
  link().set_on_send([this](const Envelope& sent) {
    if (!sent.has_layer_done() || sent.layer_done().layer() != 0) return;
    const auto& id = sent.layer_done().request_id();
    if (id == "a" || id == "b") link().push(suspend(id));
  });
  group().start();
  std::map<std::string, protocol::PrefillDone> done;
  const auto expect = [&](const std::string& id) {
    done[id] = expect_done();
    EXPECT_EQ(done[id].request_id(), id);
  };
  link().push(prefill_request("a", 700, "adaptive"));
  link().push(prefill_request("b", 500, "adaptive"));
  link().push(prefill_request("c", 300, "adaptive"));
  expect("c");
  // The first that stopped goes on first, though the other stopped within it.
  link().push(resume("a"));
  expect("a");
  link().push(prefill_request("d", 400, "adaptive"));
  expect("d");
  link().push(resume("b"));
  expect("b");
  EXPECT_THAT(story(), ElementsAre("started a", "layer 0 of a", "started b", "layer 0 of b",
                                   "started c", "layer 0 of c", "layer 1 of c", "done c",
                                   "layer 1 of a", "done a", "started d", "layer 0 of d",
                                   "layer 1 of d", "done d", "layer 1 of b", "done b"));
  for (const auto& [id, num_tokens] : {std::pair("a", 700), std::pair("b", 500)}) {
    link().push(prefill_request(fmt::format("{} alone", id), num_tokens, "adaptive"));
    const auto alone = expect_done();
    EXPECT_EQ(done[id].manifest().first_token_id(), alone.manifest().first_token_id());
    EXPECT_EQ(pages_of(done[id].manifest()), pages_of(alone.manifest())) << id;
  }
}

TEST_P(GroupPreemptionTest, AShortPromptRunsBetweenLayersBesideASuspendedOne) {
  link().set_on_send([this](const Envelope& sent) {
    if (!sent.has_layer_done() || sent.layer_done().layer() != 0) return;
    if (sent.layer_done().request_id() == "long") link().push(suspend("long"));
    if (sent.layer_done().request_id() == "other") link().push(prefill_request("short", 130));
  });
  group().start();
  link().push(prefill_request("long", 400));
  link().push(prefill_request("other", 300));
  EXPECT_EQ(expect_done().request_id(), "short");
  EXPECT_EQ(expect_done().request_id(), "other");
  link().push(resume("long"));
  EXPECT_EQ(expect_done().request_id(), "long");
}

// Not when what runs has ended, but at its next layer.
TEST_P(GroupPreemptionTest, ASuspendedPromptThatIsCancelledGoesWhileAnotherRuns) {
  link().set_on_send([this](const Envelope& sent) {
    if (!sent.has_layer_done() || sent.layer_done().layer() != 0) return;
    if (sent.layer_done().request_id() == "long") link().push(suspend("long"));
    if (sent.layer_done().request_id() == "other") link().push(cancel("long"));
  });
  group().start();
  link().push(prefill_request("long", 400));
  link().push(prefill_request("other", 300));
  expect_failed("long", Errc::kCancelled, "after layer 1 of 2");
  EXPECT_EQ(expect_done().request_id(), "other");
  expect_next_request_works();
}

TEST_P(GroupPreemptionTest, ADeadlineEndsASuspendedPrompt) {
  after_first_layer_of("long", [this] { link().push(suspend("long")); });
  group().start();
  link().push(prefill_request("long", 400, "", /*deadline_ms=*/1000));
  link().push(prefill_request("other", 300));
  EXPECT_EQ(expect_done().request_id(), "other");
  group().clock().advance(std::chrono::milliseconds(1000));
  expect_failed("long", Errc::kDeadlineExceeded, "in layer 1 of 2");
  expect_next_request_works();
}

// Its pages were told to a client, and are still read where they are.
TEST_P(GroupPreemptionTest, AStreamingHandOverIsSuspendedAndGoesOn) {
  after_first_layer_of("long", [this] { link().push(suspend("long")); });
  group().start();
  link().push(streaming_request("long", 400));
  link().push(prefill_request("other", 300));
  EXPECT_EQ(expect_done().request_id(), "other");
  link().push(resume("long"));
  EXPECT_EQ(expect_done().request_id(), "long");
}

TEST_P(GroupPreemptionTest, APromptBehindACachedPrefixIsSuspendedAndGoesOn) {
  options_.host_pages = 700;
  const auto with_cache = [](const std::string& id) {
    auto prompt = prefill_request(id, 700);
    prompt.mutable_prefill_request()->mutable_options()->set_cache(protocol::CACHE_BOTH);
    return prompt;
  };
  after_first_layer_of("long", [this] { link().push(suspend("long")); });
  group().start();
  link().push(with_cache("writes"));
  const auto writes = expect_done();
  link().push(with_cache("long"));
  link().push(with_cache("other"));
  EXPECT_EQ(expect_done().cached_tokens(), 576U);
  link().push(resume("long"));
  const auto long_done = expect_done();
  EXPECT_EQ(long_done.cached_tokens(), 576U);
  EXPECT_EQ(long_done.manifest().first_token_id(), writes.manifest().first_token_id());
  EXPECT_EQ(pages_of(long_done.manifest()), pages_of(writes.manifest()));
}

TEST_P(GroupPreemptionTest, APromptIsSuspendedWhereNoneRunsBetweenLayers) {
  options_.max_preempting_tokens = 0;
  after_first_layer_of("long", [this] { link().push(suspend("long")); });
  group().start();
  link().push(prefill_request("long", 400));
  link().push(prefill_request("other", 130));
  EXPECT_EQ(expect_done().request_id(), "other");
  link().push(resume("long"));
  EXPECT_EQ(expect_done().request_id(), "long");
}

TEST_P(GroupPreemptionTest, ASuspendedPromptEndsWhenItIsCancelledAndItsRoomIsFree) {
  after_first_layer_of("long", [this] { link().push(suspend("long")); });
  group().start();
  link().push(prefill_request("long", 400));
  link().push(prefill_request("other", 300));
  EXPECT_EQ(expect_done().request_id(), "other");
  link().push(cancel("long"));
  expect_failed("long", Errc::kCancelled, "after layer 1 of 2");
  expect_next_request_works();
}

TEST_P(GroupPreemptionTest, APromptThatIsResumedGoesOnWhenWhatRunsHasEnded) {
  link().set_on_send([this](const Envelope& sent) {
    if (!sent.has_layer_done() || sent.layer_done().layer() != 0) return;
    if (sent.layer_done().request_id() == "long") link().push(suspend("long"));
    if (sent.layer_done().request_id() != "other") return;
    link().push(prefill_request("third", 300));
    link().push(resume("long"));
  });
  group().start();
  link().push(prefill_request("long", 400));
  link().push(prefill_request("other", 300));
  EXPECT_EQ(expect_done().request_id(), "other");
  EXPECT_EQ(expect_done().request_id(), "long");  // before one that has not begun
  EXPECT_EQ(expect_done().request_id(), "third");
}

TEST_P(GroupPreemptionTest, ASuspendedPromptEndsWithTheConnection) {
  after_first_layer_of("long", [this] { link().push(suspend("long")); });
  group().start();
  link().push(prefill_request("long", 400));
  link().push(prefill_request("other", 300));
  EXPECT_EQ(expect_done().request_id(), "other");
  link().push(ControlEvent::Kind::kDisconnected);
  expect_failed("long", Errc::kCancelled, "after layer 1 of 2");
}

using GroupWithoutRoom = GroupServiceTest;

TEST_F(GroupWithoutRoom, APromptWithoutRoomBesideASuspendedOneFails) {
  options_.grid = {1, 1};
  options_.max_preempting_tokens = 150;
  options_.device_pages = 8;
  options_.host_pages = 56;
  after_first_layer_of("long", [this] { link().push(suspend("long")); });
  group().start();
  link().push(prefill_request("long", 400));
  link().push(prefill_request("other", 300));
  expect_failed("other", Errc::kExhausted, "");
  link().push(cancel("long"));
  expect_failed("long", Errc::kCancelled, "");
  link().push(prefill_request("other again", 300));
  EXPECT_EQ(expect_done().request_id(), "other again");
}

TEST_F(GroupWithoutRoom, TheShortPromptFailsAndTheLongOneGoesOn) {
  options_.grid = {1, 1};
  options_.max_preempting_tokens = 150;
  options_.device_pages = 8;
  options_.host_pages = 56;  // with the device's, 8 pages of 2 layers and 4 heads
  after_first_layer_of("long", [this] { link().push(prefill_request("short", 130)); });
  group().start();
  link().push(prefill_request("long", 400));  // 7 of them
  expect_failed("short", Errc::kExhausted, "");
  EXPECT_EQ(expect_done().request_id(), "long");
}

INSTANTIATE_TEST_SUITE_P(Grids, GroupPreemptionTest,
                         ::testing::Values(engine::GridShape{1, 1}, engine::GridShape{2, 1},
                                           engine::GridShape{1, 2}, engine::GridShape{2, 2}),
                         [](const auto& param) {
                           return fmt::format("tp{}cp{}", param.param.tp, param.param.cp);
                         });

}  // namespace
}  // namespace millrace::worker
