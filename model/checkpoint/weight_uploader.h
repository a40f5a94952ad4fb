// Brings slices of mapped tensors into device memory, converted and stacked.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/result.h"
#include "kernels/api/device.h"
#include "kernels/api/float8.h"
#include "kernels/api/matrix.h"
#include "model/checkpoint/safetensors.h"

namespace millrace::model {

// A rectangle of a tensor seen as [rows, cols]; a vector is a column. Rows and columns are the
// tensor's, or of a transposed slice its columns and rows.
struct TensorSlice {
  Tensor tensor;
  int64_t first_row = 0;
  int64_t num_rows = 0;
  int64_t first_col = 0;
  int64_t num_cols = 0;
  int64_t row_step = 1;     // between two rows of the slice
  bool transposed = false;  // not of 8-bit floats or MXFP4

  static TensorSlice whole(Tensor tensor);
  TensorSlice rows(int64_t first, int64_t count) const;
  TensorSlice cols(int64_t first, int64_t count) const;
  // Rows `first`, `first` + `step` and so on.
  TensorSlice every(int64_t first, int64_t step) const;
  TensorSlice transpose() const;

  int64_t tensor_cols() const { return tensor.shape.size() < 2 ? 1 : tensor.shape[1]; }
  bool contiguous() const {
    return !transposed && !tensor.mxfp4 &&
           (num_rows <= 1 || (row_step == 1 && num_cols == tensor_cols()));
  }
  // `row` counts from first_row. Of slices that are neither transposed nor MXFP4.
  const std::byte* row_data(int64_t row) const;
};

// Float8 elements are multiplied with their scales in float32, and the products rounded once.
// `device` and `storage` outlive the uploader; `storage` gets every buffer it makes. What has
// another dtype or row length in the file is converted on `num_threads` threads. On one, an 8B
// model from bfloat16 to float16 took 15 to 25 s beside an H100.
class WeightUploader {
 public:
  WeightUploader(kernels::Device& device, std::vector<kernels::DeviceBuffer>& storage,
                 int num_threads)
      : device_(&device), storage_(&storage), num_threads_(num_threads) {}

  // One dense matrix of the slices one below the other, all of the same width.
  Result<kernels::ConstMatrix> stack(std::span<const TensorSlice> slices, DType dtype);
  // The same in 8-bit floats scaled by row. Rows that are so in the file, under one scale, are taken
  // as they are; others are quantised from float32.
  Result<kernels::ConstFloat8Matrix> stack_float8(std::span<const TensorSlice> slices);
  // A float32 vector in device memory.
  Result<const float*> vector(std::span<const float> values);
  Result<const float*> stacked_vector(std::span<const TensorSlice> slices);

  // The slice where it lies in the mapped file, when the device can read it there: no copy, and
  // processes that share a machine share the pages. Null data when it cannot.
  kernels::ConstMatrix in_place(const TensorSlice& slice, DType dtype) const;

 private:
  // Of rows that lie in the file as they are to be.
  Result<void> copy(std::span<const TensorSlice> slices, int64_t row_bytes, std::byte* destination);
  // Blocks of rows, one behind the other at `destination`: converted there where the host can write
  // it, else copied. convert(row, count, to) is called by several threads, for other rows each. Threads
  // and their memory are made once a call: of 128 experts at a time, not of each.
  template <typename Convert>
  Result<void> upload_rows(int64_t num_rows, int64_t row_bytes, std::byte* destination,
                           const Convert& convert);

  kernels::Device* device_;
  std::vector<kernels::DeviceBuffer>* storage_;
  int num_threads_;
};

}  // namespace millrace::model
