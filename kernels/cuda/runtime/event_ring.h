// SPDX-License-Identifier: Apache-2.0
// Numbered time marks in a stream. The last few can be waited for, and the time between them
// measured.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "common/clock.h"
#include "common/result.h"
#include "kernels/api/device.h"

namespace millrace::kernels::cuda {

class EventRing {
 public:
  // Keeps the last `capacity` marks.
  explicit EventRing(int64_t capacity);
  EventRing(const EventRing&) = delete;
  EventRing& operator=(const EventRing&) = delete;
  ~EventRing();

  TimeMark record(cudaStream_t stream);
  Result<void> wait_for(TimeMark mark, Deadline deadline) const;
  double elapsed_s(TimeMark from, TimeMark to) const;

 private:
  int64_t capacity() const { return std::ssize(events_); }
  cudaEvent_t event(int64_t number) const {
    return events_[static_cast<size_t>(number % capacity())];
  }
  // The mark must still be kept.
  cudaEvent_t event(TimeMark mark) const;

  std::vector<cudaEvent_t> events_;
  int64_t next_ = 0;  // the number of the next mark
};

}  // namespace millrace::kernels::cuda
