// The hot list of a layer and kv head: the fewest pages that carry a share of the attention mass of
// the prompt's last rows, as their scores say (protocol/kv_messages.proto). Sinks and the newest
// pages are among them where attention goes there.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace millrace::kvclient {

// By page: whether it is on the list. The share is of the sum of `scores`, which are finite and not
// negative; a page without score is never on it. Of equal ones the earlier comes first.
std::vector<bool> hot_list(std::span<const float> scores, double share);

}  // namespace millrace::kvclient
