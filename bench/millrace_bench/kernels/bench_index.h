// SPDX-License-Identifier: Apache-2.0
// An index in device memory that can be uploaded and read back: benchmarks give index sets by hand,
// and check what operations found.
#pragma once

#include <span>
#include <vector>

#include "common/result.h"
#include "kernels/api/device.h"
#include "kernels/index/index.h"

namespace millrace::bench {

// Bands and columns of one head.
struct HeadLists {
  std::vector<kernels::Band> bands;
  std::vector<int32_t> columns;
};

// An index in host memory.
class HostIndex {
 public:
  explicit HostIndex(const kernels::IndexShape& shape);

  void set(int32_t head, const HeadLists& lists);
  const kernels::IndexView& view() const { return view_; }

 private:
  std::vector<std::vector<std::byte>> storage_;
  kernels::IndexView view_;
};

class BenchIndex {
 public:
  // Uninitialised until an operation or upload() writes it.
  static Result<BenchIndex> create(kernels::Device& device, const kernels::IndexShape& shape);

  const kernels::IndexView& view() const { return view_; }
  Result<void> upload(kernels::Device& device, const HostIndex& index);
  Result<HostIndex> download(kernels::Device& device) const;
  int64_t bytes() const;

 private:
  std::vector<kernels::DeviceBuffer> storage_;
  kernels::IndexView view_;
};

// The index sets that peers were timed with: the first 30 columns and random ones; a third of the
// slashes contiguous from offset 0, and the rest in random runs of 64. Offsets closer than a row
// tile form one band, as estimation merges them.
HeadLists vertical_slash_lists(int64_t num_tokens, int32_t verticals, int32_t slashes,
                               uint64_t seed);

}  // namespace millrace::bench
