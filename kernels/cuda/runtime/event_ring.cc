// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/runtime/event_ring.h"

#include "common/check.h"
#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/runtime/event_wait.h"

namespace millrace::kernels::cuda {

EventRing::EventRing(int64_t capacity) : events_(static_cast<size_t>(capacity)) {
  for (cudaEvent_t& event : events_) MR_CUDA_CHECK(cudaEventCreate(&event));
}

EventRing::~EventRing() {
  for (cudaEvent_t event : events_) cudaEventDestroy(event);
}

TimeMark EventRing::record(cudaStream_t stream) {
  MR_CUDA_CHECK(cudaEventRecord(event(next_), stream));
  return TimeMark(next_++);
}

cudaEvent_t EventRing::event(TimeMark mark) const {
  const auto number = static_cast<int64_t>(mark);
  MR_CHECK(number >= next_ - capacity() && number < next_, "mark {} of {}", number, next_);
  return event(number);
}

Result<void> EventRing::wait_for(TimeMark mark, Deadline deadline) const {
  return wait_for_event(event(mark), deadline);
}

double EventRing::elapsed_s(TimeMark from, TimeMark to) const {
  MR_CHECK(to >= from, "from mark {} to {}", static_cast<int64_t>(from), static_cast<int64_t>(to));
  float elapsed_ms = 0;
  MR_CUDA_CHECK(cudaEventElapsedTime(&elapsed_ms, event(from), event(to)));
  return double{elapsed_ms} * 1e-3;
}

}  // namespace millrace::kernels::cuda
