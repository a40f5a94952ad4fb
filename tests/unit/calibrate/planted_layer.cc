// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/calibrate/planted_layer.h"

#include <cmath>

#include "tests/support/random_data.h"

namespace millrace::calibrate {

namespace {

constexpr auto kTimeout = std::chrono::seconds(60);

class Writer {
 public:
  explicit Writer(PlantedLayer& layer) : layer_(layer) {}

  float& q(int64_t row, int32_t head, int32_t i) {
    return layer_.q[static_cast<size_t>((row * kHeads + head) * kHeadDim + i)];
  }
  float& k(int64_t row, int32_t head, int32_t i) {
    return layer_.k[static_cast<size_t>((head * kTokens + row) * kHeadDim + i)];
  }

 private:
  PlantedLayer& layer_;
};

// q_i k_j = 20 mean over f of cos(f (i - j)). No frequency turns by half before the prompt's end.
// So the mass falls to exp(-1) of the diagonal's about 250 keys before it, and goes on falling.
void plant_local(Writer& write) {
  constexpr int32_t kPairs = kHeadDim / 2;
  const float amplitude = std::sqrt(20.0F / kPairs);
  for (int64_t row = 0; row < kTokens; ++row) {
    for (int32_t pair = 0; pair < kPairs; ++pair) {
      const double frequency = 0.0005 * std::pow(1.1, pair);
      const double angle = frequency * static_cast<double>(row);
      for (const bool is_sine : {false, true}) {
        const auto turned = static_cast<float>(is_sine ? std::sin(angle) : std::cos(angle));
        const int32_t i = 2 * pair + (is_sine ? 1 : 0);
        write.q(row, kLocal, i) = amplitude * turned;
        write.k(row, kLocal, i) = amplitude * turned;
      }
    }
  }
}

// The keys of a page that all rows look at: each has exp(8) times the mass of others.
void plant_columns(Writer& write) {
  for (int64_t row = 0; row < kTokens; ++row) write.q(row, kColumns, 0) = 8;
  for (int64_t page = 0; page < kPages; ++page) {
    const auto place =
        static_cast<int64_t>(test::random_bits(11, static_cast<uint64_t>(page)) % 32);
    write.k(page * kernels::kPageTokens + place, kColumns, 0) = 1;
    write.k(page * kernels::kPageTokens + place + 32, kColumns, 0) = 1;
  }
}

// The keys of page p are the p-th unit vector; there are as many dimensions as pages.
void plant_clusters(Writer& write) {
  static_assert(kPages <= kHeadDim);
  for (int64_t row = 0; row < kTokens; ++row) {
    const int64_t tile = row / kernels::kTileRows;
    write.k(row, kClustered, static_cast<int32_t>(tile)) = 1;
    for (const uint64_t choice : {0, 1}) {
      const auto bits = test::random_bits(12, static_cast<uint64_t>(tile) * 2 + choice);
      const auto page = static_cast<int32_t>(bits % static_cast<uint64_t>(tile + 1));
      write.q(row, kClustered, page) = 10;
    }
  }
}

}  // namespace

PlantedLayer planted_layer() {
  constexpr int64_t kElements = kTokens * kHeads * kHeadDim;
  PlantedLayer layer{.q = std::vector<float>(kElements),
                     .k = std::vector<float>(kElements),
                     .v = test::random_normals(3, kElements)};
  Writer write(layer);
  plant_local(write);
  plant_columns(write);
  plant_clusters(write);
  return layer;
}

TrialOfLayer::TrialOfLayer(kernels::Device& device, const PlantedLayer& layer,
                           std::span<const plan::HeadPattern> widest,
                           const std::vector<float>& sinks)
    : device_(device),
      world_(std::move(comm::LocalGroup::create(1).front())),
      alone_(device, *world_),
      q_(on_device(layer.q)),
      k_(on_device(layer.k)),
      v_(on_device(layer.v)) {
  if (!sinks.empty()) sinks_ = on_device(sinks);
  auto trial = LayerTrial::create(device, alone_, kShape, kTokens, widest);
  MR_CHECK(trial.ok(), "{}", trial.error().to_string());
  trial_ = std::move(*trial);
  const auto taken = trial_->take(
      {.q = q_.data(), .num_rows = kTokens, .num_query_heads = kHeads, .scale = kScale},
      {.k = k_.data(),
       .v = v_.data(),
       .dtype = DType::kFloat32,
       .num_kv_heads = kHeads,
       .head_dim = kHeadDim,
       .num_tokens = kTokens,
       .token_stride = kTokens},
      sinks.empty() ? nullptr : sinks_.as<float>());
  MR_CHECK(taken.ok(), "{}", taken.error().to_string());
}

kernels::DeviceBuffer TrialOfLayer::on_device(const std::vector<float>& values) {
  auto buffer = device_.allocate(static_cast<int64_t>(values.size() * sizeof(float)));
  MR_CHECK(buffer.ok(), "{}", buffer.error().to_string());
  device_.copy(buffer->data(), values.data(), buffer->bytes());
  const auto done = device_.synchronize(Deadline::after(kTimeout));
  MR_CHECK(done.ok(), "{}", done.error().to_string());
  return std::move(*buffer);
}

}  // namespace millrace::calibrate
