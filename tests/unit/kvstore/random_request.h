// SPDX-License-Identifier: Apache-2.0
// Shared by random workloads on a store.
#pragma once

#include <random>
#include <vector>

namespace millrace::kvstore {

// One of the requests, which are a map whose values say whether they are sealed; null if none
// matches.
template <typename Requests>
typename Requests::value_type* any_request(Requests& requests, bool sealed, std::mt19937& random) {
  std::vector<typename Requests::value_type*> matching;
  for (auto& item : requests) {
    if (item.second.sealed == sealed) matching.push_back(&item);
  }
  return matching.empty() ? nullptr : matching[random() % matching.size()];
}

}  // namespace millrace::kvstore
