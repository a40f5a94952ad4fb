// Moments of a stream, numbered, the last few of which can be told apart in time and waited for.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>

#include "common/clock.h"
#include "common/result.h"
#include "kernels/api/device.h"

namespace millrace::kernels::cuda {

class EventRing {
 public:
  EventRing();
  EventRing(const EventRing&) = delete;
  EventRing& operator=(const EventRing&) = delete;
  ~EventRing();

  TimeMark record(cudaStream_t stream);
  Result<void> wait_for(TimeMark mark, Deadline deadline) const;
  double elapsed_s(TimeMark from, TimeMark to) const;

 private:
  cudaEvent_t event(TimeMark mark) const { return events_[static_cast<size_t>(mark % kMarksKept)]; }

  std::array<cudaEvent_t, kMarksKept> events_{};
  TimeMark next_ = 0;
};

}  // namespace millrace::kernels::cuda
