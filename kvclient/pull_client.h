// Pulls handed-over KV caches into the paged blocks of a decode engine: asynchronously, over several
// connections to every rank at once, any number of pulls at a time.
//
//   PullClient client(transport, {});
//   auto pull = client.start(manifest, {.num_kv_heads = 8, .dtype = DType::kBFloat16, ...});
//   if (pull.ok()) (*pull)->wait(Deadline::after(10s));
//
// Every page is checked against the checksum taken when it was written; one that differs is fetched
// again. A rank that has no memory to read pages for one more reader is asked again. Pages
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

// 0 is a default.
struct PullClientOptions {
  int32_t num_threads = 0;           // as many as cores, 2 to 8; each has its own connections
  int32_t connections_per_rank = 0;  // that pull from a rank at the same time; no limit
  int32_t pages_per_request = 0;     // 2 MiB; into the memory of a device 8
  int32_t max_refetches = 2;         // 0: none
  // Whether pages in the memory of ranks on this host, of the same user, are copied from there,
  // past the transport, where a rank offers it (docs/kv-client.md).
  bool same_host = true;
  // Of pulls into the memory of a device; null: CUDA, where the process finds a driver.
  std::shared_ptr<DeviceCopier> device_copier = {};
};

// Of a pull, at one moment.
struct PullProgress {
  PullStats stats;
  int32_t layers_complete = 0;
  int32_t hot_layers_complete = 0;  // whose hot lists are there
  std::optional<double> hot_s;      // from its start until those of all layers were
  // While nothing was under way, as its layers were not there yet.
  double waiting_s = 0;
  std::optional<Result<void>> end;
};

// One pull. Destroying it cancels it and waits until its destinations are left alone.
class Pull {
 public:
  Pull(std::shared_ptr<PullQueue> queue, std::shared_ptr<PullTask> task);
  Pull(const Pull&) = delete;
  Pull& operator=(const Pull&) = delete;
  ~Pull();

  // How it ended, or nothing if it has not by the deadline. Errors: kNotFound (lease over or
  // foreign, group restarted), kUnavailable (not there yet), kCorrupt, kPeerLost, kCancelled,
  // kDeadlineExceeded (its own timeout), or that of its feed. Once it has ended, nothing is written
  // to its destinations.
  std::optional<Result<void>> wait(Deadline deadline);
  // The same once all heads and tokens of a layer of the model are there.
  std::optional<Result<void>> wait_for_layer(int32_t layer, Deadline deadline);
  // The same once the pages on the layer's hot list are there; by position, the whole layer.
  std::optional<Result<void>> wait_for_hot(int32_t layer, Deadline deadline);
  // Returns at once; the pull ends with kCancelled, soon, unless it has ended.
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
  // Cancels its pulls, which stay valid, and waits until their destinations are left alone.
  ~PullClient();

  // kInvalidArgument, kUnsupported: nothing was started. The manifest must have passed
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
