// SPDX-License-Identifier: Apache-2.0
// A predictor of neurons, with numbers chosen by the test, as a file
// (decode/mlp/neuron_predictor.h).
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/dtype.h"
#include "model/config/config.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/random_data.h"

namespace millrace::test {

struct PredictorTensor {
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;
  std::vector<float> values;  // row-major
};
using PredictorTensors = std::map<std::string, PredictorTensor>;

// A predictor of `rank` for all layers. It is zero except for the embedding's rows, which are taken
// from `embedding`, [vocab, hidden].
inline PredictorTensors blank_predictor(const model::ModelConfig& config, int64_t rank,
                                        const std::vector<float>& embedding) {
  constexpr int64_t kRows = 3;
  PredictorTensors tensors;
  auto& rows = tensors["embedding_rows"];
  rows.shape = {kRows, config.hidden_size};
  for (int64_t i = 0; i < kRows; ++i) {
    const auto begin = embedding.begin() + config.vocab_size * i / kRows * config.hidden_size;
    rows.values.insert(rows.values.end(), begin, begin + config.hidden_size);
  }
  const auto zeros = [](DType dtype, std::vector<int64_t> shape) {
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    return PredictorTensor{dtype, std::move(shape), std::vector<float>(static_cast<size_t>(count))};
  };
  for (int32_t layer = 1; layer < config.num_layers; ++layer) {
    const auto prefix = fmt::format("layers.{}.", layer);
    tensors[prefix + "reduce"] = zeros(DType::kBFloat16, {rank, config.hidden_size});
    tensors[prefix + "expand"] = zeros(DType::kBFloat16, {rank, config.ffn_size});
    tensors[prefix + "bias"] = zeros(DType::kFloat32, {config.ffn_size});
  }
  return tensors;
}

inline void write_predictor(const std::string& path, const PredictorTensors& tensors) {
  std::string data;
  std::vector<std::string> entries;
  for (const auto& [name, tensor] : tensors) {
    const auto begin = data.size();
    if (tensor.dtype == DType::kFloat32) {
      data.append(reinterpret_cast<const char*>(tensor.values.data()), tensor.values.size() * 4);
    } else {
      const auto bits = narrow_bits(tensor.values, tensor.dtype);
      data.append(reinterpret_cast<const char*>(bits.data()), bits.size() * 2);
    }
    entries.push_back(fmt::format(R"("{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                                  name, tensor.dtype == DType::kFloat32 ? "F32" : "BF16",
                                  fmt::join(tensor.shape, ","), begin, data.size()));
  }
  const auto header =
      fmt::format(R"({{"__metadata__":{{"rank":"?"}},{}}})", fmt::join(entries, ","));
  std::ofstream file(path, std::ios::binary);
  for (int shift = 0; shift < 64; shift += 8) {
    file.put(static_cast<char>(header.size() >> shift));
  }
  file << header << data;
}

}  // namespace millrace::test
