#include "kernels/cuda/stream.h"

#include <thread>

#include "kernels/cuda/check.h"

namespace millrace::kernels::cuda {
namespace {

// A wait shorter than this is spun through: waking up would take as long. It is a layer of a short
// prompt; a longer wait looks up this often.
constexpr auto kSpin = std::chrono::milliseconds(1);
constexpr auto kPause = std::chrono::microseconds(50);

}  // namespace

Stream::Stream() {
  MR_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  MR_CUDA_CHECK(cudaEventCreateWithFlags(&reached_, cudaEventDisableTiming));
}

Stream::~Stream() {
  cudaStreamSynchronize(stream_);
  cudaEventDestroy(reached_);
  cudaStreamDestroy(stream_);
}

Result<void> Stream::synchronize(Deadline deadline) {
  MR_CUDA_CHECK(cudaEventRecord(reached_, stream_));
  const Stopwatch watch;
  while (true) {
    const cudaError_t state = cudaEventQuery(reached_);
    if (state == cudaSuccess) return {};
    if (state != cudaErrorNotReady) check(state, "cudaEventQuery");
    if (deadline.passed()) {
      return error(Errc::kDeadlineExceeded, "the GPU was still busy after {:.1f} s",
                   watch.elapsed_s());
    }
    if (watch.elapsed_s() > seconds(kSpin)) std::this_thread::sleep_for(kPause);
  }
}

}  // namespace millrace::kernels::cuda
