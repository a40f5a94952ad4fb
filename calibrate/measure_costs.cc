// SPDX-License-Identifier: Apache-2.0
#include "calibrate/measure_costs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <vector>

#include "calibrate/layer_trial.h"

namespace millrace::calibrate {

namespace {

using kernels::Device;

constexpr int kRepetitions = 9;
constexpr int64_t kMostTokensOnHost = 4096;
constexpr int64_t kMostTokensOnGpu = 32'768;
constexpr int64_t kFewestTokens = 2048;
constexpr std::chrono::minutes kTimeout{10};
// Used where noise would make the share zero or negative.
constexpr double kLeastShare = 1e-3;

// Room for Q, K and V of a layer and random values in them.
class RandomLayer {
 public:
  static Result<RandomLayer> create(Device& device, const AttentionShape& shape,
                                    int64_t num_tokens) {
    RandomLayer layer(shape, num_tokens);
    const int64_t q = num_tokens * shape.num_query_heads * shape.head_dim;
    const int64_t kv = num_tokens * shape.num_kv_heads * shape.head_dim;
    MR_ASSIGN_OR_RETURN(layer.q_, filled(device, shape.dtype, q));
    MR_ASSIGN_OR_RETURN(layer.k_, filled(device, shape.dtype, kv));
    MR_ASSIGN_OR_RETURN(layer.v_, filled(device, shape.dtype, kv));
    return layer;
  }

  engine::LocalQueries queries() const {
    return {.q = q_.data(),
            .num_rows = num_tokens_,
            .num_query_heads = shape_.num_query_heads,
            .scale = 1 / std::sqrt(static_cast<float>(shape_.head_dim))};
  }
  kernels::KvSlab kv() const {
    return {.k = k_.data(),
            .v = v_.data(),
            .dtype = shape_.dtype,
            .num_kv_heads = shape_.num_kv_heads,
            .head_dim = shape_.head_dim,
            .num_tokens = num_tokens_,
            .token_stride = num_tokens_};
  }

 private:
  RandomLayer(const AttentionShape& shape, int64_t num_tokens)
      : shape_(shape), num_tokens_(num_tokens) {}

  // In [-1, 1): the time does not depend on the values.
  static Result<kernels::DeviceBuffer> filled(Device& device, DType dtype, int64_t count) {
    MR_ASSIGN_OR_RETURN(auto buffer, device.allocate(count * dtype_bytes(dtype)));
    std::mt19937 random(1);
    std::vector<std::byte> host(static_cast<size_t>(buffer.bytes()));
    for (int64_t i = 0; i < count; ++i) {
      const float value = static_cast<float>(random()) * 0x1p-31F - 1;
      if (dtype == DType::kFloat32) reinterpret_cast<float*>(host.data())[i] = value;
      if (dtype == DType::kBFloat16) {
        reinterpret_cast<BFloat16*>(host.data())[i] = to_bfloat16(value);
      }
      if (dtype == DType::kFloat16) reinterpret_cast<Float16*>(host.data())[i] = to_float16(value);
    }
    device.copy(buffer.data(), host.data(), buffer.bytes());
    MR_RETURN_IF_ERROR(device.synchronize(Deadline::after(kTimeout)));
    return buffer;
  }

  AttentionShape shape_;
  int64_t num_tokens_;
  kernels::DeviceBuffer q_, k_, v_;
};

// Seconds a head that the device takes for what `enqueue` gives it.
template <typename Enqueue>
Result<double> seconds_of(Device& device, int32_t num_heads, Enqueue&& enqueue) {
  double least_s = 0;
  for (int i = 0; i < kRepetitions; ++i) {
    const auto begin = device.mark();
    MR_RETURN_IF_ERROR(enqueue());
    const auto end = device.mark();
    MR_RETURN_IF_ERROR(device.wait_for(end, Deadline::after(kTimeout)));
    const double taken_s = device.elapsed_s(begin, end);
    least_s = i == 0 ? taken_s : std::min(least_s, taken_s);
  }
  return least_s / num_heads;
}

class Measurement {
 public:
  Measurement(LayerTrial& trial, int32_t num_heads) : trial_(trial), num_heads_(num_heads) {}

  // Finding the lists of a pattern, and attending by them.
  Result<double> find(const plan::HeadPattern& pattern) {
    const std::vector<plan::HeadPattern> patterns(static_cast<size_t>(num_heads_), pattern);
    return seconds_of(trial_.device(), num_heads_, [&] { return trial_.build(patterns); });
  }
  Result<double> attend() {
    return seconds_of(trial_.device(), num_heads_, [&]() -> Result<void> {
      trial_.attend();
      return {};
    });
  }
  // Mean over the heads, for the lists found last.
  Result<std::array<double, 3>> work() {
    MR_ASSIGN_OR_RETURN(const auto heads, trial_.count());
    std::array<double, 3> mean{};
    for (const HeadWork& head : heads) {
      mean[0] += static_cast<double>(head.dense_blocks) / num_heads_;
      mean[1] += static_cast<double>(head.listed_blocks) / num_heads_;
      mean[2] += static_cast<double>(head.gathered_blocks) / num_heads_;
    }
    return mean;
  }

 private:
  LayerTrial& trial_;
  int32_t num_heads_;
};

double positive(double cost) {
  return rounded_cost(std::max(cost, kLeastShare));
}

}  // namespace

Result<KernelCosts> measure_costs(Device& device, comm::DeviceCommunicator& alone,
                                  const AttentionShape& shape, int64_t num_tokens) {
  const auto info = device.info();
  num_tokens = std::clamp(num_tokens, kFewestTokens,
                          info.host_memory ? kMostTokensOnHost : kMostTokensOnGpu);
  const auto part = static_cast<int32_t>(num_tokens / 8);
  const plan::HeadPattern columns{
      .pattern = plan::Pattern::kAShape, .sink = 2 * part, .window = 64};
  const plan::HeadPattern slashes{
      .pattern = plan::Pattern::kVerticalSlash, .verticals = part, .slashes = part};
  const plan::HeadPattern blocks{.pattern = plan::Pattern::kBlockSparse,
                                 .top_k = static_cast<int32_t>(part / kernels::kPageTokens)};
  const plan::HeadPattern adaptive{.pattern = plan::Pattern::kAdaptive};
  const std::array widest{columns, slashes, blocks, adaptive};
  MR_ASSIGN_OR_RETURN(const auto layer, RandomLayer::create(device, shape, num_tokens));
  MR_ASSIGN_OR_RETURN(const auto trial,
                      LayerTrial::create(device, alone, shape, num_tokens, widest));
  MR_RETURN_IF_ERROR(trial->take(layer.queries(), layer.kv()));  // dense; warms up

  Measurement measure(*trial, shape.num_query_heads);
  MR_ASSIGN_OR_RETURN(const double dense_s, measure.attend());
  const auto num_blocks = static_cast<double>(dense_work(trial->tiles()).dense_blocks);
  const double block_s = dense_s / num_blocks;
  KernelCosts costs{.device = info.name, .shape = shape, .num_tokens = num_tokens};

  MR_ASSIGN_OR_RETURN(const double pooled_s, measure.find(blocks));
  costs.pooled_block = positive(pooled_s / block_s / num_blocks);
  MR_ASSIGN_OR_RETURN(const double listed_s, measure.attend());
  MR_ASSIGN_OR_RETURN(const auto listed, measure.work());
  costs.listed_block = positive((listed_s / block_s - listed[0]) / listed[1]);

  MR_RETURN_IF_ERROR(measure.find(columns));
  MR_ASSIGN_OR_RETURN(const double gathered_s, measure.attend());
  MR_ASSIGN_OR_RETURN(const auto gathered, measure.work());
  costs.gathered_block = positive(
      (gathered_s / block_s - gathered[0] - costs.listed_block * gathered[1]) / gathered[2]);

  MR_ASSIGN_OR_RETURN(const double probed_s, measure.find(slashes));
  costs.probed_page = positive(probed_s / block_s / static_cast<double>(trial->tiles().size()));
  MR_ASSIGN_OR_RETURN(const double sampled_s, measure.find(adaptive));
  costs.sampled_block = positive(sampled_s / block_s / num_blocks / adaptive.sampled_rows);
  return costs;
}

}  // namespace millrace::calibrate
