// SPDX-License-Identifier: Apache-2.0
// Bounds the memory that the bodies or replies of all connections take together. Each has a limit
// of its own, but many large ones at once would still fill the memory. One client may have only a
// part of it, so that the others find room whatever it does.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "common/result.h"

namespace millrace::coordinator {

class BodyBudget {
 public:
  BodyBudget(uint64_t max_bytes, uint64_t max_bytes_per_client)
      : max_bytes_(max_bytes), max_bytes_per_client_(max_bytes_per_client) {}

  // The memory that one body takes, from before it is read until it is gone.
  class Share {
   public:
    Share(BodyBudget& budget, std::string client) : budget_(budget), client_(std::move(client)) {}
    ~Share() { give_back(); }
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;

    // Holds at least `bytes` from now on. kExhausted when there is no room for them.
    Result<void> grow_to(uint64_t bytes);
    void give_back();

   private:
    BodyBudget& budget_;
    std::string client_;
    uint64_t bytes_ = 0;
  };

 private:
  uint64_t max_bytes_;
  uint64_t max_bytes_per_client_;
  uint64_t used_bytes_ = 0;
  std::map<std::string, uint64_t> used_by_client_;  // only clients that hold any
};

}  // namespace millrace::coordinator
