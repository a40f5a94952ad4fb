// SPDX-License-Identifier: Apache-2.0
#include "decode/mlp/neuron_predictor.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "common/check.h"
#include "decode/mlp/neuron_kernels.h"
#include "kernels/cpu/runtime/parallel_ranges.h"
#include "model/checkpoint/element_conversion.h"
#include "model/checkpoint/safetensors.h"

namespace millrace::decode {

namespace {

// Tolerance between two formats of one model, the coarser being bfloat16: half a unit in the last
// place, and as much for the other.
constexpr float kSameWeight = 0x1p-8f;
// A product of fewer weights is done before a second thread has started.
constexpr int64_t kWeightsOfThread = 1 << 18;

// The tensors of one file; errors name the file.
class PredictorFile {
 public:
  static Result<PredictorFile> open(const std::string& path) {
    MR_ASSIGN_OR_RETURN(auto file, model::SafetensorsFile::open(path));
    return PredictorFile(path, std::move(file));
  }

  // -1 in `shape`: any extent of at least 1.
  Result<model::Tensor> find(const std::string& name, DType dtype,
                             const std::vector<int64_t>& shape) const {
    MR_ASSIGN_OR_RETURN(auto tensor, file_->tensor(name));
    const bool fits = std::ranges::equal(tensor.shape, shape, [](int64_t has, int64_t wanted) {
      return wanted < 0 ? has >= 1 : has == wanted;
    });
    if (!fits || tensor.dtype != dtype || tensor.float8 || tensor.is_bytes || tensor.e8m0) {
      return error(
          Errc::kInvalidArgument, "{}: tensor {} is {} [{}], the model asks for {} [{}] (-1: any)",
          path_, name,
          tensor.float8 || tensor.is_bytes || tensor.e8m0 ? "bytes" : dtype_name(tensor.dtype),
          fmt::join(tensor.shape, ", "), dtype_name(dtype), fmt::join(shape, ", "));
    }
    return tensor;
  }
  Result<void> unchanged() const { return file_->file()->unchanged(); }

 private:
  PredictorFile(std::string path, std::unique_ptr<model::SafetensorsFile> file)
      : path_(std::move(path)), file_(std::move(file)) {}

  std::string path_;
  std::unique_ptr<model::SafetensorsFile> file_;
};

// Columns [first, first + count) of the tensor's last dimension, whose elements are of T.
template <typename T>
std::vector<T> columns_of(const model::Tensor& tensor, int64_t first, int64_t count) {
  const int64_t width = tensor.shape.back();
  const int64_t rows = std::ssize(tensor.bytes) / (width * int64_t{sizeof(T)});
  std::vector<T> columns(static_cast<size_t>(rows * count));
  for (int64_t row = 0; row < rows; ++row) {
    std::memcpy(columns.data() + row * count,
                tensor.bytes.data() + (row * width + first) * int64_t{sizeof(T)},
                static_cast<size_t>(count) * sizeof(T));
  }
  return columns;
}

// Checks that the file is for these weights, or for the same in another format.
Result<void> check_embedding(const PredictorFile& file, const std::string& path,
                             const model::ModelWeights& weights) {
  const auto& table = weights.embedding;
  MR_ASSIGN_OR_RETURN(const auto tensor,
                      file.find("embedding_rows", DType::kFloat32, {-1, table.cols}));
  const int64_t count = tensor.shape[0];
  const auto wanted = columns_of<float>(tensor, 0, table.cols);
  std::vector<float> row(static_cast<size_t>(table.cols));
  for (int64_t i = 0; i < count; ++i) {
    const int64_t token = table.rows * i / count;
    model::convert_elements(static_cast<const std::byte*>(table.data) +
                                token * table.row_stride * dtype_bytes(table.dtype),
                            table.dtype, table.cols, row.data(), DType::kFloat32);
    const bool same = std::ranges::equal(
        row, std::span(wanted).subspan(row.size() * static_cast<size_t>(i), row.size()),
        [](float a, float b) {
          return std::abs(a - b) <= kSameWeight * std::max(std::abs(a), std::abs(b));
        });
    if (!same) {
      return error(Errc::kInvalidArgument,
                   "{}: made for another model than {}: the embedding of token {} differs", path,
                   weights.config.name, token);
    }
  }
  return {};
}

bool all_finite(std::span<const BFloat16> values) {
  return std::ranges::all_of(values, [](BFloat16 x) { return std::isfinite(to_float(x)); });
}

WeightRows bfloat16_rows(const std::vector<BFloat16>& values, int64_t width) {
  return {.data = values.data(), .dtype = DType::kBFloat16, .row_stride = width};
}

}  // namespace

NeuronPredictor::NeuronPredictor(const model::ModelWeights& weights, int num_threads)
    : weights_(&weights),
      num_threads_(num_threads),
      input_(static_cast<size_t>(weights.config.hidden_size)) {}

Result<NeuronPredictor> NeuronPredictor::open(const std::string& path,
                                              const model::ModelWeights& weights, int num_threads) {
  MR_ASSIGN_OR_RETURN(const auto file, PredictorFile::open(path));
  MR_RETURN_IF_ERROR(check_embedding(file, path, weights));
  NeuronPredictor predictor(weights, num_threads);
  const auto& config = weights.config;
  const int64_t neurons = weights.shard.ffn_size;
  const int64_t first = neurons * weights.tp.rank;
  int64_t rank = -1;  // the first layer's is that of all
  for (int32_t number = 1; number < config.num_layers; ++number) {
    const std::string prefix = fmt::format("layers.{}.", number);
    MR_ASSIGN_OR_RETURN(const auto reduce,
                        file.find(prefix + "reduce", DType::kBFloat16, {rank, config.hidden_size}));
    rank = reduce.shape[0];
    MR_ASSIGN_OR_RETURN(const auto expand,
                        file.find(prefix + "expand", DType::kBFloat16, {rank, config.ffn_size}));
    MR_ASSIGN_OR_RETURN(const auto bias,
                        file.find(prefix + "bias", DType::kFloat32, {config.ffn_size}));
    Layer layer{.reduce = columns_of<BFloat16>(reduce, 0, config.hidden_size),
                .expand = columns_of<BFloat16>(expand, first, neurons),
                .bias = columns_of<float>(bias, first, neurons)};
    if (!all_finite(layer.reduce) || !all_finite(layer.expand)) {
      return error(Errc::kCorrupt, "{}: layer {} has weights that are no finite numbers", path,
                   number);
    }
    predictor.layers_.push_back(std::move(layer));
  }
  predictor.rank_ = std::max<int64_t>(rank, 0);
  predictor.reduced_.resize(static_cast<size_t>(predictor.rank_));
  predictor.rows_.resize(predictor.reduced_.size());
  std::iota(predictor.rows_.begin(), predictor.rows_.end(), 0);
  MR_RETURN_IF_ERROR(file.unchanged());
  return predictor;
}

int64_t NeuronPredictor::layer_bytes() const {
  const int64_t neurons = weights_->shard.ffn_size;
  return rank_ * (weights_->config.hidden_size + neurons) * 2 + neurons * 4;
}

void NeuronPredictor::score(int32_t layer, const float* input, std::span<float> scores) {
  MR_CHECK(layer >= 1 && layer <= std::ssize(layers_), "layer {} of {}", layer, layers_.size());
  const Layer& of = layers_[static_cast<size_t>(layer - 1)];
  const int64_t hidden = std::ssize(input_);
  float squares = 0;
  for (int64_t i = 0; i < hidden; ++i) squares += input[i] * input[i];
  const float scale =
      1 / std::sqrt(squares / static_cast<float>(hidden) + weights_->config.rms_norm_eps);
  std::transform(input, input + hidden, input_.begin(), [scale](float x) { return x * scale; });

  const auto threads_of = [this](int64_t num_weights) {
    return std::clamp<int64_t>(num_weights / kWeightsOfThread, 1, num_threads_);
  };
  const auto reduce = bfloat16_rows(of.reduce, hidden);
  kernels::cpu::parallel_ranges(rank_, threads_of(rank_ * hidden), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      reduced_[static_cast<size_t>(i)] = dot_row(reduce, i, input_.data(), hidden);
    }
  });
  const int64_t neurons = std::ssize(scores);
  const auto expand = bfloat16_rows(of.expand, neurons);
  kernels::cpu::parallel_ranges(
      neurons, threads_of(rank_ * neurons), [&](int64_t begin, int64_t end) {
        sum_rows(expand, rows_.data(), reduced_.data(), rank_, begin, end, scores.data());
        for (int64_t i = begin; i < end; ++i)
          scores[static_cast<size_t>(i)] += of.bias[static_cast<size_t>(i)];
      });
}

}  // namespace millrace::decode
