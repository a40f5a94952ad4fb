// SPDX-License-Identifier: Apache-2.0
#include "engine/runtime/dtype_times.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "engine/index/layer_index.h"
#include "kernels/index/closed_form.h"
#include "model/checkpoint/element_conversion.h"
#include "plan/head_plan.h"

namespace millrace::engine {

namespace {

// Rows and columns of the product: large enough to reach a whole product's rate on some 16 threads.
constexpr int64_t kProductRows = 512;
constexpr int64_t kProductColumns = 1024;
constexpr int64_t kProductDepth = 1024;
constexpr int64_t kAttentionTokens = 1024;
// The first run of each case warms up; the fastest run counts.
constexpr int kRuns = 4;
constexpr double kMinSaving = 0.1;
constexpr std::chrono::minutes kTimeout{1};

Result<kernels::DeviceBuffer> random_buffer(kernels::Device& device, int64_t count, DType dtype) {
  std::minstd_rand random(7);  // any seed
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = uniform(random);
  const int64_t bytes = count * dtype_bytes(dtype);
  MR_ASSIGN_OR_RETURN(auto buffer, device.allocate(bytes));
  std::vector<std::byte> rounded(static_cast<size_t>(bytes));
  model::convert_elements(std::as_bytes(std::span(values)).data(), DType::kFloat32, count,
                          rounded.data(), dtype);
  device.copy(buffer.data(), rounded.data(), bytes);
  MR_RETURN_IF_ERROR(device.synchronize(Deadline::after(kTimeout)));
  return buffer;
}

// A product like the layer's.
class Product {
 public:
  static Result<Product> create(kernels::Device& device, const model::ModelConfig& config,
                                DType dtype) {
    Product product(device, dtype);
    product.columns_ = std::min<int64_t>(2 * int64_t{config.active_ffn_size()}, kProductColumns);
    product.depth_ = std::min<int64_t>(config.hidden_size, kProductDepth);
    MR_ASSIGN_OR_RETURN(product.a_, random_buffer(device, kProductRows * product.depth_, dtype));
    MR_ASSIGN_OR_RETURN(product.b_,
                        random_buffer(device, product.columns_ * product.depth_, dtype));
    MR_ASSIGN_OR_RETURN(product.c_,
                        device.allocate(kProductRows * product.columns_ * int64_t{sizeof(float)}));
    return product;
  }

  double operations() const {
    return 2.0 * static_cast<double>(kProductRows * columns_) * static_cast<double>(depth_);
  }

  void run() {
    device_->gemm(
        {.a = kernels::dense_matrix(static_cast<const void*>(a_.data()), dtype_, kProductRows,
                                    depth_),
         .b = kernels::dense_matrix(static_cast<const void*>(b_.data()), dtype_, columns_, depth_),
         .c = kernels::dense_matrix(c_.data(), DType::kFloat32, kProductRows, columns_)});
  }

 private:
  Product(kernels::Device& device, DType dtype) : device_(&device), dtype_(dtype) {}

  kernels::Device* device_;
  DType dtype_;
  int64_t columns_ = 0;
  int64_t depth_ = 0;
  kernels::DeviceBuffer a_, b_, c_;
};

// Dense attention of one kv head's group.
class Attention {
 public:
  static Result<Attention> create(kernels::Device& device, const model::ModelConfig& config,
                                  DType dtype) {
    Attention attention(device, config, dtype);
    const int64_t kv_count = kAttentionTokens * attention.head_dim_;
    MR_ASSIGN_OR_RETURN(attention.q_, random_buffer(device, kv_count * attention.group_, dtype));
    MR_ASSIGN_OR_RETURN(attention.k_, random_buffer(device, kv_count, dtype));
    MR_ASSIGN_OR_RETURN(attention.v_, random_buffer(device, kv_count, dtype));
    MR_ASSIGN_OR_RETURN(attention.out_, device.allocate(attention.q_.bytes()));
    MR_RETURN_IF_ERROR(attention.make_index());
    return attention;
  }

  double operations() const {
    return 2.0 * static_cast<double>(kAttentionTokens * (kAttentionTokens + 1)) * head_dim_ *
           group_;
  }

  void run() {
    device_->attention({.q = q_.data(),
                        .num_rows = kAttentionTokens,
                        .num_query_heads = group_,
                        .scale = 1.0f / std::sqrt(static_cast<float>(head_dim_)),
                        .kv = {.k = k_.data(),
                               .v = v_.data(),
                               .dtype = dtype_,
                               .num_kv_heads = 1,
                               .head_dim = head_dim_,
                               .num_tokens = kAttentionTokens,
                               .token_stride = kAttentionTokens},
                        .tiles = tiles_,
                        .index = index_.view(),
                        .out = out_.data()});
  }

 private:
  Attention(kernels::Device& device, const model::ModelConfig& config, DType dtype)
      : device_(&device),
        // A model with a head_dim that the device does not support is refused later.
        head_dim_(device.info().head_dim_from(config.head_dim)),
        group_(config.group_size()),
        dtype_(dtype),
        tiles_(kernels::tile_rows(kAttentionTokens)) {}

  Result<void> make_index() {
    const plan::HeadPlan dense(1, group_, {});
    MR_ASSIGN_OR_RETURN(index_,
                        LayerIndex::create(*device_, dense, 0, group_, kAttentionTokens, tiles_));
    std::vector<int32_t> heads;
    for (int32_t h = 0; h < group_; ++h) heads.push_back(h);
    const std::vector<kernels::ClosedForm> forms(heads.size(),
                                                 kernels::dense_form(kAttentionTokens));
    device_->build_closed_form(
        {.num_tokens = kAttentionTokens, .heads = heads, .forms = forms, .index = index_.view()});
    return device_->synchronize(Deadline::after(kTimeout));
  }

  kernels::Device* device_;
  int32_t head_dim_;
  int32_t group_;
  DType dtype_;
  std::vector<kernels::RowTile> tiles_;
  kernels::DeviceBuffer q_, k_, v_, out_;
  LayerIndex index_;
};

// Seconds an operation in each dtype. The dtypes take turns, so that other load on the machine
// slows both.
template <typename Case>
Result<DTypeTimes> time_case(kernels::Device& device, const model::ModelConfig& config) {
  MR_ASSIGN_OR_RETURN(auto float32, Case::create(device, config, DType::kFloat32));
  MR_ASSIGN_OR_RETURN(auto bfloat16, Case::create(device, config, DType::kBFloat16));
  constexpr double kNever = std::numeric_limits<double>::infinity();
  DTypeTimes best{.float32_s = kNever, .bfloat16_s = kNever};
  const auto time = [&](Case& one, double& best_s) -> Result<void> {
    const Stopwatch watch;
    one.run();
    MR_RETURN_IF_ERROR(device.synchronize(Deadline::after(kTimeout)));
    best_s = std::min(best_s, watch.elapsed_s() / one.operations());
    return {};
  };
  for (int run = 0; run < kRuns; ++run) {
    MR_RETURN_IF_ERROR(time(float32, best.float32_s));
    MR_RETURN_IF_ERROR(time(bfloat16, best.bfloat16_s));
  }
  return best;
}

}  // namespace

Result<DTypeTimes> measure_dtypes(kernels::Device& device, const model::ModelConfig& config) {
  MR_ASSIGN_OR_RETURN(const auto product, time_case<Product>(device, config));
  MR_ASSIGN_OR_RETURN(const auto attention, time_case<Attention>(device, config));
  const auto hidden = static_cast<double>(config.hidden_size);
  const double q_width = double{1} * config.num_query_heads * config.head_dim;
  const double kv_width = double{1} * config.num_kv_heads * config.head_dim;
  const double weights = hidden * (2 * q_width + 2 * kv_width + 3.0 * config.active_ffn_size());
  // A query sees half of the keys, on average.
  const double attended = 2 * q_width * static_cast<double>(kTimedTokens);
  return DTypeTimes{
      .float32_s = 2 * weights * product.float32_s + attended * attention.float32_s,
      .bfloat16_s = 2 * weights * product.bfloat16_s + attended * attention.bfloat16_s};
}

DType faster_dtype(const DTypeTimes& times) {
  return times.bfloat16_s <= (1 - kMinSaving) * times.float32_s ? DType::kBFloat16
                                                                : DType::kFloat32;
}

}  // namespace millrace::engine
