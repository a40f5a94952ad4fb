// SPDX-License-Identifier: Apache-2.0
// Ranks with different clocks and waits: one rank sees something a moment before the others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvclient/kv_client.h"
#include "kvclient/manifest/manifest_proto.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/temp_directory.h"
#include "tests/unit/worker/group/running_group.h"

namespace millrace::worker {
namespace {

using protocol::Envelope;
using test::RunningGroup;

constexpr uint64_t kLeaseMs = 20'000;

Envelope prefill_request() {
  Envelope envelope;
  auto& request = *envelope.mutable_prefill_request();
  request.set_request_id("a");
  request.set_prompt_token_ids(engine::encode_token_ids(std::vector<int32_t>(300, 7)));
  request.mutable_options()->set_lease_ms(kLeaseMs);
  return envelope;
}

Envelope renew(const protocol::Manifest& manifest) {
  Envelope envelope;
  auto& renewal = *envelope.mutable_lease_renew();
  renewal.set_request_id(manifest.request_id());
  renewal.set_lease_id(manifest.lease_id());
  renewal.set_lease_ms(kLeaseMs);
  return envelope;
}

class GroupSkewTest : public ::testing::Test {
 protected:
  void SetUp() override {
    test::write_random_checkpoint(test::tiny_model_config(), DType::kFloat32, 11, model_.path());
  }
  RunningGroup& start(RunningGroup::Options options) {
    options.model_directory = model_.path();
    group_ = std::make_unique<RunningGroup>(options);
    group_->start();
    return *group_;
  }

  test::TempDirectory model_;
  std::unique_ptr<RunningGroup> group_;
};

TEST_F(GroupSkewTest, ALeaseThatEndedOnOneRankIsRenewedOnNone) {
  auto& group = start({});
  group.link().push(prefill_request());
  const auto done = group.link().wait_for(Envelope::kPrefillDone);
  ASSERT_TRUE(done.has_value());
  const auto& manifest = done->prefill_done().manifest();

  group.clock_of(1).advance(std::chrono::milliseconds(kLeaseMs));
  group.link().push(renew(manifest));
  const auto reply = group.link().wait_for(Envelope::kLeaseReply);
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->lease_reply().error().code(), static_cast<int>(Errc::kNotFound));
  // Page 0 belongs to rank 0.
  kvclient::KvClient client(group.transport(), kvclient::from_protocol(manifest), {});
  std::vector<std::byte> page(static_cast<size_t>(client.page_bytes()));
  const auto pulled = client.pull(0, 0, 0, 1, page, Deadline::after(std::chrono::seconds(60)));
  ASSERT_FALSE(pulled.ok());
  EXPECT_EQ(pulled.error().code, Errc::kNotFound);
  group.stop();  // nothing is leased any more, so the drain has nothing to wait for
  for (const auto& outcome : group.outcomes()) EXPECT_TRUE(outcome.ok());
}

TEST_F(GroupSkewTest, AnIdleGroupStaysWhateverItsLayerTimeout) {
  auto& group = start({.layer_timeout = std::chrono::milliseconds(1)});
  ASSERT_TRUE(group.link().wait_for_idle_waits(2));
  group.link().push(renew({}));
  EXPECT_TRUE(group.link().wait_for(Envelope::kLeaseReply).has_value());
  group.stop();
  for (const auto& outcome : group.outcomes()) {
    EXPECT_TRUE(outcome.ok()) << outcome.error().to_string();
  }
}

}  // namespace
}  // namespace millrace::worker
