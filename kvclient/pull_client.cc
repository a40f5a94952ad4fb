// SPDX-License-Identifier: Apache-2.0
#include "kvclient/pull_client.h"

#include <algorithm>

#include "common/system/cpu.h"
#include "kvclient/device/cuda_copier.h"
#include "kvclient/pull_queue.h"
#include "kvclient/pull_worker.h"

namespace millrace::kvclient {

namespace {

// Large enough that a request's latency is small in comparison, and small enough that a core's
// second-level cache holds the pages until they are checked.
constexpr int64_t kRequestBytes = 2 << 20;
// Into a device, where each copy must be worth its launch: 113 GB/s from one GPU to another,
// against 61 GB/s with kRequestBytes.
constexpr int64_t kDeviceRequestBytes = 8 << 20;
// A reply carries 64 MiB, and a rank accepts 2048 pages in one request.
constexpr int64_t kMaxPagesPerRequest = 1024;

PullClientOptions with_defaults(PullClientOptions options) {
  if (options.num_threads <= 0) options.num_threads = std::clamp(usable_cores(), 2, 8);
  if (options.connections_per_rank <= 0) options.connections_per_rank = options.num_threads;
  return options;
}

int64_t pages_per_request(const PullClientOptions& options, const Manifest& manifest,
                          int32_t device) {
  const int64_t most =
      std::min(kMaxPagesPerRequest, comm::kMaxTransportPayloadBytes / manifest.page_bytes());
  const int64_t wanted =
      options.pages_per_request > 0
          ? options.pages_per_request
          : (device == kHostMemory ? kRequestBytes : kDeviceRequestBytes) / manifest.page_bytes();
  return std::clamp<int64_t>(wanted, 1, std::max<int64_t>(most, 1));
}

}  // namespace

Pull::Pull(std::shared_ptr<PullQueue> queue, std::shared_ptr<PullTask> task)
    : queue_(std::move(queue)), task_(std::move(task)) {}

Pull::~Pull() {
  queue_->cancel(*task_);
  queue_->wait_until_quiet(*task_);
}

std::optional<Result<void>> Pull::wait(Deadline deadline) {
  return queue_->wait(*task_, deadline);
}

std::optional<Error> Pull::check_layer(int32_t layer) const {
  const auto& request = task_->request;
  if (layer >= request.first_layer && layer - request.first_layer < std::ssize(request.layers)) {
    return std::nullopt;
  }
  return error(Errc::kInvalidArgument, "layer {} is none of {} + {}", layer, request.first_layer,
               request.layers.size());
}

std::optional<Result<void>> Pull::wait_for_layer(int32_t layer, Deadline deadline) {
  if (auto wrong = check_layer(layer)) return Result<void>(std::move(*wrong));
  return queue_->wait_for_layer(*task_, layer, deadline);
}

std::optional<Result<void>> Pull::wait_for_hot(int32_t layer, Deadline deadline) {
  if (auto wrong = check_layer(layer)) return Result<void>(std::move(*wrong));
  return queue_->wait_for_hot(*task_, layer, deadline);
}

void Pull::cancel() {
  queue_->cancel(*task_);
}

PullProgress Pull::progress() const {
  return queue_->progress(*task_);
}

int64_t Pull::num_pages() const {
  return task_->num_pages();
}

PullClient::PullClient(comm::Transport& transport, const PullClientOptions& options)
    : options_(with_defaults(options)),
      queue_(std::make_shared<PullQueue>(options_.num_threads, options_.connections_per_rank)) {
  const std::shared_ptr<DeviceCopier> copier =
      options_.device_copier ? options_.device_copier : std::make_shared<CudaCopier>();
  const auto same_host =
      options_.same_host ? std::make_shared<PullWorker::SameHost>(copier) : nullptr;
  for (int thread = 0; thread < options_.num_threads; ++thread) {
    threads_.emplace_back([queue = queue_, &transport, copier, same_host, thread,
                           refetches = options_.max_refetches] {
      PullWorker(*queue, transport, same_host.get(), *copier, thread, refetches).run();
    });
  }
}

PullClient::~PullClient() {
  queue_->close();
  for (auto& thread : threads_) thread.join();
}

Result<std::unique_ptr<Pull>> PullClient::start(std::shared_ptr<const Manifest> manifest,
                                                PullRequest request) {
  MR_RETURN_IF_ERROR(check_request(request, *manifest));
  const int64_t pages = pages_per_request(options_, *manifest, request.device);
  auto task = std::make_shared<PullTask>(std::move(manifest), std::move(request), pages);
  auto pull = std::make_unique<Pull>(queue_, task);
  queue_->add(task);
  return pull;
}

}  // namespace millrace::kvclient
