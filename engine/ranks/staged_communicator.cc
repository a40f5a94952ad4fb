// SPDX-License-Identifier: Apache-2.0
#include "engine/ranks/staged_communicator.h"

#include <memory>
#include <utility>
#include <vector>

namespace millrace::engine {

namespace {

class Buffer final : public comm::CollectiveBuffer {
 public:
  explicit Buffer(kernels::DeviceBuffer memory) : memory_(std::move(memory)) {}
  void* data() const override { return memory_.data(); }

 private:
  kernels::DeviceBuffer memory_;
};

}  // namespace

Result<kernels::HostWindow*> StagedCommunicator::Window::of(int64_t bytes, Deadline deadline) {
  if (!window_ || window_->max_bytes() < bytes) {
    // Transfers through the old window may still be under way.
    MR_RETURN_IF_ERROR(device_.synchronize(deadline));
    window_.reset();
    MR_ASSIGN_OR_RETURN(window_, kernels::HostWindow::create(device_, bytes));
  }
  return &*window_;
}

template <typename Body>
Result<void> StagedCommunicator::counted(std::string_view what, Body&& body) {
  const auto before = ranks_.stats();
  MR_RETURN_IF_ERROR(body());
  const auto after = ranks_.stats();
  comm::CommStats& stats = stats_[std::string(what)];
  ++stats.calls;
  stats.bytes_received += after.bytes_received - before.bytes_received;
  stats.seconds += after.seconds - before.seconds;
  return {};
}

Result<std::unique_ptr<comm::CollectiveBuffer>> StagedCommunicator::allocate(int64_t bytes) {
  MR_ASSIGN_OR_RETURN(auto memory, device_.allocate(bytes));
  return std::unique_ptr<comm::CollectiveBuffer>(std::make_unique<Buffer>(std::move(memory)));
}

Result<void> StagedCommunicator::all_gather(std::string_view what, void* data, int64_t bytes,
                                            Deadline deadline) {
  return counted(what, [&]() -> Result<void> {
    MR_ASSIGN_OR_RETURN(auto* out, sent_.of(bytes, deadline));
    MR_ASSIGN_OR_RETURN(auto* in, received_.of(size() * bytes, deadline));
    MR_ASSIGN_OR_RETURN(const auto own,
                        out->read(static_cast<std::byte*>(data) + rank() * bytes, bytes, deadline));
    MR_ASSIGN_OR_RETURN(const auto all, in->fill(data, size() * bytes, deadline));
    const std::vector<int64_t> counts(static_cast<size_t>(size()), bytes);
    MR_RETURN_IF_ERROR(ranks_.all_gather(own, all, counts, deadline));
    in->write(data, size() * bytes);
    return {};
  });
}

Result<void> StagedCommunicator::broadcast(std::string_view what, void* data, int64_t bytes,
                                           int root, Deadline deadline) {
  return counted(what, [&]() -> Result<void> {
    MR_ASSIGN_OR_RETURN(auto* window, received_.of(bytes, deadline));
    MR_ASSIGN_OR_RETURN(const auto view, rank() == root ? window->read(data, bytes, deadline)
                                                        : window->fill(data, bytes, deadline));
    MR_RETURN_IF_ERROR(ranks_.broadcast(view, root, deadline));
    if (rank() != root) window->write(data, bytes);
    return {};
  });
}

Result<void> StagedCommunicator::all_reduce_sum(std::string_view what, float* data, int64_t count,
                                                Deadline deadline) {
  return counted(what, [&]() -> Result<void> {
    const int64_t bytes = count * int64_t{sizeof(float)};
    MR_ASSIGN_OR_RETURN(auto* window, received_.of(bytes, deadline));
    MR_ASSIGN_OR_RETURN(const auto view, window->read(data, bytes, deadline));
    MR_RETURN_IF_ERROR(ranks_.all_reduce_sum(
        std::span(reinterpret_cast<float*>(view.data()), static_cast<size_t>(count)), deadline));
    window->write(data, bytes);
    return {};
  });
}

}  // namespace millrace::engine
