// SPDX-License-Identifier: Apache-2.0
// Safetensors files with tensors of any type, for tests of types that CheckpointTensors does not
// have.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace millrace::test {

struct RawTensor {
  std::string dtype;  // as the header states it
  std::vector<int64_t> shape;
  std::string bytes;
};
using RawTensors = std::map<std::string, RawTensor, std::less<>>;

inline RawTensor float32_tensor(std::vector<int64_t> shape, std::span<const float> values) {
  std::string bytes(values.size_bytes(), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return {"F32", std::move(shape), std::move(bytes)};
}

inline std::string raw_safetensors(const RawTensors& tensors) {
  boost::json::object header;
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    const auto begin = data.size();
    data += tensor.bytes;
    header[name] = {{"dtype", tensor.dtype},
                    {"shape", boost::json::array(tensor.shape.begin(), tensor.shape.end())},
                    {"data_offsets", {begin, data.size()}}};
  }
  std::string text = boost::json::serialize(header);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(text.size() >> 8 * i));
  return bytes + text + data;
}

}  // namespace millrace::test
