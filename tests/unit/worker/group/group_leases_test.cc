// SPDX-License-Identifier: Apache-2.0
// Who may renew and release the lease of a finished cache, and when.

#include "worker/group/group_service.h"

#include "tests/unit/worker/group/group_service_case.h"

namespace millrace::worker {
namespace {

class GroupLeasesTest : public GroupServiceTest {};

TEST_F(GroupLeasesTest, ALeaseIsRenewedAndReleasedByWhoeverHasIt) {
  group().start();
  link().push(prefill_request("a", 200));
  const auto manifest = expect_done().manifest();

  group().clock().advance(std::chrono::milliseconds(kLeaseMs - 1));
  link().push(renew(manifest, 5000));
  const auto renewed = expect_lease_reply();
  EXPECT_FALSE(renewed.has_error()) << renewed.error().message();
  EXPECT_EQ(renewed.expires_in_ms(), 5000u);
  group().clock().advance(std::chrono::milliseconds(4999));
  EXPECT_TRUE(pull_a_page(manifest).ok());

  link().push(release(manifest));
  EXPECT_FALSE(expect_lease_reply().has_error());
  EXPECT_EQ(pull_a_page(manifest).error().code, Errc::kNotFound);
  link().push(renew(manifest, 5000));
  EXPECT_EQ(expect_lease_reply().error().code(), static_cast<int>(Errc::kNotFound));
}

TEST_F(GroupLeasesTest, WhatIsHeldIsKeptForACoordinatorThatIsStartedAnew) {
  group().start();
  link().push(prefill_request("a", 200));
  const auto done = expect_done();
  auto held = group().board().held();
  ASSERT_EQ(held.size(), 1u);
  EXPECT_EQ(held[0].done().SerializeAsString(), done.SerializeAsString());
  EXPECT_EQ(held[0].expires_in_ms(), kLeaseMs);
  link().push(renew(done.manifest(), 5000));
  expect_lease_reply();
  EXPECT_EQ(group().board().held().at(0).expires_in_ms(), 5000u);
  link().push(release(done.manifest()));
  expect_lease_reply();
  EXPECT_TRUE(group().board().held().empty());
}

TEST_F(GroupLeasesTest, AForeignLeaseIsNeitherRenewedNorReleased) {
  group().start();
  link().push(prefill_request("a", 200));
  const auto manifest = expect_done().manifest();
  auto foreign = manifest;
  foreign.set_lease_id("stolen");
  for (const auto& change : {renew(foreign, 5000), release(foreign)}) {
    link().push(change);
    const auto reply = expect_lease_reply();
    EXPECT_EQ(reply.request_id(), "a");
    EXPECT_EQ(reply.error().code(), static_cast<int>(Errc::kNotFound));
    EXPECT_EQ(reply.expires_in_ms(), 0u);
  }
  EXPECT_TRUE(pull_a_page(manifest).ok());
}

TEST_F(GroupLeasesTest, ALeaseLongerThanTheGroupGrantsIsCut) {
  group().start();
  link().push(prefill_request("a", 200));
  link().push(renew(expect_done().manifest(), uint64_t{1} << 60));
  const auto reply = expect_lease_reply();
  EXPECT_FALSE(reply.has_error()) << reply.error().message();
  EXPECT_EQ(reply.expires_in_ms(), 3'600'000u);
}

TEST_F(GroupLeasesTest, ARenewalThatCameInTimeCountsAfterALongLayer) {
  protocol::Manifest first;
  after_first_layer_of("b", [&] {
    ControlEvent renewal{.message = renew(first, 5000), .received_at = group().clock().now()};
    group().clock().advance(std::chrono::milliseconds(2 * kLeaseMs));
    link().push(std::move(renewal));
  });
  group().start();
  link().push(prefill_request("a", 200));
  first = expect_done().manifest();
  link().push(prefill_request("b", 200));
  const auto reply = expect_lease_reply();
  EXPECT_FALSE(reply.has_error()) << reply.error().message();
  expect_done();
  EXPECT_TRUE(pull_a_page(first).ok());
}

TEST_F(GroupLeasesTest, ALeaseChangesWhileAnotherRequestRuns) {
  protocol::Manifest first;
  after_first_layer_of("b", [&] { link().push(release(first)); });
  group().start();
  link().push(prefill_request("a", 200));
  first = expect_done().manifest();
  link().push(prefill_request("b", 200));
  EXPECT_FALSE(expect_lease_reply().has_error());
  // It is answered between layers, so before the second request is done.
  EXPECT_EQ(expect_done().request_id(), "b");
  EXPECT_EQ(pull_a_page(first).error().code, Errc::kNotFound);
}

}  // namespace
}  // namespace millrace::worker
