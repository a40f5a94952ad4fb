// SPDX-License-Identifier: Apache-2.0
#include "decode/mlp/sparse_mlp.h"

#include <cstring>

#include "common/check.h"
#include "decode/mlp/neuron_kernels.h"
#include "kernels/cpu/runtime/operations.h"
#include "kernels/cpu/runtime/parallel_ranges.h"

namespace millrace::decode {

namespace {

using kernels::cpu::parallel_ranges;

// A thread's columns begin at multiples of this, so that their sums do not depend on the number of
// threads.
constexpr int64_t kColumns = 64;
// Rows and columns that transpose() handles at a time, to stay in the caches.
constexpr int64_t kTile = 64;
// Neurons prefetched while one is multiplied.
constexpr int64_t kNeuronsAhead = 8;

WeightRows rows_of(const kernels::ConstMatrix& matrix) {
  return {.data = matrix.data, .dtype = matrix.dtype, .row_stride = matrix.row_stride};
}

template <typename T>
void transpose_tile(const kernels::ConstMatrix& from, int64_t first_row, int64_t first_col,
                    std::byte* to) {
  const auto* const in = static_cast<const T*>(from.data);
  auto* const out = reinterpret_cast<T*>(to);
  for (int64_t col = first_col; col < std::min(first_col + kTile, from.cols); ++col) {
    for (int64_t row = first_row; row < std::min(first_row + kTile, from.rows); ++row) {
      out[col * from.rows + row] = in[row * from.row_stride + col];
    }
  }
}

}  // namespace

SparseMlp::SparseMlp(const model::ModelWeights& weights, int num_threads)
    : weights_(&weights), context_(kernels::cpu::fastest_context(num_threads)) {
  const auto hidden = static_cast<size_t>(weights.config.hidden_size);
  rounded_.resize(hidden * static_cast<size_t>(dtype_bytes(weights.compute_dtype)));
  input_.resize(hidden);
}

Result<SparseMlp> SparseMlp::create(const model::ModelWeights& weights, int num_threads) {
  const auto& config = weights.config;
  if (weights.quantization != model::Quantization::kNone) {
    return error(Errc::kUnsupported, "some neurons of model {}: its weights are quantised",
                 config.name);
  }
  SparseMlp mlp(weights, num_threads);
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    if (config.has_experts(layer)) {
      return error(Errc::kUnsupported, "some neurons of model {}: layer {} has experts",
                   config.name, layer);
    }
    mlp.transpose(weights.layers[static_cast<size_t>(layer)].down);
  }
  return mlp;
}

void SparseMlp::transpose(const kernels::ConstMatrix& down) {
  auto& to =
      down_.emplace_back(static_cast<size_t>(down.rows * down.cols * dtype_bytes(down.dtype)));
  parallel_ranges((down.rows + kTile - 1) / kTile, context_.num_threads,
                  [&](int64_t begin, int64_t end) {
                    for (int64_t tile = begin; tile < end; ++tile) {
                      for (int64_t col = 0; col < down.cols; col += kTile) {
                        down.dtype == DType::kFloat32
                            ? transpose_tile<float>(down, tile * kTile, col, to.data())
                            : transpose_tile<BFloat16>(down, tile * kTile, col, to.data());
                      }
                    }
                  });
}

int64_t SparseMlp::bytes_of(int64_t num_neurons) const {
  return num_neurons * 3 * weights_->config.hidden_size * dtype_bytes(weights_->compute_dtype);
}

const float* SparseMlp::normed(const float* hidden, const float* weight) {
  const int64_t count = std::ssize(input_);
  const bool rounds = weights_->compute_dtype == DType::kBFloat16;
  void* const out = rounds ? static_cast<void*>(rounded_.data()) : input_.data();
  kernels::cpu::rms_norm({.x = hidden,
                          .weight = weight,
                          .eps = weights_->config.rms_norm_eps,
                          .out = kernels::dense_matrix(out, weights_->compute_dtype, 1, count)},
                         context_);
  if (rounds) widen(reinterpret_cast<const BFloat16*>(rounded_.data()), count, input_.data());
  return input_.data();
}

void SparseMlp::activate(int32_t layer, const float* hidden, std::span<const int32_t> neurons,
                         std::span<float> activations) {
  MR_CHECK(activations.size() == neurons.size(), "{} activations of {} neurons", activations.size(),
           neurons.size());
  const auto& weights = weights_->layers[static_cast<size_t>(layer)];
  const float* const input = normed(hidden, weights.mlp_norm);
  const WeightRows rows = rows_of(weights.gate_up);
  const int64_t count = std::ssize(neurons);
  products_.resize(static_cast<size_t>(2 * count));
  parallel_ranges(count, context_.num_threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (i + kNeuronsAhead < end) {
        const int64_t later = neurons[static_cast<size_t>(i + kNeuronsAhead)];
        prefetch_row(rows, later, 0, std::ssize(input_));
        prefetch_row(rows, num_neurons() + later, 0, std::ssize(input_));
      }
      const int64_t neuron = neurons[static_cast<size_t>(i)];
      products_[static_cast<size_t>(i)] = dot_row(rows, neuron, input, std::ssize(input_));
      products_[static_cast<size_t>(count + i)] =
          dot_row(rows, num_neurons() + neuron, input, std::ssize(input_));
    }
  });
  kernels::cpu::activate(
      {.gate_up = products_.data(),
       .activation = weights_->config.activation,
       .out = kernels::dense_matrix(activations.data(), DType::kFloat32, 1, count)},
      context_);
}

void SparseMlp::project(int32_t layer, std::span<const int32_t> neurons,
                        std::span<const float> activations, float* out) const {
  const int64_t hidden = weights_->config.hidden_size;
  const WeightRows rows{.data = down_[static_cast<size_t>(layer)].data(),
                        .dtype = weights_->compute_dtype,
                        .row_stride = hidden};
  parallel_ranges((hidden + kColumns - 1) / kColumns, context_.num_threads,
                  [&](int64_t begin, int64_t end) {
                    sum_rows(rows, neurons.data(), activations.data(), std::ssize(neurons),
                             begin * kColumns, std::min(end * kColumns, hidden), out);
                  });
}

}  // namespace millrace::decode
