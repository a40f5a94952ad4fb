// SPDX-License-Identifier: Apache-2.0
// parse_safetensors_header on arbitrary bytes: it must not crash, and what it hands out must lie
// inside the data section. Input: 4 bytes of data section size, then the header.
#include <cstdint>
#include <cstring>
#include <string_view>

#include "common/check.h"
#include "model/checkpoint/safetensors.h"

namespace {

// 128-bit, so that a wrong overflow check shows.
void check_tensor(const millrace::model::TensorInfo& info, int64_t data_bytes) {
  MR_CHECK(0 <= info.begin && info.begin <= info.end && info.end <= data_bytes,
           "[{}, {}) of {} bytes", info.begin, info.end, data_bytes);
  if (!info.known) return;
  const __int128 bytes = info.end - info.begin;
  __int128 expected = info.element_bytes();
  for (const int64_t extent : info.shape) {
    MR_CHECK(extent >= 0, "extent {}", extent);
    if (extent == 0) expected = 0;
  }
  for (const int64_t extent : info.shape) {
    if (expected > bytes) break;  // before the product can leave 128 bits
    expected *= extent;
  }
  MR_CHECK(expected == bytes, "shape does not match {} bytes", info.end - info.begin);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  uint32_t data_bytes = 0;
  if (size < sizeof(data_bytes)) return 0;
  std::memcpy(&data_bytes, data, sizeof(data_bytes));
  const std::string_view header(reinterpret_cast<const char*>(data) + sizeof(data_bytes),
                                size - sizeof(data_bytes));
  const auto tensors = millrace::model::parse_safetensors_header(header, data_bytes);
  if (!tensors.ok()) return 0;
  for (const auto& [name, info] : *tensors) check_tensor(info, data_bytes);
  return 0;
}
