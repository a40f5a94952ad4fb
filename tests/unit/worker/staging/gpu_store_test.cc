// SPDX-License-Identifier: Apache-2.0
// Layers on a GPU whose pages go to a pool in the same GPU's memory: what the pool holds, once its
// slots are in no order any more, is what the layers held.
#include <gtest/gtest.h>

#include <bit>
#include <numeric>
#include <string>
#include <vector>

#include "common/clock.h"
#include "kernels/cuda/cuda_device.h"
#include "kvstore/kv_store.h"
#include "tests/support/random_data.h"
#include "worker/staging/page_writer.h"
#include "worker/staging/store_sink.h"
#include "worker/store/device_tier.h"

namespace millrace::worker {
namespace {

constexpr int32_t kLayers = 3;
constexpr int32_t kHeads = 4;
constexpr int32_t kHeadDim = 128;
constexpr int64_t kTokens = 700;  // ten pages, and one of 60 tokens
constexpr int64_t kPages = 11;
constexpr int64_t kPrompts = 3;  // that the pool has room for

template <typename T>
T must(Result<T> result) {
  MR_CHECK(result.ok(), "{}", result.error().to_string());
  return std::move(*result);
}
void must(const Result<void>& result) {
  MR_CHECK(result.ok(), "{}", result.error().to_string());
}

// [heads, tokens, head_dim] in bfloat16.
std::vector<uint16_t> random_rows(uint64_t seed) {
  const auto values = test::random_normals(seed, kHeads * kTokens * kHeadDim);
  std::vector<uint16_t> rows;
  for (const float value : values) {
    rows.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16));
  }
  return rows;
}

class GpuStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto device = kernels::make_cuda_device({});
    if (!device.ok()) GTEST_SKIP() << device.error().message;
    device_ = std::move(*device);
    const int64_t slots = kPrompts * kLayers * kHeads * kPages;
    auto pool = must(DeviceTier::create(*device_, slots, geometry_.page_bytes(), /*shares=*/true));
    store_ = must(kvstore::make_kv_store(
        {.device_bytes = slots * geometry_.page_bytes(),
         .host_bytes = 3 * slots * (geometry_.page_bytes() + geometry_.record_bytes()),
         .promotes = false,
         .geometry = geometry_},
        Clock::steady(), std::move(pool)));
    writer_ = must(PageWriter::create(*device_, *store_, geometry_, kMaxPageWriters));
  }

  kernels::DeviceBuffer to_device(const std::vector<uint16_t>& rows) {
    const auto bytes = static_cast<int64_t>(rows.size() * sizeof(rows[0]));
    auto buffer = must(device_->allocate(bytes));
    device_->copy(buffer.data(), rows.data(), bytes);
    must(device_->synchronize(Deadline::after(std::chrono::seconds(30))));
    return buffer;
  }
  void serve(const std::string& id, uint64_t seed) {
    std::vector<int64_t> pages(kPages);
    std::iota(pages.begin(), pages.end(), 0);
    must(store_->begin_request(id, kTokens, pages));
    StoreSink sink(*device_, *store_, *writer_, id, pages);
    const std::vector<float> scores(kHeads * kPages, 1.0F / kPages);
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      const auto k = to_device(random_rows(seed + 2 * static_cast<uint64_t>(layer)));
      const auto v = to_device(random_rows(seed + 2 * static_cast<uint64_t>(layer) + 1));
      const engine::LocalKv local{.k = k.data(),
                                  .v = v.data(),
                                  .dtype = DType::kBFloat16,
                                  .num_kv_heads = kHeads,
                                  .head_dim = kHeadDim,
                                  .num_rows = kTokens};
      must(sink.stage_layer(layer, local));
      must(sink.write_layer(
          {.layer = layer, .local = local, .page_scores = scores, .num_pages = kPages}));
      must(device_->synchronize(Deadline::after(std::chrono::seconds(30))));
    }
    must(sink.finish());
    must(store_->seal(id, "lease-" + id, std::chrono::hours(1)));
  }
  // Reads every page from the pool, which also compares its checksum.
  void expect_held(const std::string& id, uint64_t seed) {
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      const std::vector<uint16_t> halves[] = {
          random_rows(seed + 2 * static_cast<uint64_t>(layer)),
          random_rows(seed + 2 * static_cast<uint64_t>(layer) + 1)};
      for (int32_t head = 0; head < kHeads; ++head) {
        const auto pins = store_->pin_pages(id, "lease-" + id, layer, head,
                                            kvstore::consecutive_pages(0, kPages));
        ASSERT_TRUE(pins.ok()) << pins.error().to_string();
        for (int64_t page = 0; page < kPages; ++page) {
          const auto& held = (*pins)->pages()[static_cast<size_t>(page)];
          EXPECT_EQ(held.tier, Tier::kDevice);
          std::vector<uint16_t> expected;
          for (const auto& rows : halves) {
            for (int64_t i = 0; i < 64 * kHeadDim; ++i) {
              const int64_t token = page * 64 + i / kHeadDim;
              expected.push_back(
                  token < kTokens
                      ? rows[static_cast<size_t>((head * kTokens + page * 64) * kHeadDim + i)]
                      : 0);
            }
          }
          const auto* found = reinterpret_cast<const uint16_t*>(held.bytes.data());
          EXPECT_TRUE(std::equal(expected.begin(), expected.end(), found))
              << id << " layer " << layer << " head " << head << " page " << page;
        }
      }
    }
  }

  const kvstore::KvGeometry geometry_ = {.num_layers = kLayers,
                                         .num_kv_heads = kHeads,
                                         .head_dim = kHeadDim,
                                         .dtype = DType::kBFloat16};
  std::unique_ptr<kernels::Device> device_;
  std::unique_ptr<kvstore::KvStore> store_;
  std::unique_ptr<PageWriter> writer_;  // last: ends before its device
};

TEST_F(GpuStoreTest, ThePoolHoldsWhatTheLayersHeldWhateverTheOrderOfItsSlots) {
  serve("a", 1);
  serve("b", 100);
  expect_held("a", 1);
  must(store_->release_lease("a", "lease-a"));
  serve("c", 200);
  serve("d", 300);
  for (const auto& [id, seed] : {std::pair("b", 100), {"c", 200}, {"d", 300}}) {
    expect_held(id, static_cast<uint64_t>(seed));
  }
}

}  // namespace
}  // namespace millrace::worker
