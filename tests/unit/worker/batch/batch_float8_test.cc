// SPDX-License-Identifier: Apache-2.0
// What batch jobs keep of layers whose cache is in 8-bit floats: codes in files, and in memory the
// values that the codes stand for.

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cstring>
#include <fstream>

#include "kernels/cpu/cpu_device.h"
#include "kernels/ref/operations.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/random_data.h"
#include "tests/support/temp_directory.h"
#include "worker/batch/kv_files.h"
#include "worker/sinks/retain_sink.h"

namespace millrace::worker {
namespace {

namespace json = boost::json;

constexpr int64_t kRows = 100;
constexpr int32_t kHeads = 4;
constexpr int32_t kHeadDim = 16;
constexpr int64_t kElements = kHeads * kRows * kHeadDim;

class BatchFloat8Test : public testing::Test {
 protected:
  BatchFloat8Test() {
    weights_.config = test::tiny_model_config();
    weights_.shard.num_kv_heads = kHeads;
    weights_.compute_dtype = DType::kBFloat16;
  }

  engine::LocalKv local(int32_t layer) const {
    const auto at = static_cast<size_t>(layer);
    return {.k = k_[at].data(),
            .v = v_[at].data(),
            .dtype = DType::kBFloat16,
            .num_kv_heads = kHeads,
            .head_dim = kHeadDim,
            .num_rows = kRows};
  }
  static std::vector<Float8> codes(const std::vector<uint16_t>& rows, float scale) {
    std::vector<Float8> made(rows.size());
    kernels::ref::float8_encode({.x = rows.data(),
                                 .dtype = DType::kBFloat16,
                                 .codes = made.data(),
                                 .count = kElements,
                                 .scale = scale});
    return made;
  }

  static std::vector<uint16_t> rows(uint64_t seed) {
    return test::narrow_bits(test::random_normals(seed, kElements, 3), DType::kBFloat16);
  }

  const KvScales scales_{{.k = 0.021F, .v = 0.5F}, {.k = 1, .v = 0.0078125F}};
  const std::vector<std::vector<uint16_t>> k_{rows(1), rows(2)}, v_{rows(3), rows(4)};
  model::ModelWeights weights_;
  const std::unique_ptr<kernels::Device> device_ = kernels::make_cpu_device({.num_threads = 1});
  const test::TempDirectory directory_;
};

TEST_F(BatchFloat8Test, FilesHaveTheCodesOfTheReference) {
  const auto path = directory_.file("rank-0.safetensors");
  auto sink = KvFileSink::create(*device_, path, weights_, kRows, &scales_);
  ASSERT_TRUE(sink.ok()) << sink.error().to_string();
  std::string expected;
  for (int32_t layer = 0; layer < 2; ++layer) {
    ASSERT_TRUE(
        (*sink)->write_layer({.layer = layer, .local = local(layer), .page_scores = {}}).ok());
    const auto at = static_cast<size_t>(layer);
    for (const auto& half :
         {codes(k_[at], scales_.of(layer, 0).k), codes(v_[at], scales_.of(layer, 0).v)}) {
      expected.append(reinterpret_cast<const char*>(half.data()), half.size());
    }
  }
  ASSERT_TRUE((*sink)->close().ok());
  std::ifstream file(path, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, text.data(), sizeof header_bytes);
  const auto header = json::parse(text.substr(8, header_bytes)).as_object();
  const auto& tensor = header.at("layers.1.v").as_object();
  EXPECT_EQ(tensor.at("dtype").as_string(), "F8_E4M3");
  EXPECT_EQ(tensor.at("data_offsets").as_array()[1].as_int64(), 4 * kElements);
  EXPECT_TRUE(text.substr(8 + header_bytes) == expected);
}

// Rank 1 of 2, which has the model's last heads.
TEST_F(BatchFloat8Test, EachHeadsRowsAreUnderItsScales) {
  weights_.shard.first_kv_head = kHeads;
  std::vector<KvScale> all;
  for (int32_t i = 0; i < 2 * 2 * kHeads; ++i) {
    all.push_back({.k = 0.021F * static_cast<float>(i + 1), .v = 1 / static_cast<float>(i + 2)});
  }
  const KvScales scales(std::move(all), 2 * kHeads);
  const auto path = directory_.file("rank-1.safetensors");
  auto sink = KvFileSink::create(*device_, path, weights_, kRows, &scales);
  auto memory = RetainSink::create(*device_, weights_, kRows, &scales);
  ASSERT_TRUE(sink.ok() && memory.ok());
  std::string expected;
  for (int32_t layer = 0; layer < 2; ++layer) {
    ASSERT_TRUE(
        (*sink)->write_layer({.layer = layer, .local = local(layer), .page_scores = {}}).ok());
    ASSERT_TRUE(memory->stage_layer(layer, local(layer)).ok());
    const auto at = static_cast<size_t>(layer);
    for (const bool is_k : {true, false}) {
      const auto& slab = memory->slabs()[at];
      const auto* found = static_cast<const BFloat16*>(is_k ? slab.k : slab.v);
      for (int32_t head = 0; head < kHeads; ++head) {
        const auto& scale = scales.of(layer, kHeads + head);
        const float own = is_k ? scale.k : scale.v;
        const auto made = codes(is_k ? k_[at] : v_[at], own);
        const size_t size = kElements / kHeads, begin = static_cast<size_t>(head) * size;
        expected.append(reinterpret_cast<const char*>(made.data()) + begin, size);
        for (size_t i = begin; i < begin + size; ++i) {
          ASSERT_EQ(found[i].bits, to_bfloat16(to_float(made[i]) * own).bits) << i;
        }
      }
    }
  }
  ASSERT_TRUE((*sink)->close().ok());
  std::ifstream file(path, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, text.data(), sizeof header_bytes);
  EXPECT_TRUE(text.substr(8 + header_bytes) == expected);
  const engine::Partition partition(kRows, 1, /*stripe_tokens=*/64);
  const auto manifest = kv_manifest_json({.id = "a", .num_tokens = kRows, .float8 = &scales},
                                         weights_.config, DType::kBFloat16, partition, {1, 1});
  ASSERT_TRUE(manifest.ok());
  EXPECT_EQ(json::parse(*manifest).at("version").as_int64(), 3);
  EXPECT_EQ(json::parse(*manifest).at("k_scales").as_array().size(), 2U * 2U * kHeads);
}

TEST_F(BatchFloat8Test, TheManifestSaysItAndHasTheScales) {
  const engine::Partition partition(kRows, 1, /*stripe_tokens=*/64);
  const auto text = kv_manifest_json({.id = "a", .num_tokens = kRows, .float8 = &scales_},
                                     weights_.config, DType::kBFloat16, partition, {1, 1});
  ASSERT_TRUE(text.ok()) << text.error().to_string();
  const auto manifest = json::parse(*text).as_object();
  EXPECT_EQ(manifest.at("version").as_int64(), 2);
  EXPECT_EQ(manifest.at("dtype").as_string(), "float8_e4m3");
  EXPECT_EQ(static_cast<float>(manifest.at("k_scales").as_array()[0].as_double()), 0.021F);
  EXPECT_EQ(static_cast<float>(manifest.at("v_scales").as_array()[1].as_double()), 0.0078125F);
}

TEST_F(BatchFloat8Test, InMemoryIsWhatTheCodesStandFor) {
  auto sink = RetainSink::create(*device_, weights_, kRows, &scales_);
  ASSERT_TRUE(sink.ok()) << sink.error().to_string();
  for (int32_t layer = 0; layer < 2; ++layer) {
    ASSERT_TRUE(sink->stage_layer(layer, local(layer)).ok());
    const auto at = static_cast<size_t>(layer);
    const auto& slab = sink->slabs()[at];
    for (const bool is_k : {true, false}) {
      const float scale = is_k ? scales_.of(layer, 0).k : scales_.of(layer, 0).v;
      const auto expected = codes(is_k ? k_[at] : v_[at], scale);
      const auto* found = static_cast<const BFloat16*>(is_k ? slab.k : slab.v);
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_EQ(found[i].bits, to_bfloat16(to_float(expected[i]) * scale).bits) << i;
      }
    }
  }
}

}  // namespace
}  // namespace millrace::worker
