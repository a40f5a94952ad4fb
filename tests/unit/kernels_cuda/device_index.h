// A copy in device memory of an index that lies in host memory.
#pragma once

#include <vector>

#include "kernels/api/index.h"
#include "tests/unit/kernels_cuda/device_array.h"

namespace millrace::kernels::cuda {

class DeviceIndex {
 public:
  explicit DeviceIndex(const IndexView& host)
      : shape_(host.shape),
        bands_(copy(host.bands, int64_t{shape_.num_heads} * shape_.max_bands)),
        num_bands_(copy(host.num_bands, shape_.num_heads)),
        columns_(copy(host.columns, int64_t{shape_.num_heads} * shape_.max_columns)),
        num_columns_(copy(host.num_columns, shape_.num_heads)),
        block_count_(copy(host.block_count, shape_.num_heads * shape_.num_tiles)),
        block_begin_(copy(host.block_begin, shape_.num_heads * shape_.num_tiles)),
        blocks_(
            copy(host.blocks, shape_.num_tiles == 0 ? 0 : shape_.num_heads * shape_.max_blocks)) {}

  IndexView view() const {
    return {.shape = shape_,
            .bands = bands_.data(),
            .num_bands = num_bands_.data(),
            .columns = columns_.data(),
            .num_columns = num_columns_.data(),
            .block_count = block_count_.data(),
            .block_begin = block_begin_.data(),
            .blocks = blocks_.data()};
  }

 private:
  template <typename T>
  static std::vector<T> copy(const T* values, int64_t count) {
    return count == 0 ? std::vector<T>() : std::vector<T>(values, values + count);
  }

  IndexShape shape_;
  DeviceArray<Band> bands_;
  DeviceArray<int32_t> num_bands_;
  DeviceArray<int32_t> columns_;
  DeviceArray<int32_t> num_columns_;
  DeviceArray<int32_t> block_count_;
  DeviceArray<int64_t> block_begin_;
  DeviceArray<int32_t> blocks_;
};

}  // namespace millrace::kernels::cuda
