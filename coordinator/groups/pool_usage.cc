// SPDX-License-Identifier: Apache-2.0
#include "coordinator/groups/pool_usage.h"

#include <map>
#include <string>

namespace millrace::coordinator {

void PoolUsage::update(const protocol::Heartbeat& heartbeat) {
  using Tiers = std::map<std::string_view, double Tier::*>;
  static const Tiers by_tier = {{"millrace_kv_pool_capacity_bytes", &Tier::capacity_bytes},
                                {"millrace_kv_pool_used_bytes", &Tier::used_bytes},
                                {"millrace_prefix_cache_bytes", &Tier::prefix_bytes}};
  for (const auto& metric : heartbeat.metrics()) {
    if (metric.name() == "millrace_attention_imbalance_ratio") imbalance = metric.value();
    const auto figure = by_tier.find(metric.name());
    const auto label = metric.labels().find("tier");
    if (figure == by_tier.end() || label == metric.labels().end()) continue;
    for (Tier& tier : tiers) {
      if (tier.name == label->second) tier.*figure->second = metric.value();
    }
  }
}

}  // namespace millrace::coordinator
