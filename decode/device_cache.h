// SPDX-License-Identifier: Apache-2.0
// A handed-over cache for a GPU. Digests, and as many pages as there are slots, are in the GPU's
// memory; all pages are in page-locked memory of the host; those that have not come yet are in the
// ranks' tiers. Pages in 8-bit floats stay so. Pages that nobody has asked for come as well,
// starting with the first layer that is ready.
#pragma once

#include <memory>
#include <optional>

#include "comm/api/transport.h"
#include "decode/device_prompt.h"
#include "decode/paged_prompt.h"
#include "decode/pool/host_pages.h"
#include "decode/pool/page_fill.h"
#include "decode/pool/rank_pages.h"
#include "decode/summary_pull.h"

namespace millrace::decode {

class DeviceCache {
 public:
  struct Parts {
    comm::Transport* transport = nullptr;
    kvclient::PullClient* client = nullptr;
    std::shared_ptr<const kvclient::Manifest> manifest;  // has passed check_manifest
    std::shared_ptr<kvclient::HandoverFeed> feed;
    const model::ModelWeights* weights = nullptr;  // in the device's memory
    kernels::Device* device = nullptr;             // a GPU
  };
  // All parts outlive it. `memory`: from the device's allocate_host, for pages; if it is too small
  // for them, more is allocated. kUnsupported: shapes that the kernels do not support.
  static Result<std::unique_ptr<DeviceCache>> open(const Parts& parts,
                                                   const ProgressiveOptions& options,
                                                   double hot_share, Deadline deadline,
                                                   kernels::HostBuffer memory = {});
  // Waits until decoding may begin (DecodeStart). On the device's thread.
  Result<void> wait(DecodeStart start, Deadline deadline);
  // After wait().
  DevicePrompt& prompt() { return *prompt_; }

  Result<kernels::DevicePagesStats> stats(Deadline deadline) { return pages_->stats(deadline); }
  kvclient::PullStats pulled() const { return source_.stats(); }

 private:
  DeviceCache(const Parts& parts, double hot_share, Deadline deadline)
      : parts_(parts),
        hot_share_(hot_share),
        deadline_(deadline),
        source_(*parts.client, parts.manifest, /*codes=*/true) {}
  Result<void> make_pages(const ProgressiveOptions& options);
  Result<void> take_layer(int32_t layer, const LayerSummary& summary);

  const Parts parts_;
  const double hot_share_;
  const Deadline deadline_;
  RankPages source_;
  std::unique_ptr<kernels::Device> ahead_;
  kernels::HostBuffer memory_;
  std::unique_ptr<kernels::DevicePages> pages_;
  std::unique_ptr<HostPages> host_;
  std::optional<DevicePrompt> prompt_;
  std::optional<PageFill> fill_;  // ends first
};

}  // namespace millrace::decode
