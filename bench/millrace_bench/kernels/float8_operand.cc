// SPDX-License-Identifier: Apache-2.0
#include "bench/millrace_bench/kernels/float8_operand.h"

#include <chrono>
#include <utility>

#include "bench/millrace_bench/kernels/random_fill.h"
#include "common/check.h"
#include "common/float8.h"

namespace millrace::bench {

namespace {

constexpr auto kCopyTimeout = std::chrono::minutes(1);

}  // namespace

Result<Float8Operand> Float8Operand::create(kernels::Device& device, int64_t rows, int64_t cols) {
  MR_ASSIGN_OR_RETURN(auto wide, device.allocate(rows * cols * 2));
  MR_RETURN_IF_ERROR(fill_with_normals(device, wide.data(), DType::kBFloat16, rows * cols));
  MR_ASSIGN_OR_RETURN(auto operand,
                      of(device, kernels::dense_matrix(static_cast<const void*>(wide.data()),
                                                       DType::kBFloat16, rows, cols)));
  operand.wide_ = std::move(wide);
  return operand;
}

Result<Float8Operand> Float8Operand::of(kernels::Device& device, const kernels::ConstMatrix& wide) {
  Float8Operand operand;
  MR_ASSIGN_OR_RETURN(operand.codes_, device.allocate(wide.rows * wide.cols));
  MR_ASSIGN_OR_RETURN(operand.scales_, device.allocate(wide.rows * int64_t{sizeof(float)}));
  operand.quantize_ = {.a = wide,
                       .out = {.data = operand.codes_.as<Float8>(),
                               .scales = operand.scales_.as<float>(),
                               .rows = wide.rows,
                               .cols = wide.cols,
                               .row_stride = wide.cols}};
  device.float8_quantize(operand.quantize_);
  return operand;
}

Result<std::vector<float>> read_float8_row(kernels::Device& device,
                                           const kernels::ConstFloat8Matrix& matrix, int64_t row) {
  HostFloat8Rows read;
  MR_RETURN_IF_ERROR(read.append(device, matrix, row, 1));
  std::vector<float> values;
  for (const Float8 code : read.codes) values.push_back(to_float(code) * read.scales.front());
  return values;
}

Result<void> HostFloat8Rows::append(kernels::Device& device,
                                    const kernels::ConstFloat8Matrix& matrix, int64_t first,
                                    int64_t count) {
  MR_CHECK(matrix.row_stride == matrix.cols && (scales.empty() || cols == matrix.cols),
           "rows of {}, {} apart, below rows of {}", matrix.cols, matrix.row_stride, cols);
  cols = matrix.cols;
  const size_t before = scales.size();
  scales.resize(before + static_cast<size_t>(count));
  codes.resize(scales.size() * static_cast<size_t>(cols));
  device.copy(codes.data() + before * static_cast<size_t>(cols),
              matrix.data + first * matrix.row_stride, count * cols);
  device.copy(scales.data() + before, matrix.scales + first, count * int64_t{sizeof(float)});
  return device.synchronize(Deadline::after(kCopyTimeout));
}

}  // namespace millrace::bench
