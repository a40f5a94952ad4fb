// SPDX-License-Identifier: Apache-2.0
#include "coordinator/requests/request_log.h"

#include <gtest/gtest.h>

namespace millrace::coordinator {
namespace {

using std::chrono::milliseconds;

Request ended_after(milliseconds queued, std::optional<milliseconds> computed) {
  Request request;
  request.id = "r1";
  request.num_tokens = 8192;
  if (computed) {
    request.group_name = "group-0";
    request.started_at = request.queued_at + queued;
  }
  request.ended_at = request.queued_at + queued + computed.value_or(milliseconds(0));
  return request;
}

TEST(RequestLog, ALineHasTokensOutcomeAndTimes) {
  Request request = ended_after(milliseconds(10), milliseconds(1240));
  request.state = RequestState::kDone;
  protocol::PrefillDone done;
  done.mutable_manifest()->set_density(0.337);
  request.result = std::make_shared<const protocol::PrefillDone>(std::move(done));
  EXPECT_EQ(end_line(request),
            "request r1: 8192 tokens, done on group 'group-0': queue 0.01 s, prefill 1.24 s, "
            "density 0.337");
}

TEST(RequestLog, ALineNamesTheOwnerIfThereIsOne) {
  Request request = ended_after(milliseconds(10), std::nullopt);
  request.owner = "router";
  EXPECT_EQ(end_line(request), "request r1 of 'router': 8192 tokens, done: queue 0.01 s");
}

TEST(RequestLog, AFailureSaysWhy) {
  Request request = ended_after(milliseconds(3200), std::nullopt);
  request.state = RequestState::kFailed;
  request.failure = Error(Errc::kInvalidArgument, "not an 'x'");
  EXPECT_EQ(end_line(request),
            "request r1: 8192 tokens, invalid_argument: queue 3.20 s: not an 'x'");
}

TEST(RequestLog, ALineNamesTheTraceInFrontOfTheReason) {
  Request request = ended_after(milliseconds(10), std::nullopt);
  request.trace_id = "4bf92f3577b34da6a3ce929d0e0e4736";
  const std::string line = "queue 0.01 s, trace 4bf92f3577b34da6a3ce929d0e0e4736";
  EXPECT_TRUE(end_line(request).ends_with(line)) << end_line(request);
  request.failure = Error(Errc::kCancelled, "gone");
  EXPECT_TRUE(end_line(request).ends_with(line + ": gone")) << end_line(request);
}

}  // namespace
}  // namespace millrace::coordinator
