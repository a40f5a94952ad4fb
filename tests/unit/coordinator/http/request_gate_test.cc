// SPDX-License-Identifier: Apache-2.0
#include "coordinator/http/request_gate.h"

#include <gtest/gtest.h>

namespace millrace::coordinator {
namespace {

constexpr uint64_t kKiB = 1024;

class RequestGateTest : public ::testing::Test {
 protected:
  RequestGateTest() {
    limits_.max_body_bytes = 100 * kKiB;
    limits_.max_small_body_bytes = 4 * kKiB;
  }
  RequestGate gate(std::optional<Error> only_health_probes = std::nullopt,
                   ConnectionTable::Kind kind = ConnectionTable::Kind::kAny) {
    ConnectionTable::Admission admission;
    admission.kind = kind;
    admission.only_health_probes = std::move(only_health_probes);
    return {limits_, tokens_, admission, bodies_, "client"};
  }

  HttpLimits limits_;
  TokenTable tokens_;
  BodyBudget bodies_{/*max_bytes=*/150 * kKiB, /*max_bytes_per_client=*/150 * kKiB};
  const Route prefill_ = find_route("POST", "/v1/prefill");
  const Route completion_ = find_route("POST", "/v1/completions");
  const Route release_ = find_route("POST", "/v1/prefill/a/lease:release");
};

TEST_F(RequestGateTest, OnlyAPromptMayHaveALargeBody) {
  RequestGate tested = gate();
  EXPECT_FALSE(tested.check(prefill_, "", 100 * kKiB));
  EXPECT_FALSE(tested.check(completion_, "", 100 * kKiB));
  EXPECT_FALSE(tested.check(find_route("POST", "/inference/v1/generate"), "", 100 * kKiB));
  EXPECT_EQ(tested.check(prefill_, "", 100 * kKiB + 1)->refusal.error.message,
            "body of 102401 bytes, limit 102400");
  EXPECT_FALSE(tested.check(release_, "", 4 * kKiB));
  EXPECT_EQ(tested.check(release_, "", 4 * kKiB + 1)->refusal.error.code, Errc::kTooLarge);
}

TEST_F(RequestGateTest, LargeBodiesShareABudgetUntilTheyAreReleased) {
  RequestGate first = gate();
  RequestGate second = gate();
  EXPECT_FALSE(first.check(prefill_, "", 100 * kKiB));
  EXPECT_EQ(second.check(prefill_, "", 60 * kKiB)->refusal.error.code, Errc::kExhausted);
  first.release();
  EXPECT_FALSE(second.check(prefill_, "", 60 * kKiB));
}

TEST_F(RequestGateTest, SmallBodiesAreLetInWhenTheBudgetIsUsedUp) {
  RequestGate large = gate();
  RequestGate other = gate();
  ASSERT_FALSE(large.check(prefill_, "", 100 * kKiB));
  ASSERT_FALSE(other.check(prefill_, "", 50 * kKiB));
  RequestGate small = gate();
  EXPECT_FALSE(small.check(release_, "", 4 * kKiB));
  EXPECT_FALSE(small.check(prefill_, "", 4 * kKiB));
  EXPECT_TRUE(small.check(prefill_, "", 5 * kKiB));
}

TEST_F(RequestGateTest, ABodyThatGrowsCountsAtMostAsTheLargestOne) {
  RequestGate tested = gate();
  ASSERT_FALSE(tested.check(prefill_, "", 0));
  EXPECT_FALSE(tested.hold(prefill_, 60 * kKiB));
  EXPECT_FALSE(tested.hold(prefill_, 190 * kKiB));  // a string of up to twice the length
  RequestGate other = gate();
  EXPECT_FALSE(other.hold(prefill_, 50 * kKiB));
  EXPECT_EQ(other.hold(prefill_, 51 * kKiB)->error.code, Errc::kExhausted);
}

TEST_F(RequestGateTest, AConnectionBeyondTheBoundIsForProbes) {
  RequestGate tested = gate(Error(Errc::kUnavailable, "full"), ConnectionTable::Kind::kHealthProbe);
  EXPECT_TRUE(tested.only_health_probes());
  for (const char* path : {"/health", "/ready", "/metrics"}) {
    EXPECT_FALSE(tested.check(find_route("GET", path), "", 0)) << path;
  }
  for (const char* path : {"/version", "/", "/overview", "/v1/models", "/nothing"}) {
    EXPECT_EQ(tested.check(find_route("GET", path), "", 0)->refusal.error.message, "full") << path;
  }
  EXPECT_TRUE(tested.check(prefill_, "", 10));
}

TEST_F(RequestGateTest, TheAdminPortTellsTheVersionAndShowsTheOverviewToo) {
  tokens_ = TokenTable(std::vector<Token>{});
  RequestGate tested = gate(Error(Errc::kNotFound, "not here"), ConnectionTable::Kind::kAdmin);
  for (const char* path : {"/version", "/", "/overview", "/overview/r1"}) {
    EXPECT_FALSE(tested.check(find_route("GET", path), "", 0)) << path;
    EXPECT_FALSE(tested.caller().may(Scope::kAdmin)) << path;
  }
  EXPECT_EQ(tested.check(find_route("GET", "/v1/models"), "", 0)->refusal.error.message,
            "not here");
}

TEST_F(RequestGateTest, WithoutTokensEverybodyIsAnAdmin) {
  RequestGate tested = gate();
  EXPECT_FALSE(tested.check(prefill_, "Bearer whatever", 0));
  EXPECT_EQ(tested.caller().name, "");
  EXPECT_TRUE(tested.caller().may(Scope::kAdmin));
}

TEST_F(RequestGateTest, EachRequestIsItsOwnCallers) {
  tokens_ = TokenTable(*parse_token_file(
      // The hashes of "alpha" and "beta".
      "a 8ed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8f2223f8 prefill\n"
      "b f44e64e75f3948e9f73f8dfa94721c4ce8cbb4f265c4790c702b2d41cfbf2753 read\n"));
  RequestGate tested = gate();
  ASSERT_FALSE(tested.check(prefill_, "Bearer alpha", 0));
  EXPECT_EQ(tested.caller().name, "a");
  ASSERT_FALSE(tested.check(release_, "Bearer beta", 0));
  EXPECT_EQ(tested.caller().name, "b");
  EXPECT_EQ(tested.check(prefill_, "Bearer beta", 0)->http_status(), 403);
  EXPECT_EQ(tested.check(prefill_, "", 0)->http_status(), 401);
  EXPECT_FALSE(tested.check(find_route("GET", "/health"), "", 0));
}

// It shows the requests of all names.
TEST_F(RequestGateTest, TheOverviewIsForAdmins) {
  tokens_ = TokenTable(*parse_token_file(
      "a 8ed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8f2223f8 prefill\n"
      "b f44e64e75f3948e9f73f8dfa94721c4ce8cbb4f265c4790c702b2d41cfbf2753 admin\n"));
  RequestGate tested = gate();
  for (const char* path : {"/", "/overview", "/overview/r1"}) {
    EXPECT_EQ(tested.check(find_route("GET", path), "", 0)->http_status(), 401) << path;
    EXPECT_EQ(tested.check(find_route("GET", path), "Bearer alpha", 0)->http_status(), 403) << path;
    EXPECT_FALSE(tested.check(find_route("GET", path), "Bearer beta", 0)) << path;
  }
}

TEST_F(RequestGateTest, AStrangersBodyTakesNoRoom) {
  tokens_ = TokenTable(std::vector<Token>{});
  RequestGate stranger = gate();
  ASSERT_EQ(stranger.check(prefill_, "Bearer alpha", 100 * kKiB)->http_status(), 401);
  tokens_ = TokenTable();
  RequestGate other = gate();
  EXPECT_FALSE(other.check(prefill_, "", 100 * kKiB));
}

}  // namespace
}  // namespace millrace::coordinator
