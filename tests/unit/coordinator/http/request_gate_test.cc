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
  RequestGate gate(std::optional<Error> only_probes = std::nullopt,
                   ConnectionTable::Kind kind = ConnectionTable::Kind::kAny) {
    ConnectionTable::Admission admission;
    admission.kind = kind;
    admission.only_probes = std::move(only_probes);
    return {limits_, admission, bodies_, "client"};
  }

  HttpLimits limits_;
  BodyBudget bodies_{/*max_bytes=*/150 * kKiB, /*max_bytes_per_client=*/150 * kKiB};
  const Route prefill_ = find_route("POST", "/v1/prefill");
  const Route completion_ = find_route("POST", "/v1/completions");
  const Route release_ = find_route("POST", "/v1/prefill/a/lease:release");
};

TEST_F(RequestGateTest, OnlyAPromptMayHaveALargeBody) {
  RequestGate tested = gate();
  EXPECT_FALSE(tested.check(prefill_, 100 * kKiB));
  EXPECT_FALSE(tested.check(completion_, 100 * kKiB));
  EXPECT_EQ(tested.check(prefill_, 100 * kKiB + 1)->error.message,
            "body of 102401 bytes, limit 102400");
  EXPECT_FALSE(tested.check(release_, 4 * kKiB));
  EXPECT_EQ(tested.check(release_, 4 * kKiB + 1)->error.code, Errc::kTooLarge);
}

TEST_F(RequestGateTest, LargeBodiesShareABudgetUntilTheyAreReleased) {
  RequestGate first = gate();
  RequestGate second = gate();
  EXPECT_FALSE(first.check(prefill_, 100 * kKiB));
  EXPECT_EQ(second.check(prefill_, 60 * kKiB)->error.code, Errc::kExhausted);
  first.release();
  EXPECT_FALSE(second.check(prefill_, 60 * kKiB));
}

TEST_F(RequestGateTest, SmallBodiesAreLetInWhenTheBudgetIsUsedUp) {
  RequestGate large = gate();
  RequestGate other = gate();
  ASSERT_FALSE(large.check(prefill_, 100 * kKiB));
  ASSERT_FALSE(other.check(prefill_, 50 * kKiB));
  RequestGate small = gate();
  EXPECT_FALSE(small.check(release_, 4 * kKiB));
  EXPECT_FALSE(small.check(prefill_, 4 * kKiB));
  EXPECT_TRUE(small.check(prefill_, 5 * kKiB));
}

TEST_F(RequestGateTest, ABodyThatGrowsCountsAtMostAsTheLargestOne) {
  RequestGate tested = gate();
  ASSERT_FALSE(tested.check(prefill_, 0));
  EXPECT_FALSE(tested.hold(prefill_, 60 * kKiB));
  EXPECT_FALSE(tested.hold(prefill_, 190 * kKiB));  // a string of up to twice the length
  RequestGate other = gate();
  EXPECT_FALSE(other.hold(prefill_, 50 * kKiB));
  EXPECT_EQ(other.hold(prefill_, 51 * kKiB)->error.code, Errc::kExhausted);
}

TEST_F(RequestGateTest, AConnectionBeyondTheBoundIsForProbes) {
  RequestGate tested = gate(Error(Errc::kUnavailable, "full"), ConnectionTable::Kind::kProbe);
  EXPECT_TRUE(tested.only_probes());
  for (const char* path : {"/health", "/ready", "/metrics"}) {
    EXPECT_FALSE(tested.check(find_route("GET", path), 0)) << path;
  }
  for (const char* path : {"/version", "/v1/models", "/nothing"}) {
    EXPECT_EQ(tested.check(find_route("GET", path), 0)->error.message, "full") << path;
  }
  EXPECT_TRUE(tested.check(prefill_, 10));
}

TEST_F(RequestGateTest, TheAdminPortTellsTheVersionToo) {
  RequestGate tested = gate(Error(Errc::kNotFound, "not here"), ConnectionTable::Kind::kAdmin);
  EXPECT_FALSE(tested.check(find_route("GET", "/version"), 0));
  EXPECT_EQ(tested.check(find_route("GET", "/v1/models"), 0)->error.message, "not here");
}

}  // namespace
}  // namespace millrace::coordinator
