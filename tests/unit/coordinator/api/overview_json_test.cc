// SPDX-License-Identifier: Apache-2.0
#include "coordinator/api/overview_json.h"

#include <gmock/gmock.h>

#include <boost/json.hpp>
#include <limits>

#include "tests/unit/coordinator/schedule/scheduler_fixture.h"

namespace millrace::coordinator {
namespace {

namespace json = boost::json;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;

class OverviewTest : public SchedulerTest {
 protected:
  std::string text() const {
    return overview_text({scheduler_->groups(), scheduler_->requests(), scheduler_->turns()},
                         "1.2.3", names_, clock_.now());
  }
  json::object overview() const { return json::parse(text()).as_object(); }
  static std::vector<std::string> ids(const json::object& overview, const char* list) {
    std::vector<std::string> out;
    for (const auto& entry : overview.at(list).as_array()) {
      out.emplace_back(entry.at("request_id").as_string());
    }
    return out;
  }
  // With the recalls of `num_heads` heads in each of two layers.
  void done_by_head(const std::string& id, uint32_t num_heads, std::vector<float> mean,
                    std::vector<float> least, std::vector<float> density = {}) {
    protocol::Envelope envelope;
    auto& message = *envelope.mutable_prefill_done();
    message.set_request_id(id);
    message.mutable_manifest()->set_lease_id("lease-" + id);
    message.mutable_manifest()->set_lease_ms(1000);
    auto& recalls = *message.mutable_head_recalls();
    recalls.set_num_heads(num_heads);
    for (const float share : mean) recalls.add_mean(share);
    for (const float share : least) recalls.add_least(share);
    for (const float share : density) recalls.add_density(share);
    receive(envelope);
  }

  RecordingLink link_;
  ShownNames names_;
};

TEST_F(OverviewTest, IsEmptyWithoutGroupsAndRequests) {
  EXPECT_EQ(text(), R"({"version":"1.2.3","num_groups":0,"num_running":0,"num_queued":0,)"
                    R"("groups":[],"running":[],"queued":[],"ended":[]})");
}

TEST_F(OverviewTest, AGroupHasItsGridItsRoomAndThePoolsThatItHas) {
  auto description = group("g0", "group-0");
  description.set_tp(2);
  description.set_cp(3);
  description.set_device("CPU");
  ASSERT_TRUE(scheduler_->add_group(description, link_).ok());
  protocol::Envelope envelope;
  auto& heartbeat = *envelope.mutable_heartbeat();
  heartbeat.mutable_room()->set_free_prompt_tokens(700);
  for (const auto& [name, value] : {std::pair("millrace_kv_pool_capacity_bytes", 64.0),
                                    {"millrace_kv_pool_used_bytes", 16.0}}) {
    auto& metric = *heartbeat.add_metrics();
    metric.set_name(name);
    metric.set_value(value);
    (*metric.mutable_labels())["tier"] = "host";
  }
  receive(envelope);
  const json::object shown = overview().at("groups").at(0).as_object();
  EXPECT_EQ(shown.at("group"), "group-0");
  EXPECT_EQ(shown.at("model"), "tiny");
  EXPECT_EQ(shown.at("state"), "idle");
  EXPECT_EQ(shown.at("device"), "CPU");
  EXPECT_EQ(shown.at("ranks"), 6);
  EXPECT_EQ(shown.at("free_prompt_tokens"), 700);
  EXPECT_EQ(shown.at("max_prompt_tokens"), 1000);
  EXPECT_EQ(shown.at("imbalance"), nullptr);
  EXPECT_EQ(json::serialize(shown.at("tiers")),
            R"([{"tier":"host","capacity_bytes":6.4E1,"used_bytes":1.6E1,"prefix_bytes":0E0}])");
}

TEST_F(OverviewTest, ARunningPromptHasItsLayersAndTheTimeThatItsOthersShouldTake) {
  join(link_);
  ASSERT_FALSE(submit("r1"));
  started("r1");
  clock_.advance(seconds(3));
  json::object shown = overview().at("running").at(0).as_object();
  EXPECT_EQ(shown.at("request_id"), "r1");
  EXPECT_EQ(shown.at("group"), "group-0");
  EXPECT_EQ(shown.at("layers_done"), 0);
  EXPECT_EQ(shown.at("num_layers"), 2);
  EXPECT_EQ(shown.at("density"), nullptr);
  EXPECT_DOUBLE_EQ(shown.at("running_seconds").as_double(), 3);
  layer_done("r1");
  shown = overview().at("running").at(0).as_object();
  EXPECT_EQ(shown.at("layers_done"), 1);
  // One and a half layers took three seconds; half of one is left.
  EXPECT_DOUBLE_EQ(shown.at("seconds_left").as_double(), 1);
  EXPECT_EQ(shown.at("set_aside"), false);
  EXPECT_EQ(shown.at("cancelled"), false);
  EXPECT_EQ(overview().at("groups").at(0).at("state"), "running");
  layer_done("r1");
  EXPECT_DOUBLE_EQ(overview().at("running").at(0).at("seconds_left").to_number<double>(), 0);
}

TEST_F(OverviewTest, TheQueueIsInTheOrderOfItsTurns) {
  join(link_);
  ASSERT_FALSE(submit("running"));
  ASSERT_FALSE(submit("long", 900));
  ASSERT_FALSE(submit("short", 1));
  clock_.advance(seconds(2));
  const json::object shown = overview();
  EXPECT_EQ(shown.at("num_running"), 1);
  EXPECT_EQ(shown.at("num_queued"), 2);
  EXPECT_EQ(ids(shown, "queued"), (std::vector<std::string>{"short", "long"}));
  EXPECT_DOUBLE_EQ(shown.at("queued").at(0).at("queue_seconds").as_double(), 2);
}

TEST_F(OverviewTest, APromptThatIsFinishedWithoutItsClientHasNoDeadline) {
  join(link_);
  ASSERT_FALSE(submit("running"));
  ASSERT_FALSE(submit("bounded", 1, /*deadline_ms=*/60'000));
  PrefillBody body;
  body.model = "tiny";
  body.request_id = "finished-anyway";
  body.prompt_token_ids = {1, 2};
  body.prompt_sha256 = std::string(64, '0');
  body.on_disconnect = OnDisconnect::kFinish;
  ASSERT_FALSE(scheduler_->submit(std::move(body)));
  const json::object shown = overview();
  ASSERT_EQ(ids(shown, "queued"), (std::vector<std::string>{"bounded", "finished-anyway"}));
  EXPECT_DOUBLE_EQ(shown.at("queued").at(0).at("deadline_in_seconds").to_number<double>(), 60);
  EXPECT_TRUE(shown.at("queued").at(1).at("deadline_in_seconds").is_null());
}

TEST_F(OverviewTest, WhatEndedLastComesFirstAndAnErrorIsItsTypeOnly) {
  join(link_);
  ASSERT_FALSE(submit("r1"));
  done("r1");
  ASSERT_FALSE(submit("r2"));
  failed("r2", Errc::kInvalidArgument, "a message that may quote what a client sent");
  clock_.advance(seconds(4));
  const json::object shown = overview();
  EXPECT_EQ(ids(shown, "ended"), (std::vector<std::string>{"r2", "r1"}));
  EXPECT_EQ(shown.at("ended").at(0).at("status"), "failed");
  EXPECT_EQ(shown.at("ended").at(0).at("error"), "invalid_argument");
  EXPECT_EQ(shown.at("ended").at(1).at("status"), "done");
  EXPECT_EQ(shown.at("ended").at(1).at("by_head"), false);
  EXPECT_DOUBLE_EQ(shown.at("ended").at(1).at("ended_seconds_ago").as_double(), 4);
  EXPECT_THAT(text(), Not(HasSubstr("message")));
}

// Whoever has a lease id can read the cache; salts and prompts are the client's own.
TEST_F(OverviewTest, HoldsNoSecretsOfRequests) {
  join(link_);
  for (const char* id : {"ended", "running", "queued"}) {
    PrefillBody body;
    body.model = "tiny";
    body.request_id = id;
    body.prompt_token_ids = {77, 77, 77};
    body.options.set_cache_salt("salt-of-a-tenant");
    ASSERT_FALSE(scheduler_->submit(std::move(body)));
    if (std::string_view(id) == "ended") done(id);
  }
  ASSERT_EQ(overview().at("num_queued"), 1);
  for (const std::string& shown : {text(), layers_text(*scheduler_->find("ended"), names_)}) {
    EXPECT_THAT(shown, Not(HasSubstr("lease-")));
    EXPECT_THAT(shown, Not(HasSubstr("salt-of")));
    EXPECT_THAT(shown, Not(HasSubstr("77")));
  }
}

TEST_F(OverviewTest, HiddenNamesTellRequestsApartAndNoMore) {
  join(link_);
  for (const char* id : {"ended", "running", "queued"}) {
    PrefillBody body;
    body.model = "tiny";
    body.request_id = id;
    body.prompt_token_ids = {1};
    ASSERT_FALSE(scheduler_->submit(std::move(body), {.name = "alice", .scope = Scope::kPrefill}));
    if (std::string_view(id) == "ended") done(id);
  }
  names_ = ShownNames::hidden("key");
  const OverviewParts parts{scheduler_->groups(), scheduler_->requests(), scheduler_->turns()};
  EXPECT_THAT(text(), Not(HasSubstr("alice")));
  for (const char* list : {"ended", "running", "queued"}) {
    const std::string shown = ids(overview(), list).at(0);
    EXPECT_EQ(shown.size(), std::string_view("hidden-0123456789abcdef").size()) << shown;
    const auto found = find_shown(parts, names_, shown);
    ASSERT_TRUE(found) << shown;
    EXPECT_EQ(found->id, list);
    EXPECT_THAT(layers_text(*found, names_), Not(HasSubstr("alice")));
    EXPECT_EQ(json::parse(layers_text(*found, names_)).at("request_id").as_string(), shown);
    EXPECT_FALSE(find_shown(parts, names_, list)) << "by its own id";
    EXPECT_FALSE(find_shown(parts, ShownNames::hidden("another"), shown));
  }
}

TEST_F(OverviewTest, ListsAreCutAndTheirLengthsAreGiven) {
  SchedulerSettings settings;
  settings.max_queued_requests = 1000;
  make(settings);
  std::vector<RecordingLink> links(kMostGroupsShown + 2);
  for (size_t i = 0; i < links.size(); ++i) {
    join(links[i], fmt::format("g{}", i), fmt::format("group-{}", i));
  }
  for (size_t i = 0; i < links.size() + kMostQueuedShown + 3; ++i) {
    ASSERT_FALSE(submit(fmt::format("r{}", i)));
  }
  const json::object shown = overview();
  EXPECT_EQ(shown.at("num_groups"), kMostGroupsShown + 2);
  EXPECT_EQ(shown.at("groups").as_array().size(), kMostGroupsShown);
  EXPECT_EQ(shown.at("num_queued"), kMostQueuedShown + 3);
  EXPECT_EQ(shown.at("queued").as_array().size(), kMostQueuedShown);
  EXPECT_EQ(shown.at("running").as_array().size(), kMostGroupsShown + 2);
}

TEST_F(OverviewTest, AGroupsLongTextIsCutBetweenCharacters) {
  auto description = group("g0", "group-0");
  std::string device = "x";
  for (int i = 0; i < 100; ++i) device += "\xc3\xa9";
  description.set_device(device);
  ASSERT_TRUE(scheduler_->add_group(description, link_).ok());
  EXPECT_EQ(overview().at("groups").at(0).at("device").as_string(),
            device.substr(0, 127) + "... (201 bytes)");
}

TEST_F(OverviewTest, LayersHaveTheRecallOfTheirHeadsWhereItIsKnown) {
  join(link_);
  ASSERT_FALSE(submit("r1"));
  layer_done("r1");
  EXPECT_EQ(layers_text(*scheduler_->find("r1"), names_),
            R"({"request_id":"r1","owner":"","model":"tiny","num_tokens":3,"num_layers":2,)"
            R"("density":[0]})");
  layer_done("r1");
  done_by_head("r1", 2, {1, 0.5F, std::numeric_limits<float>::quiet_NaN(), 0.12344F},
               {1, 0.25F, 0, 0});
  EXPECT_TRUE(overview().at("ended").at(0).at("by_head").as_bool());
  EXPECT_THAT(layers_text(*scheduler_->find("r1"), names_),
              HasSubstr(R"("density":[0,0],"recall_by_head":{"mean":[[1,0.5],[null,0.1234]],)"
                        R"("least":[[1,0.25],[0,0]]}})"));
}

TEST_F(OverviewTest, LayersHaveTheDensityOfTheirHeadsOfTheRequestsThatEndedLast) {
  join(link_);
  const auto run = [&](const std::string& id, std::vector<float> density) {
    ASSERT_FALSE(submit(id));
    done_by_head(id, 2, {1, 1, 1, 1}, {1, 1, 1, 1}, std::move(density));
  };
  run("r1", {1, 0.5F, 0.25F, 0.12344F});
  EXPECT_THAT(layers_text(*scheduler_->find("r1"), names_),
              HasSubstr(R"(,"density_by_head":[[1,0.5],[0.25,0.1234]]})"));
  run("odd", {1, 0.5F, 0.25F});
  EXPECT_THAT(layers_text(*scheduler_->find("odd"), names_), Not(HasSubstr("density_by_head")));
  for (size_t i = 2; i < RequestTracker::kMostLatestEnded; ++i) {
    run(fmt::format("next-{}", i), {1, 1, 1, 1});
  }
  EXPECT_THAT(layers_text(*scheduler_->find("r1"), names_), HasSubstr("density_by_head"));
  run("last", {1, 1, 1, 1});
  EXPECT_THAT(layers_text(*scheduler_->find("r1"), names_), Not(HasSubstr("density_by_head")));
  EXPECT_THAT(layers_text(*scheduler_->find("r1"), names_), HasSubstr("recall_by_head"));
  EXPECT_EQ(scheduler_->find("r1")->result->head_recalls().density_size(), 0);
}

TEST_F(OverviewTest, HeadsThatDoNotFitTogetherAreLeftOut) {
  join(link_);
  for (const uint32_t num_heads : {5U, 0U, UINT32_MAX}) {
    ASSERT_FALSE(submit("r1"));
    done_by_head("r1", num_heads, {1, 1, 1, 1}, {1, 1, 1, 1});
    EXPECT_THAT(layers_text(*scheduler_->find("r1"), names_), Not(HasSubstr("recall_by_head")));
    ASSERT_TRUE(scheduler_->release_lease("r1", "lease-r1").ok());
  }
  ASSERT_FALSE(submit("r1"));
  done_by_head("r1", 2, {1, 1, 1, 1}, {1, 1});
  EXPECT_THAT(layers_text(*scheduler_->find("r1"), names_), Not(HasSubstr("recall_by_head")));
}

}  // namespace
}  // namespace millrace::coordinator
