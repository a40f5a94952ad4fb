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
  return next_++;
}

Result<void> EventRing::wait_for(TimeMark mark, Deadline deadline) const {
  MR_CHECK(mark >= next_ - capacity() && mark < next_, "mark {} of {}", mark, next_);
  return wait_for_event(event(mark), deadline);
}

double EventRing::elapsed_s(TimeMark from, TimeMark to) const {
  MR_CHECK(from >= next_ - capacity() && to >= from && to < next_, "from mark {} to {} of {}", from,
           to, next_);
  float elapsed_ms = 0;
  MR_CUDA_CHECK(cudaEventElapsedTime(&elapsed_ms, event(from), event(to)));
  return double{elapsed_ms} * 1e-3;
}

}  // namespace millrace::kernels::cuda
