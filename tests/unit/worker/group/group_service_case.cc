// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/worker/group/group_service_case.h"

#include <utility>

#include "kvclient/kv_client.h"
#include "kvclient/manifest/manifest_proto.h"
#include "tests/support/checkpoint_writer.h"

namespace millrace::worker {

using protocol::Envelope;
using ::testing::HasSubstr;

Envelope prefill_request(const std::string& id, int num_tokens, const std::string& plan,
                         uint64_t deadline_ms) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < num_tokens; ++i) tokens.push_back((i * 7 + 3) % 101);
  Envelope envelope;
  auto& request = *envelope.mutable_prefill_request();
  request.set_request_id(id);
  request.set_prompt_token_ids(engine::encode_token_ids(tokens));
  request.mutable_options()->set_head_plan(plan);
  request.mutable_options()->set_deadline_ms(deadline_ms);
  request.mutable_options()->set_lease_ms(kLeaseMs);
  return envelope;
}

Envelope streaming_request(const std::string& id, int num_tokens) {
  auto envelope = prefill_request(id, num_tokens);
  envelope.mutable_prefill_request()->mutable_options()->set_handover(protocol::HANDOVER_STREAMING);
  return envelope;
}

Envelope cancel(const std::string& id) {
  Envelope envelope;
  envelope.mutable_cancel()->set_request_id(id);
  return envelope;
}

Envelope renew(const protocol::Manifest& manifest, uint64_t lease_ms) {
  Envelope envelope;
  auto& renewal = *envelope.mutable_lease_renew();
  renewal.set_request_id(manifest.request_id());
  renewal.set_lease_id(manifest.lease_id());
  renewal.set_lease_ms(lease_ms);
  return envelope;
}

Envelope release(const protocol::Manifest& manifest) {
  Envelope envelope;
  envelope.mutable_lease_release()->set_request_id(manifest.request_id());
  envelope.mutable_lease_release()->set_lease_id(manifest.lease_id());
  return envelope;
}

void GroupServiceTest::SetUpTestSuite() {
  test::write_random_checkpoint(test::tiny_model_config(), DType::kFloat32, 11, model().path());
}

test::TempDirectory& GroupServiceTest::model() {
  static test::TempDirectory directory;
  return directory;
}

test::RunningGroup& GroupServiceTest::group() {
  if (group_ == nullptr) {
    if (options_.model_directory.empty()) options_.model_directory = model().path();
    group_ = std::make_unique<test::RunningGroup>(options_);
  }
  return *group_;
}

void GroupServiceTest::after_first_layer_of(const std::string& id, std::function<void()> what) {
  link().set_on_send([id, what = std::move(what)](const Envelope& sent) {
    if (sent.has_layer_done() && sent.layer_done().request_id() == id &&
        sent.layer_done().layer() == 0) {
      what();
    }
  });
}

protocol::PrefillDone GroupServiceTest::expect_done() {
  const auto done = link().wait_for(Envelope::kPrefillDone);
  EXPECT_TRUE(done.has_value()) << "no prefill_done";
  return done ? done->prefill_done() : protocol::PrefillDone();
}

void GroupServiceTest::expect_failed(const std::string& id, Errc code, const std::string& why) {
  const auto failed = link().wait_for(Envelope::kPrefillFailed);
  ASSERT_TRUE(failed.has_value()) << "no prefill_failed: " << why;
  EXPECT_EQ(failed->prefill_failed().request_id(), id);
  EXPECT_EQ(failed->prefill_failed().error().code(), static_cast<int>(code));
  EXPECT_THAT(failed->prefill_failed().error().message(), HasSubstr(why));
}

void GroupServiceTest::expect_next_request_works() {
  link().push(prefill_request("next", 130));
  EXPECT_EQ(expect_done().request_id(), "next");
}

protocol::LeaseReply GroupServiceTest::expect_lease_reply() {
  const auto reply = link().wait_for(Envelope::kLeaseReply);
  EXPECT_TRUE(reply.has_value()) << "no lease_reply";
  return reply ? reply->lease_reply() : protocol::LeaseReply();
}

void GroupServiceTest::expect_good_end() {
  for (const auto& outcome : group().outcomes()) {
    EXPECT_TRUE(outcome.ok()) << outcome.error().to_string();
  }
}

Result<void> GroupServiceTest::pull_a_page(const protocol::Manifest& manifest) {
  kvclient::KvClient client(group().transport(), kvclient::from_protocol(manifest), {});
  std::vector<std::byte> page(static_cast<size_t>(client.page_bytes()));
  MR_RETURN_IF_ERROR(client.pull(0, 3, 1, 1, page, Deadline::after(std::chrono::seconds(60))));
  return {};
}

}  // namespace millrace::worker
