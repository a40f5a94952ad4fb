// The pages of a prompt's cached prefix that this rank brings, as the engine takes them: those that its store
// holds, or in a lane all of them. On a
// GPU a layer's pages come to a stage in device memory while the layer before is computed:
//   device    | stage of l to the engine | layer l ...            | stage of l + 1 to the engine | ...
//   readers                              | pages of l + 1 to the stage |
// The device waits for the host only where pages take longer than a layer. Where memory for the
// stage is short, they come when the engine asks for them. Pages of 8-bit floats come to a stage on any
// device, which makes what they stand for of them where it copies others. The engine's thread.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/api/device.h"
#include "worker/exchange/prefix.h"
#include "worker/staging/page_reader.h"

namespace millrace::worker {

class StorePrefix final : public PrefixSource {
 public:
  // `pages`: of the prefix, those that this rank brings, ascending. `reader`: of that device, for this prefix
  // alone while it lives. All outlive it; it ends before the request does.
  StorePrefix(kernels::Device& device, PageReader& reader, PrefixPins& pins,
              std::vector<int64_t> pages);
  // Gives up the layer that is on its way.
  ~StorePrefix() override;
  StorePrefix(const StorePrefix&) = delete;
  StorePrefix& operator=(const StorePrefix&) = delete;

  Result<void> load(int32_t layer, int64_t first, int64_t count, const KvPlace& to) override;
  Result<void> load_stored(int32_t layer, int64_t first, int64_t count, const KvPlace& to) override;

 private:
  int64_t num_pages() const { return std::ssize(pages_); }
  // Takes memory for the stage, or none.
  Result<void> make_stage();
  // K and V as pages have them, of pages of all heads: [kv heads, pages * page tokens, head_dim].
  struct Stage {
    kernels::DeviceBuffer k, v;
  };
  Result<Stage> allocate_stage(int64_t pages);
  // What becomes of 8-bit floats on their way from pages.
  enum class Form { kStored, kDecoded };
  Result<void> load(int32_t layer, int64_t first, int64_t count, const KvPlace& to, Form form);
  // Pages that are not staged ahead.
  Result<void> load_now(int32_t layer, int64_t first, int64_t count, const KvPlace& to, Form form);
  Result<void> bring(int32_t layer, int64_t first, int64_t count, const KvPlace& to);
  void begin_stage(int32_t layer);
  Result<void> wait_for_stage(int32_t layer);
  // Pages [first, first + count) of the `staged` ones, of this layer.
  void copy_from_stage(const Stage& stage, int64_t staged, int32_t layer, int64_t first,
                       int64_t count, const KvPlace& to, Form form);

  kernels::Device& device_;
  PageReader& reader_;
  PrefixPins& pins_;
  const std::vector<int64_t> pages_;
  bool began_ = false;

  Stage stage_;           // of all pages; empty where they are brought when they are asked for
  int32_t begun_ = -1;    // the layer that the readers bring to the stage, or have brought
  int32_t arrived_ = -1;  // the layer that the stage has
};

}  // namespace millrace::worker
