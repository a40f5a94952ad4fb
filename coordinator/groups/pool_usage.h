// SPDX-License-Identifier: Apache-2.0
// What a group last said about its KV pools and how evenly its ranks work: sums over its ranks, from
// the metrics in its heartbeats, which do not change while it runs a prompt. One thread; what is no
// number shows as NaN.
#pragma once

#include <array>
#include <string_view>

#include "protocol/control_messages.pb.h"

namespace millrace::coordinator {

struct PoolUsage {
  struct Tier {
    std::string_view name;
    double capacity_bytes = 0;
    double used_bytes = 0;
    double prefix_bytes = 0;  // of these, pages that prompts may begin with
  };

  // Keeps what the heartbeat does not mention.
  void update(const protocol::Heartbeat& heartbeat);

  std::array<Tier, 3> tiers = {{{.name = "device"}, {.name = "host"}, {.name = "disk"}}};
  // Most over mean of the ranks' attention work in the last prompt; 0: not known.
  double imbalance = 0;
};

}  // namespace millrace::coordinator
