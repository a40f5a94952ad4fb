// SPDX-License-Identifier: Apache-2.0
// Brings the engine this rank's pages of a prompt's cached prefix: those that its store holds, or
// in a lane all pages. On a GPU a layer's pages come to a stage in device memory while the layer
// before is computed; the next layer's go to the other of two stages, so that the bus has no pause:
//   device    | stage of l to the engine | layer l ...         | stage of l + 1 to the engine |
//   readers   | pages of l + 1 to the other stage         | pages of l + 2 to the first stage |
// The device waits for the host only where pages take longer than a layer. Where memory is short,
// there is one stage, and the readers wait until the engine has taken a layer from it; or none, and
// pages come when the engine asks for them. Pages of 8-bit floats come to a stage on any device,
// and are decoded where other pages are copied. The engine's thread.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/exchange/prefix.h"
#include "kernels/api/device.h"
#include "worker/staging/page_reader.h"

namespace millrace::worker {

class StorePrefix final : public engine::PrefixSource {
 public:
  // `pages`: the pages of the prefix that this rank brings, ascending. `reader`: of that device,
  // used by this prefix alone while it lives. The arguments outlive it; it ends before the request
  // does.
  StorePrefix(kernels::Device& device, PageReader& reader, PrefixPins& pins,
              std::vector<int64_t> pages);
  // Gives up a layer that is on its way.
  ~StorePrefix() override;
  StorePrefix(const StorePrefix&) = delete;
  StorePrefix& operator=(const StorePrefix&) = delete;

  Result<void> load(int32_t layer, int64_t first, int64_t count,
                    const engine::KvPlace& to) override;
  Result<void> load_stored(int32_t layer, int64_t first, int64_t count,
                           const engine::KvPlace& to) override;
  // Waits for the pages that are on their way. Until the next call the reader may serve another
  // prefix.
  Result<void> settle();

 private:
  int64_t num_pages() const { return std::ssize(pages_); }
  // Takes memory for the stages, if there is enough.
  Result<void> make_stages();
  // K and V in the form that pages have, of all heads: [kv heads, pages * page tokens, head_dim].
  struct Stage {
    kernels::DeviceBuffer k, v;
  };
  Result<Stage> allocate_stage(int64_t pages);
  // Whether 8-bit floats of pages stay as they are or are decoded.
  enum class Form { kStored, kDecoded };
  Result<void> load(int32_t layer, int64_t first, int64_t count, const engine::KvPlace& to,
                    Form form);
  // Loads pages that were not staged ahead.
  Result<void> load_now(int32_t layer, int64_t first, int64_t count, const engine::KvPlace& to,
                        Form form);
  Result<void> bring(int32_t layer, int64_t first, int64_t count, const engine::KvPlace& to);
  Stage& stage_of(int32_t layer) { return stages_[static_cast<size_t>(layer) % stages_.size()]; }
  void begin_stage(int32_t layer);
  Result<void> wait_for_stage(int32_t layer);
  // Copies pages [first, first + count) of the `staged` ones, of this layer.
  void copy_from_stage(const Stage& stage, int64_t staged, int32_t layer, int64_t first,
                       int64_t count, const engine::KvPlace& to, Form form);

  kernels::Device& device_;
  PageReader& reader_;
  PrefixPins& pins_;
  const std::vector<int64_t> pages_;
  bool began_ = false;

  std::vector<Stage> stages_;  // of all pages; none where pages come when they are asked for
  int32_t begun_ = -1;         // the layer that the readers bring to its stage, or have brought
  int32_t arrived_ = -1;       // the last layer that is in its stage; the one before still is, too
};

}  // namespace millrace::worker
