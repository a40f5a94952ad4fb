// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numbers>
#include <numeric>
#include <utility>

#include "bench/millrace_bench/kernels/case_shapes.h"
#include "bench/millrace_bench/kernels/float8_operand.h"
#include "bench/millrace_bench/kernels/host_head.h"
#include "bench/millrace_bench/kernels/kernel_cases.h"
#include "bench/millrace_bench/kernels/random_fill.h"
#include "kernels/ref/operations.h"
#include "model/synthetic/synthetic_random.h"

namespace millrace::bench {

namespace {

constexpr auto kCopyTimeout = std::chrono::minutes(1);

// A layer of Qwen3-30B-A3B, whole and halved by tensor parallelism.
constexpr int64_t kExpertHidden = 2048;
constexpr int32_t kNumExperts = 128, kExpertsPerRow = 8;
constexpr int64_t kWidths[] = {768, 384};

// The experts of a row, all different: the largest results of weighted draws (Efraimidis and
// Spirakis 2006, "Weighted random sampling with a reservoir"). Even: all experts are equally
// popular. Otherwise the n-th has weight 1 / sqrt(n): the first is chosen 5.3 times as often as the
// mean, the last 0.6 times.
std::vector<int32_t> draw_experts(int64_t num_rows, bool even) {
  std::vector<int32_t> chosen;
  std::vector<double> keys(kNumExperts);
  std::vector<int32_t> order(kNumExperts);
  for (int64_t row = 0; row < num_rows; ++row) {
    for (size_t e = 0; e < keys.size(); ++e) {
      const double popularity = even ? 1 : 1 / std::sqrt(static_cast<double>(e + 1));
      const auto draw = static_cast<uint64_t>(row) * kNumExperts + e;
      keys[e] = std::log(model::mixed_uniform(/*seed=*/3, draw, 1e-6F, 1)) / popularity;
    }
    std::iota(order.begin(), order.end(), 0);
    std::ranges::partial_sort(order, order.begin() + kExpertsPerRow, std::greater(),
                              [&](int32_t e) { return keys[static_cast<size_t>(e)]; });
    chosen.insert(chosen.end(), order.begin(), order.begin() + kExpertsPerRow);
  }
  return chosen;
}

template <typename T>
Result<std::vector<T>> read_array(kernels::Device& device, const void* from, int64_t count) {
  std::vector<T> values(static_cast<size_t>(count));
  device.copy(values.data(), from, count * static_cast<int64_t>(sizeof(T)));
  MR_RETURN_IF_ERROR(device.synchronize(Deadline::after(kCopyTimeout)));
  return values;
}

// A mixture on the device.
class MixtureCase {
 public:
  static Result<MixtureCase> create(kernels::Device& device, int64_t num_rows, int64_t width,
                                    DType dtype) {
    MixtureCase mixture(device, num_rows, width, dtype);
    const auto normals = [&](kernels::DeviceBuffer& buffer, int64_t count,
                             float deviation) -> Result<void> {
      MR_ASSIGN_OR_RETURN(buffer, device.allocate(count * dtype_bytes(dtype)));
      return fill_with_normals(device, buffer.data(), dtype, count, deviation);
    };
    const auto scale = [](int64_t depth) { return 1 / std::sqrt(static_cast<float>(depth)); };
    MR_RETURN_IF_ERROR(normals(mixture.a_, num_rows * kExpertHidden, 1));
    const int64_t weights = kNumExperts * width * kExpertHidden;
    MR_RETURN_IF_ERROR(normals(mixture.gate_up_, 2 * weights, scale(kExpertHidden)));
    MR_RETURN_IF_ERROR(normals(mixture.down_, weights, scale(width)));
    MR_RETURN_IF_ERROR(mixture.allocate_rows());
    return mixture;
  }

  Result<void> choose(bool even) {
    const auto experts = draw_experts(num_rows_, even);
    const std::vector<float> weights(experts.size(), 1.0F / kExpertsPerRow);
    const auto bytes = std::ssize(experts) * int64_t{4};
    device_->copy(experts_.data(), experts.data(), bytes);
    device_->copy(weights_.data(), weights.data(), bytes);
    return device_->synchronize(Deadline::after(kCopyTimeout));
  }

  void run() { device_->experts(params()); }

  double flops() const {
    return 2.0 * 3 * static_cast<double>(num_rows_ * kExpertsPerRow * width_ * kExpertHidden);
  }

  kernels::ExpertsParams params() const {
    const auto matrix = [&](const kernels::DeviceBuffer& buffer, int64_t rows, int64_t cols) {
      return kernels::dense_matrix(static_cast<const void*>(buffer.data()), dtype_, rows, cols);
    };
    return {.a = matrix(a_, num_rows_, kExpertHidden),
            .num_experts = kNumExperts,
            .experts_per_row = kExpertsPerRow,
            .experts = experts_.as<int32_t>(),
            .weights = weights_.as<float>(),
            .gate_up = matrix(gate_up_, kNumExperts * 2 * width_, kExpertHidden),
            .down = matrix(down_, kNumExperts * kExpertHidden, width_),
            .gathered = gathered_.data(),
            .products = products_.as<float>(),
            .activated = activated_.data(),
            .outputs = outputs_.as<float>(),
            .out = out_.as<float>()};
  }

  // Checks one row against the reference, given a mixture of only this row's experts. The outputs
  // of SwiGLU and of an expert may be rounded to 16 bits, 2^-9 of each; allowed are six deviations
  // of both.
  Result<CheckResult> check(int64_t row) const {
    auto p = params();
    const int64_t element = dtype_bytes(dtype_);
    MR_ASSIGN_OR_RETURN(const auto experts, experts_of(row));
    MR_ASSIGN_OR_RETURN(const auto a, rows_of(p.a, row, 1));
    std::vector<std::byte> gate_up, down;
    for (const int32_t expert : experts) {
      MR_ASSIGN_OR_RETURN(auto part, rows_of(p.gate_up, expert * 2 * width_, 2 * width_));
      gate_up.insert(gate_up.end(), part.begin(), part.end());
      MR_ASSIGN_OR_RETURN(part, rows_of(p.down, expert * kExpertHidden, kExpertHidden));
      down.insert(down.end(), part.begin(), part.end());
    }
    MR_CHECK(std::ssize(a) == kExpertHidden * element, "a row of {} bytes", a.size());
    std::vector<int32_t> all(kExpertsPerRow);
    std::iota(all.begin(), all.end(), 0);
    const std::vector<float> weights(all.size(), 1.0F / kExpertsPerRow);
    std::vector<float> expected(static_cast<size_t>(kExpertHidden));
    p.a = kernels::dense_matrix(static_cast<const void*>(a.data()), dtype_, 1, kExpertHidden);
    p.num_experts = kExpertsPerRow;
    p.experts = all.data();
    p.weights = weights.data();
    p.gate_up = kernels::dense_matrix(static_cast<const void*>(gate_up.data()), dtype_,
                                      kExpertsPerRow * 2 * width_, kExpertHidden);
    p.down = kernels::dense_matrix(static_cast<const void*>(down.data()), dtype_,
                                   kExpertsPerRow * kExpertHidden, width_);
    p.out = expected.data();
    kernels::ref::experts(p);
    return compare(row, expected, 6 * std::numbers::sqrt2 * 0x1p-9);
  }

  // `allowed`: as a share of the row's deviation.
  Result<CheckResult> compare(int64_t row, const std::vector<float>& expected,
                              double allowed) const {
    MR_ASSIGN_OR_RETURN(
        const auto computed,
        read_floats(*device_, out_.as<float>() + row * kExpertHidden, kExpertHidden));
    CheckResult result{.what = "output"};
    double squares = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      squares += double{expected[i]} * expected[i];
      const double error = std::abs(double{computed[i]} - expected[i]);
      if (error <= result.error) continue;
      result.error = error;
      result.where = fmt::format("row {} column {}", row, i);
    }
    result.allowed = allowed * std::sqrt(squares / static_cast<double>(kExpertHidden));
    return result;
  }

  Result<std::vector<int32_t>> experts_of(int64_t row) const {
    return read_array<int32_t>(*device_, experts_.as<int32_t>() + row * kExpertsPerRow,
                               kExpertsPerRow);
  }

 private:
  MixtureCase(kernels::Device& device, int64_t num_rows, int64_t width, DType dtype)
      : device_(&device), num_rows_(num_rows), width_(width), dtype_(dtype) {}

  Result<void> allocate_rows() {
    const int64_t choices = num_rows_ * kExpertsPerRow;
    const int64_t step = device_->info().expert_row_step;
    const int64_t rows = kernels::expert_scratch_rows(num_rows_, kNumExperts, kExpertsPerRow, step);
    const int64_t float_rows = step == 0 ? rows : 0;
    const int64_t element = dtype_bytes(dtype_);
    MR_ASSIGN_OR_RETURN(experts_, device_->allocate(choices * 4));
    MR_ASSIGN_OR_RETURN(weights_, device_->allocate(choices * 4));
    MR_ASSIGN_OR_RETURN(gathered_, device_->allocate(rows * kExpertHidden * element));
    MR_ASSIGN_OR_RETURN(activated_, device_->allocate(rows * width_ * element));
    MR_ASSIGN_OR_RETURN(products_, device_->allocate(float_rows * 2 * width_ * 4));
    MR_ASSIGN_OR_RETURN(outputs_, device_->allocate(float_rows * kExpertHidden * 4));
    MR_ASSIGN_OR_RETURN(out_, device_->allocate(num_rows_ * kExpertHidden * 4));
    return {};
  }

  Result<std::vector<std::byte>> rows_of(const kernels::ConstMatrix& matrix, int64_t first,
                                         int64_t count) const {
    const int64_t row_bytes = matrix.cols * dtype_bytes(dtype_);
    return read_array<std::byte>(*device_,
                                 static_cast<const std::byte*>(matrix.data) + first * row_bytes,
                                 count * row_bytes);
  }

  kernels::Device* device_;
  int64_t num_rows_, width_;
  DType dtype_;
  kernels::DeviceBuffer a_, gate_up_, down_, experts_, weights_;
  kernels::DeviceBuffer gathered_, products_, activated_, outputs_, out_;
};

// The same mixture in 8-bit floats, which needs more scratch.
class Float8MixtureCase {
 public:
  static Result<Float8MixtureCase> create(kernels::Device& device, int64_t num_rows,
                                          int64_t width) {
    MR_ASSIGN_OR_RETURN(auto wide, MixtureCase::create(device, num_rows, width, DType::kBFloat16));
    const auto p = wide.params();
    MR_ASSIGN_OR_RETURN(auto a, Float8Operand::of(device, p.a));
    MR_ASSIGN_OR_RETURN(auto gate_up, Float8Operand::of(device, p.gate_up));
    MR_ASSIGN_OR_RETURN(auto down, Float8Operand::of(device, p.down));
    const int64_t rows = kernels::expert_scratch_rows(num_rows, kNumExperts, kExpertsPerRow,
                                                      device.info().expert_row_step);
    MR_ASSIGN_OR_RETURN(auto quantized, device.allocate(rows * width));
    MR_ASSIGN_OR_RETURN(auto row_scales, device.allocate(rows * int64_t{sizeof(float)}));
    return Float8MixtureCase(device, std::move(wide), std::move(a), std::move(gate_up),
                             std::move(down), std::move(quantized), std::move(row_scales));
  }

  Result<void> choose(bool even) { return wide_.choose(even); }
  double flops() const { return wide_.flops(); }

  void run() { device_->float8_experts(params()); }
  // Quantises the rows once for all of their experts; not part of run().
  void quantize() { device_->float8_quantize(a_.quantize()); }

  // As MixtureCase::check. The tensor cores' truncation moves some numbers between the products to
  // another code: measured as 0.016 of a row in root mean square (H100, 8,192 rows).
  Result<CheckResult> check(int64_t row) const {
    auto p = params();
    const int64_t width = p.down.cols;
    MR_ASSIGN_OR_RETURN(const auto experts, wide_.experts_of(row));
    HostFloat8Rows a, gate_up, down;
    MR_RETURN_IF_ERROR(a.append(*device_, p.a, row, 1));
    for (const int32_t expert : experts) {
      MR_RETURN_IF_ERROR(gate_up.append(*device_, p.gate_up, expert * 2 * width, 2 * width));
      MR_RETURN_IF_ERROR(down.append(*device_, p.down, expert * kExpertHidden, kExpertHidden));
    }
    std::vector<int32_t> all(kExpertsPerRow);
    std::iota(all.begin(), all.end(), 0);
    const std::vector<float> weights(all.size(), 1.0F / kExpertsPerRow);
    std::vector<float> expected(static_cast<size_t>(kExpertHidden));
    p.a = a.view();
    p.num_experts = kExpertsPerRow;
    p.experts = all.data();
    p.weights = weights.data();
    p.gate_up = gate_up.view();
    p.down = down.view();
    p.out = expected.data();
    kernels::ref::float8_experts(p);
    return wide_.compare(row, expected, 6 * 0.02);
  }

 private:
  Float8MixtureCase(kernels::Device& device, MixtureCase wide, Float8Operand a,
                    Float8Operand gate_up, Float8Operand down, kernels::DeviceBuffer quantized,
                    kernels::DeviceBuffer row_scales)
      : device_(&device),
        wide_(std::move(wide)),
        a_(std::move(a)),
        gate_up_(std::move(gate_up)),
        down_(std::move(down)),
        quantized_(std::move(quantized)),
        row_scales_(std::move(row_scales)) {}

  kernels::Float8ExpertsParams params() const {
    const auto p = wide_.params();
    return {.a = a_.view(),
            .num_experts = p.num_experts,
            .experts_per_row = p.experts_per_row,
            .experts = p.experts,
            .weights = p.weights,
            .gate_up = gate_up_.view(),
            .down = down_.view(),
            .dtype = DType::kBFloat16,
            .gathered = p.gathered,
            .products = p.products,
            .activated = p.activated,
            .quantized = quantized_.as<Float8>(),
            .row_scales = row_scales_.as<float>(),
            .outputs = p.outputs,
            .out = p.out};
  }

  kernels::Device* device_;
  MixtureCase wide_;
  Float8Operand a_, gate_up_, down_;
  kernels::DeviceBuffer quantized_, row_scales_;
};

}  // namespace

// One product with as many operations as all products of a mixture.
Result<KernelRow> KernelCases::mixture_as_product(int64_t num_rows, DType dtype) {
  const int64_t rows = num_rows * kExpertsPerRow, columns = 3 * kWidths[0];
  const DType c_dtype = device_->info().projection_dtype(dtype);
  MR_ASSIGN_OR_RETURN(const auto operands,
                      device_->allocate((rows + columns) * kExpertHidden * dtype_bytes(dtype)));
  MR_ASSIGN_OR_RETURN(const auto result, device_->allocate(rows * columns * dtype_bytes(c_dtype)));
  MR_RETURN_IF_ERROR(
      fill_with_normals(*device_, operands.data(), dtype, (rows + columns) * kExpertHidden));
  const void* a = operands.data();
  const void* b = operands.as<std::byte>() + rows * kExpertHidden * dtype_bytes(dtype);
  const kernels::GemmParams params{
      .a = kernels::dense_matrix(a, dtype, rows, kExpertHidden),
      .b = kernels::dense_matrix(b, dtype, columns, kExpertHidden),
      .c = kernels::dense_matrix(result.data(), c_dtype, rows, columns)};
  KernelRow row{.name = "experts", .setting = "one product", .num_tokens = num_rows};
  MR_ASSIGN_OR_RETURN(auto part, time("gemm", [&] { device_->gemm(params); }));
  part.flops = 2.0 * static_cast<double>(rows * columns * kExpertHidden);
  row.parts.push_back(std::move(part));
  return row;
}

template <typename CreateCase>
Result<std::vector<KernelRow>> KernelCases::mixtures(const char* name, int64_t num_rows,
                                                     const CreateCase& create) {
  std::vector<KernelRow> rows;
  for (const int64_t width : kWidths) {
    MR_ASSIGN_OR_RETURN(auto mixture, create(width));
    for (const bool even : {true, false}) {
      MR_RETURN_IF_ERROR(mixture.choose(even));
      KernelRow row{.name = name,
                    .setting = fmt::format("{} {}", width, even ? "even" : "skewed"),
                    .num_tokens = num_rows};
      if (options_.check) {
        mixture.run();
        MR_ASSIGN_OR_RETURN(auto output, mixture.check(num_rows / 2));
        row.checks.push_back(std::move(output));
      }
      MR_ASSIGN_OR_RETURN(auto part, time("experts", [&] { mixture.run(); }));
      part.flops = mixture.flops();
      row.parts.push_back(std::move(part));
      if constexpr (requires { mixture.quantize(); }) {
        MR_ASSIGN_OR_RETURN(auto quantize, time("quantize", [&] { mixture.quantize(); }));
        quantize.bytes = 3.0 * static_cast<double>(num_rows * kExpertHidden);
        row.parts.push_back(std::move(quantize));
      }
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

Result<std::vector<KernelRow>> KernelCases::experts(int64_t num_rows, DType dtype) {
  MR_ASSIGN_OR_RETURN(auto product, mixture_as_product(num_rows, dtype));
  MR_ASSIGN_OR_RETURN(auto rows, mixtures("experts", num_rows, [&](int64_t width) {
                        return MixtureCase::create(*device_, num_rows, width, dtype);
                      }));
  rows.insert(rows.begin(), std::move(product));
  return rows;
}

Result<std::vector<KernelRow>> KernelCases::float8_experts(int64_t num_rows) {
  return mixtures("float8-experts", num_rows, [&](int64_t width) {
    return Float8MixtureCase::create(*device_, num_rows, width);
  });
}

}  // namespace millrace::bench
