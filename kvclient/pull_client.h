// SPDX-License-Identifier: Apache-2.0
// Pulls handed-over KV caches into the paged blocks of a decode engine: asynchronously, over
// several connections to every rank at once, with any number of pulls at a time.
//
//   PullClient client(transport, {});
//   auto pull = client.start(manifest, {.num_kv_heads = 8, .dtype = DType::kBFloat16, ...});
//   if (pull.ok()) (*pull)->wait(Deadline::after(10s));
//
// Every page is checked against the checksum taken when it was written; a page that differs is
// fetched again. A rank that has no memory to read pages for one more reader is asked again. Pages
// come in the order that the request names. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "comm/api/transport.h"
#include "common/clock.h"
#include "common/result.h"
#include "kvclient/manifest/manifest.h"
#include "kvclient/pull_request.h"
#include "kvclient/pull_stats.h"

namespace millrace::kvclient {

class DeviceCopier;
class PullQueue;
class PullTask;

// 0 means the default, which the comment names.
struct PullClientOptions {
  int32_t num_threads = 0;           // the number of cores, 2 to 8; each has its own connections
  int32_t connections_per_rank = 0;  // that pull from a rank at once; no limit
  int32_t pages_per_request = 0;     // 2 MiB; 8 MiB into the memory of a device
  int32_t max_refetches = 2;         // 0: none
  // Whether to copy pages directly from the memory of ranks on this host, bypassing the transport,
  // if a rank of the same user offers it (docs/kv-client.md).
  bool same_host = true;
  // For pulls into the memory of a device; null: CUDA, if the process finds a driver.
  std::shared_ptr<DeviceCopier> device_copier = {};
};

// State of a pull at one moment.
struct PullProgress {
  PullStats stats;
  int32_t layers_complete = 0;
  int32_t hot_layers_complete = 0;  // whose hot lists have arrived
  std::optional<double> hot_s;      // from its start until the hot lists of all layers had arrived
  // Time without a request under way because layers were not ready.
  double waiting_s = 0;
  std::optional<Result<void>> end;
};

// One pull. Destroying it cancels it and waits until nothing more is written to its destinations.
class Pull {
 public:
  Pull(std::shared_ptr<PullQueue> queue, std::shared_ptr<PullTask> task);
  Pull(const Pull&) = delete;
  Pull& operator=(const Pull&) = delete;
  ~Pull();

  // How the pull ended, or nothing if it has not ended by the deadline. Errors: kNotFound (lease
  // over or foreign, group restarted), kUnavailable (not there yet), kCorrupt, kPeerLost,
  // kCancelled, kDeadlineExceeded (its own timeout), or that of its feed. Once it has ended,
  // nothing is written to its destinations.
  std::optional<Result<void>> wait(Deadline deadline);
  // The same, but already once all heads and tokens of a layer of the model have arrived.
  std::optional<Result<void>> wait_for_layer(int32_t layer, Deadline deadline);
  // The same, once the pages on the layer's hot list have arrived; with kPosition, the whole layer.
  std::optional<Result<void>> wait_for_hot(int32_t layer, Deadline deadline);
  // Returns at once. The pull soon ends with kCancelled, unless it has ended already.
  void cancel();

  PullProgress progress() const;
  PullStats stats() const { return progress().stats; }
  int64_t num_pages() const;

 private:
  std::optional<Error> check_layer(int32_t layer) const;

  const std::shared_ptr<PullQueue> queue_;
  const std::shared_ptr<PullTask> task_;
};

class PullClient {
 public:
  // `transport` outlives the client.
  PullClient(comm::Transport& transport, const PullClientOptions& options);
  PullClient(const PullClient&) = delete;
  PullClient& operator=(const PullClient&) = delete;
  // Cancels its pulls, which stay valid, and waits until nothing more is written to their
  // destinations.
  ~PullClient();

  // After kInvalidArgument or kUnsupported nothing was started. The manifest must have passed
  // check_manifest.
  Result<std::unique_ptr<Pull>> start(std::shared_ptr<const Manifest> manifest,
                                      PullRequest request);
  Result<std::unique_ptr<Pull>> start(const Manifest& manifest, PullRequest request) {
    return start(std::make_shared<const Manifest>(manifest), std::move(request));
  }

 private:
  const PullClientOptions options_;
  const std::shared_ptr<PullQueue> queue_;
  std::vector<std::thread> threads_;
};

}  // namespace millrace::kvclient
