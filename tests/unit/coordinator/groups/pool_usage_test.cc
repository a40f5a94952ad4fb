// SPDX-License-Identifier: Apache-2.0
#include "coordinator/groups/pool_usage.h"

#include <gtest/gtest.h>

#include <string>

namespace millrace::coordinator {
namespace {

void add(protocol::Heartbeat& heartbeat, const std::string& name, double value,
         const std::string& tier = "") {
  auto& metric = *heartbeat.add_metrics();
  metric.set_name(name);
  metric.set_value(value);
  if (!tier.empty()) (*metric.mutable_labels())["tier"] = tier;
}

TEST(PoolUsage, ReadsTheFiguresOfEachTier) {
  protocol::Heartbeat heartbeat;
  add(heartbeat, "millrace_kv_pool_capacity_bytes", 100, "host");
  add(heartbeat, "millrace_kv_pool_used_bytes", 30, "host");
  add(heartbeat, "millrace_prefix_cache_bytes", 20, "host");
  add(heartbeat, "millrace_kv_pool_used_bytes", 5, "disk");
  add(heartbeat, "millrace_attention_imbalance_ratio", 1.25);
  PoolUsage usage;
  usage.update(heartbeat);
  EXPECT_EQ(usage.tiers[0].used_bytes, 0);
  EXPECT_EQ(usage.tiers[1].name, "host");
  EXPECT_EQ(usage.tiers[1].capacity_bytes, 100);
  EXPECT_EQ(usage.tiers[1].used_bytes, 30);
  EXPECT_EQ(usage.tiers[1].prefix_bytes, 20);
  EXPECT_EQ(usage.tiers[2].used_bytes, 5);
  EXPECT_EQ(usage.imbalance, 1.25);
}

TEST(PoolUsage, KeepsWhatAHeartbeatLeavesOut) {
  PoolUsage usage;
  usage.tiers[1].used_bytes = 7;
  usage.update({});
  EXPECT_EQ(usage.tiers[1].used_bytes, 7);
}

TEST(PoolUsage, IgnoresTiersAndMetricsThatItDoesNotKnow) {
  protocol::Heartbeat heartbeat;
  add(heartbeat, "millrace_kv_pool_used_bytes", 5, "tape");
  add(heartbeat, "millrace_kv_pool_used_bytes", 5);
  add(heartbeat, "millrace_leases", 5, "host");
  PoolUsage usage;
  usage.update(heartbeat);
  for (const auto& tier : usage.tiers) EXPECT_EQ(tier.used_bytes, 0) << tier.name;
}

}  // namespace
}  // namespace millrace::coordinator
