// A bound on the bodies of all connections together: each is bounded by itself, but many large ones
// at a time would fill the memory.
#pragma once

#include <cstdint>

#include "common/result.h"

namespace millrace::coordinator {

class BodyBudget {
 public:
  explicit BodyBudget(uint64_t max_bytes) : max_bytes_(max_bytes) {}

  // What one body takes of it, from before it is read until it is gone.
  class Share {
   public:
    explicit Share(BodyBudget& budget) : budget_(budget) {}
    ~Share() { give_back(); }
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;

    // Holds `bytes` from now on, unless it holds more. kExhausted when there is no room for them.
    Result<void> grow_to(uint64_t bytes);
    void give_back();

   private:
    BodyBudget& budget_;
    uint64_t bytes_ = 0;
  };

 private:
  uint64_t max_bytes_;
  uint64_t used_bytes_ = 0;
};

}  // namespace millrace::coordinator
