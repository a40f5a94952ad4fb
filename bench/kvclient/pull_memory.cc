// SPDX-License-Identifier: Apache-2.0
#include "bench/kvclient/pull_memory.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>

#include "common/check.h"
#include "common/clock.h"

namespace millrace::bench {

namespace {

constexpr int64_t kPinnedBytes = int64_t{1} << 30;

const kvclient::CudaDriver& the_driver() {
  const auto driver = kvclient::CudaDriver::get();
  MR_CHECK(driver.ok(), "{}", driver.error().to_string());
  return **driver;
}

}  // namespace

PullMemory::PullMemory(int32_t device, int64_t bytes)
    : driver_(the_driver()), ordinal_(device), bytes_(bytes) {
  MR_CHECK(driver_.device_get(&device_, device) == 0, "no CUDA device {}", device);
  MR_CHECK(driver_.retain_primary_context(&context_, device_) == 0, "no context");
  MR_CHECK(driver_.push_context(context_) == 0, "no context");
  MR_CHECK(driver_.allocate(&address_, static_cast<size_t>(bytes)) == 0, "{} bytes of the GPU",
           bytes);
}

PullMemory::~PullMemory() {
  driver_.free(address_);
  driver_.pop_context(&context_);
  driver_.release_primary_context(device_);
}

void PullMemory::copy_to_host(std::byte* to) const {
  MR_CHECK(driver_.copy_to_host(to, address_, static_cast<size_t>(bytes_)) == 0, "copying back");
}

double PullMemory::plain_copy_s() const {
  void* pinned = nullptr;
  void* stream = nullptr;
  const int64_t piece = std::min(kPinnedBytes, bytes_);
  MR_CHECK(driver_.allocate_host(&pinned, static_cast<size_t>(piece), 0) == 0, "pinned memory");
  MR_CHECK(driver_.create_stream(&stream, 1) == 0, "a stream");
  std::memset(pinned, 1, static_cast<size_t>(piece));
  const Stopwatch watch;
  for (int64_t at = 0; at < bytes_; at += piece) {
    const auto size = static_cast<size_t>(std::min(piece, bytes_ - at));
    MR_CHECK(
        driver_.copy_to_device(address_ + static_cast<uint64_t>(at), pinned, size, stream) == 0,
        "copying");
  }
  MR_CHECK(driver_.synchronize(stream) == 0, "copying");
  const double elapsed = watch.elapsed_s();
  driver_.destroy_stream(stream);
  driver_.free_host(pinned);
  return elapsed;
}

double PullMemory::peer_copy_s(int32_t from_device) const {
  const PullMemory from(from_device, bytes_);
  // Functions that the client itself does not use.
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW);
  const auto enable_peer =
      reinterpret_cast<int (*)(void*, unsigned)>(::dlsym(library, "cuCtxEnablePeerAccess"));
  const auto copy = reinterpret_cast<int (*)(uint64_t, uint64_t, size_t, void*)>(
      ::dlsym(library, "cuMemcpyDtoDAsync_v2"));
  MR_CHECK(driver_.push_context(context_) == 0, "no context");
  if (from_device != ordinal_) enable_peer(from.context_, 0);  // fails if already enabled
  void* stream = nullptr;
  MR_CHECK(driver_.create_stream(&stream, 1) == 0, "a stream");
  const Stopwatch watch;
  MR_CHECK(copy(address_, from.address_, static_cast<size_t>(bytes_), stream) == 0, "copying");
  MR_CHECK(driver_.synchronize(stream) == 0, "copying");
  const double elapsed = watch.elapsed_s();
  driver_.destroy_stream(stream);
  void* popped = nullptr;
  driver_.pop_context(&popped);
  return elapsed;
}

}  // namespace millrace::bench
