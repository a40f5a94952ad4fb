// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/runtime/event_wait.h"

#include <thread>

#include "common/system/cpu.h"
#include "kernels/cuda/runtime/check.h"

namespace millrace::kernels::cuda {
namespace {

// Waits shorter than kSpin, about a layer of a short prompt, spin, because waking up would take as
// long. Longer ones check the event every kPause.
constexpr auto kSpin = std::chrono::milliseconds(1);
constexpr auto kPause = std::chrono::microseconds(50);

Result<void> poll(cudaEvent_t event, Deadline deadline) {
  const Stopwatch watch;
  while (true) {
    const cudaError_t state = cudaEventQuery(event);
    if (state == cudaSuccess) return {};
    if (state != cudaErrorNotReady) check(state, "cudaEventQuery");
    if (deadline.passed()) {
      return error(Errc::kDeadlineExceeded, "the GPU was still busy after {:.1f} s",
                   watch.elapsed_s());
    }
    if (watch.elapsed_s() > seconds(kSpin)) std::this_thread::sleep_for(kPause);
  }
}

}  // namespace

// Code that runs after a wait would be slow with the registers in the state that the driver may
// leave.
Result<void> wait_for_event(cudaEvent_t event, Deadline deadline) {
  auto waited = poll(event, deadline);
  empty_upper_halves();
  return waited;
}

}  // namespace millrace::kernels::cuda
