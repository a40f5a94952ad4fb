#include "comm/nccl/collective_queue.h"

#include "comm/nccl/cuda_failure.h"
#include "common/check.h"

namespace millrace::comm::nccl {

CollectiveQueue::CollectiveQueue(int gpu, cudaStream_t operations)
    : gpu_(gpu), operations_(operations) {
  use();
  // Ahead of the device's operations wherever both are ready: others wait for what is sent here.
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
  for (const Stretch& stretch : stretches_) {
    cudaEventDestroy(stretch.begin);
    cudaEventDestroy(stretch.end);
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
  const auto number = static_cast<int64_t>(mark);
  MR_CHECK(number < num_marks_ && number >= num_marks_ - kCollectiveMarksKept, "mark {} of {}",
           number, num_marks_);
  use();
  check(cudaStreamWaitEvent(operations_, marks_[static_cast<size_t>(number % kCollectiveMarksKept)],
                            0),
        "cudaStreamWaitEvent");
}

CollectiveQueue::Stretch CollectiveQueue::make_stretch() {
  Stretch stretch;
  check(cudaEventCreate(&stretch.begin), "cudaEventCreate");
  check(cudaEventCreate(&stretch.end), "cudaEventCreate");
  return stretch;
}

void CollectiveQueue::begin(double& busy_s) {
  use();
  if (next_stretch_ == stretches_.size()) next_stretch_ = 0;
  if (stretches_.empty() || !settle(stretches_[next_stretch_])) {
    stretches_.insert(stretches_.begin() + static_cast<std::ptrdiff_t>(next_stretch_),
                      make_stretch());
  }
  Stretch& stretch = stretches_[next_stretch_];
  stretch.busy_s = &busy_s;
  check(cudaEventRecord(stretch.begin, stream_), "cudaEventRecord");
}

void CollectiveQueue::end() {
  Stretch& stretch = stretches_[next_stretch_];
  check(cudaEventRecord(stretch.end, stream_), "cudaEventRecord");
  stretch.running = true;
  ++next_stretch_;
}

void CollectiveQueue::settle() const {
  for (Stretch& stretch : stretches_) settle(stretch);
}

bool CollectiveQueue::settle(Stretch& stretch) {
  if (!stretch.running) return true;
  float elapsed_ms = 0;
  const cudaError_t status = cudaEventElapsedTime(&elapsed_ms, stretch.begin, stretch.end);
  if (status == cudaErrorNotReady) return false;
  check(status, "cudaEventElapsedTime");
  stretch.running = false;
  *stretch.busy_s += double{elapsed_ms} * 1e-3;
  return true;
}

}  // namespace millrace::comm::nccl
