// SPDX-License-Identifier: Apache-2.0
// The hot list of a layer and kv head: the fewest pages that carry a given share of the attention
// mass of the prompt's last rows, by their scores (protocol/kv_messages.proto). Sinks and the
// newest pages are on it if attention goes to them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace millrace::kvclient {

// For each page, whether it is on the list. The share is of the sum of `scores`, which must be
// finite and not negative; a page with score 0 is never on it. Among equals the earlier page comes
// first.
std::vector<bool> hot_list(std::span<const float> scores, double share);

}  // namespace millrace::kvclient
