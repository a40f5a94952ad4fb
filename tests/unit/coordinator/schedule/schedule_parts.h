// SPDX-License-Identifier: Apache-2.0
// What the parts of the scheduler share, for a test of one of them: a clock moved by hand, the
// requests, and the groups.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "coordinator/groups/group_registry.h"
#include "coordinator/requests/request_tracker.h"
#include "tests/support/fake_clock.h"
#include "tests/unit/coordinator/schedule/recording_link.h"

namespace millrace::coordinator {

class SchedulePartsTest : public ::testing::Test {
 protected:
  // A group that has prefilled before.
  Group& join(RecordingLink& link, const std::string& id = "g0") {
    Group& group =
        **groups_.add(group_description(id, fmt::format("name of {}", id)), link, Duration::zero());
    group.cold = false;
    return group;
  }
  // A request in the queue.
  std::shared_ptr<Request> queued(const std::string& id, int64_t num_tokens = 3,
                                  const std::string& model = "tiny") {
    auto request = std::make_shared<Request>();
    request->id = id;
    request->model = model;
    request->num_tokens = num_tokens;
    request->prompt = std::string(static_cast<size_t>(num_tokens) * sizeof(int32_t), '\0');
    request->queued_at = clock_.now();
    request->options.set_deadline_ms(600'000);
    EXPECT_TRUE(requests_.admit(request).ok());
    return request;
  }
  // A request given to the group, as by the dispatcher.
  std::shared_ptr<Request> running(const std::string& id, Group& group, int64_t num_tokens = 3) {
    auto request = queued(id, num_tokens);
    requests_.assign(request);
    request->group_id = group.description.group_id();
    request->group_name = group.description.group_name();
    request->num_layers = group.description.model().num_layers();
    group.running = request;
    return request;
  }
  // A request that is done, with the lease "lease-<id>".
  std::shared_ptr<Request> leased(const std::string& id, Group& group, Duration lease,
                                  int64_t num_tokens = 3) {
    auto request = running(id, group, num_tokens);
    requests_.begin(*group.take(id));
    protocol::PrefillDone done;
    done.set_request_id(id);
    done.mutable_manifest()->set_model("tiny");
    done.mutable_manifest()->set_lease_id(fmt::format("lease-{}", id));
    requests_.finish(*request, std::move(done), lease);
    return request;
  }

  millrace::testing::FakeClock clock_;
  metrics::Registry registry_;
  CoordinatorMetrics metrics_{registry_};
  std::vector<std::string> changes_;
  RequestTracker requests_{RequestQueue(/*max_requests=*/8, /*max_bytes=*/1 << 20),
                           RequestTable(/*max_ended=*/100, /*keep_ended=*/std::chrono::minutes(5)),
                           clock_, metrics_,
                           [this](const Request& r) { changes_.push_back(r.id); }};
  GroupRegistry groups_;
  RecordingLink link_;
};

}  // namespace millrace::coordinator
