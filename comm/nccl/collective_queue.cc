// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/collective_queue.h"

#include <algorithm>

#include "comm/nccl/cuda_failure.h"
#include "common/check.h"

namespace millrace::comm {

CollectiveQueue::CollectiveQueue(int gpu, cudaStream_t operations)
    : gpu_(gpu), operations_(operations) {
  use();
  // This stream goes ahead of the device's operations if both are ready, because other ranks wait
  // for what is sent here.
  int least = 0, greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
  check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest),
        "cudaStreamCreateWithPriority");
  check(cudaEventCreateWithFlags(&followed_, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  for (cudaEvent_t& mark : marks_) {
    check(cudaEventCreateWithFlags(&mark, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  }
}

CollectiveQueue::~CollectiveQueue() {
  for (const Span& span : spans_) {
    cudaEventDestroy(span.begin);
    cudaEventDestroy(span.end);
  }
  for (cudaEvent_t mark : marks_) cudaEventDestroy(mark);
  cudaEventDestroy(followed_);
  cudaStreamDestroy(stream_);
}

void CollectiveQueue::use() const {
  check(cudaSetDevice(gpu_), "cudaSetDevice");
}

void CollectiveQueue::follow() {
  use();
  check(cudaEventRecord(followed_, operations_), "cudaEventRecord");
  check(cudaStreamWaitEvent(stream_, followed_, 0), "cudaStreamWaitEvent");
}

CollectiveMark CollectiveQueue::mark() {
  use();
  check(cudaEventRecord(marks_[static_cast<size_t>(num_marks_ % kCollectiveMarksKept)], stream_),
        "cudaEventRecord");
  return CollectiveMark(num_marks_++);
}

void CollectiveQueue::join(CollectiveMark mark) {
  // A prompt that was set aside may join old marks. The later marks of the stream include them.
  const auto number = std::max(static_cast<int64_t>(mark), num_marks_ - kCollectiveMarksKept);
  MR_CHECK(number < num_marks_, "mark {} of {}", number, num_marks_);
  use();
  check(cudaStreamWaitEvent(operations_, marks_[static_cast<size_t>(number % kCollectiveMarksKept)],
                            0),
        "cudaStreamWaitEvent");
}

CollectiveQueue::Span CollectiveQueue::make_span() {
  Span span;
  check(cudaEventCreate(&span.begin), "cudaEventCreate");
  check(cudaEventCreate(&span.end), "cudaEventCreate");
  return span;
}

void CollectiveQueue::begin(double& busy_s) {
  use();
  if (next_span_ == spans_.size()) next_span_ = 0;
  if (spans_.empty() || !settle(spans_[next_span_])) {
    spans_.insert(spans_.begin() + static_cast<std::ptrdiff_t>(next_span_), make_span());
  }
  Span& span = spans_[next_span_];
  span.busy_s = &busy_s;
  check(cudaEventRecord(span.begin, stream_), "cudaEventRecord");
}

void CollectiveQueue::end() {
  Span& span = spans_[next_span_];
  check(cudaEventRecord(span.end, stream_), "cudaEventRecord");
  span.running = true;
  ++next_span_;
}

void CollectiveQueue::settle() const {
  for (Span& span : spans_) settle(span);
}

bool CollectiveQueue::settle(Span& span) {
  if (!span.running) return true;
  float elapsed_ms = 0;
  const cudaError_t status = cudaEventElapsedTime(&elapsed_ms, span.begin, span.end);
  if (status == cudaErrorNotReady) return false;
  check(status, "cudaEventElapsedTime");
  span.running = false;
  *span.busy_s += double{elapsed_ms} * 1e-3;
  return true;
}

}  // namespace millrace::comm
