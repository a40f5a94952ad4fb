// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of a group's service: what the coordinator sends, and what it expects to
// receive.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>

#include "tests/support/temp_directory.h"
#include "tests/unit/worker/group/running_group.h"

namespace millrace::worker {

inline constexpr uint64_t kLeaseMs = 20'000;

protocol::Envelope prefill_request(const std::string& id, int num_tokens,
                                   const std::string& plan = "", uint64_t deadline_ms = 0);
protocol::Envelope streaming_request(const std::string& id, int num_tokens);
protocol::Envelope cancel(const std::string& id);
protocol::Envelope renew(const protocol::Manifest& manifest, uint64_t lease_ms);
protocol::Envelope release(const protocol::Manifest& manifest);

// A group of the tiny model. It is started when it is first asked for, with the options as they are
// then.
class GroupServiceTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite();
  static test::TempDirectory& model();

  test::RunningGroup& group();
  test::ScriptedLink& link() { return group().link(); }

  // Calls `what` after layer 0 of `id`, before the group looks at its messages.
  void after_first_layer_of(const std::string& id, std::function<void()> what);

  protocol::PrefillDone expect_done();
  // The group's next answer must be an error with this code, and a message that contains `why`.
  void expect_failed(const std::string& id, Errc code, const std::string& why);
  void expect_next_request_works();
  protocol::LeaseReply expect_lease_reply();
  // All ranks must end without an error; waits for their end.
  void expect_good_end();

  Result<void> pull_a_page(const protocol::Manifest& manifest);

  test::RunningGroup::Options options_;

 private:
  std::unique_ptr<test::RunningGroup> group_;
};

}  // namespace millrace::worker
