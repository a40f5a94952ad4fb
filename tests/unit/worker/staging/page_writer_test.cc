// SPDX-License-Identifier: Apache-2.0
// One writer for one request after another, whatever happened to earlier ones, on a device that
// faults on reads of freed memory.
#include "worker/staging/page_writer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "kernels/cpu/cpu_device.h"
#include "kvstore/kv_store.h"
#include "tests/support/far_device.h"
#include "tests/support/random_data.h"
#include "tests/unit/kvstore/faulty_memory.h"
#include "worker/staging/store_sink.h"

namespace millrace::worker {
namespace {

constexpr int32_t kHeads = 2;
constexpr int32_t kHeadDim = 8;
constexpr int64_t kHeadFloats = 64 * kHeadDim;  // of K or V of a page

// Requests of two layers. A page has one row of tokens, and a sink one writer.
class PageWriterTest : public ::testing::Test {
 protected:
  PageWriterTest() {
    auto memory = kvstore::MemoryTier::allocate(kSlots, geometry_.page_bytes());
    auto store = kvstore::make_kv_store(
        {.device_bytes = kSlots * geometry_.page_bytes(),
         .host_bytes = kSlots * geometry_.record_bytes(),
         .geometry = geometry_},
        Clock::steady(), std::make_unique<kvstore::FaultyMemory>(std::move(*memory), faults_));
    MR_CHECK(store.ok(), "{}", store.error().to_string());
    store_ = std::move(*store);
    auto writer = PageWriter::create(device_, *store_, geometry_, /*num_threads=*/1);
    MR_CHECK(writer.ok(), "{}", writer.error().to_string());
    writer_ = std::move(*writer);
  }

  // K and V of a request in device memory.
  struct Rows {
    std::vector<float> k, v;
    kernels::DeviceBuffer device_k, device_v;
    engine::LocalKv local;
  };
  Rows make_rows(uint64_t seed, int64_t num_pages) {
    Rows rows{.k = test::random_normals(seed, kHeads * num_pages * kHeadFloats),
              .v = test::random_normals(seed + 1, kHeads * num_pages * kHeadFloats)};
    const auto bytes = static_cast<int64_t>(rows.k.size() * sizeof(float));
    rows.device_k = *device_.allocate(bytes);
    rows.device_v = *device_.allocate(bytes);
    device_.copy(rows.device_k.data(), rows.k.data(), bytes);
    device_.copy(rows.device_v.data(), rows.v.data(), bytes);
    rows.local = {.k = rows.device_k.data(),
                  .v = rows.device_v.data(),
                  .dtype = DType::kFloat32,
                  .num_kv_heads = kHeads,
                  .head_dim = kHeadDim,
                  .num_rows = num_pages * 64};
    return rows;
  }

  std::unique_ptr<StoreSink> make_sink(const std::string& id, const std::vector<int64_t>& pages) {
    return std::make_unique<StoreSink>(device_, *store_, *writer_, id, pages);
  }
  Result<void> write(StoreSink& sink, const Rows& rows, int64_t num_pages) {
    const std::vector<float> scores(static_cast<size_t>(kHeads * num_pages), 0.5f);
    for (int32_t layer = 0; layer < geometry_.num_layers; ++layer) {
      MR_RETURN_IF_ERROR(sink.stage_layer(layer, rows.local));
      MR_RETURN_IF_ERROR(sink.write_layer(
          {.layer = layer, .local = rows.local, .page_scores = scores, .num_pages = num_pages}));
    }
    return sink.finish();
  }
  // A whole request of pages [0, num_pages).
  void serve(const std::string& id, uint64_t seed, int64_t num_pages) {
    std::vector<int64_t> pages;
    for (int64_t page = 0; page < num_pages; ++page) pages.push_back(page);
    ASSERT_TRUE(store_->begin_request(id, num_pages * 64, pages).ok());
    const auto rows = make_rows(seed, num_pages);
    const auto written = write(*make_sink(id, pages), rows, num_pages);
    ASSERT_TRUE(written.ok()) << written.error().to_string();
    ASSERT_TRUE(store_->seal(id, "lease", std::chrono::hours(1)).ok());
    for (int32_t head = 0; head < kHeads; ++head) {
      const auto pinned =
          store_->pin_pages(id, "lease", 1, head, kvstore::consecutive_pages(0, num_pages));
      ASSERT_TRUE(pinned.ok()) << pinned.error().to_string();
      for (int64_t page = 0; page < num_pages; ++page) {
        const auto* held = reinterpret_cast<const float*>(
            (*pinned)->pages()[static_cast<size_t>(page)].bytes.data());
        const auto first = (head * num_pages + page) * kHeadFloats;
        EXPECT_TRUE(std::equal(held, held + kHeadFloats, rows.k.begin() + first)) << id << page;
        EXPECT_TRUE(std::equal(held + kHeadFloats, held + 2 * kHeadFloats, rows.v.begin() + first))
            << id << page;
      }
    }
  }

  static constexpr int64_t kSlots = 64;
  const kvstore::KvGeometry geometry_ = {
      .num_layers = 2, .num_kv_heads = kHeads, .head_dim = kHeadDim};
  std::shared_ptr<kvstore::Faults> faults_ = std::make_shared<kvstore::Faults>();
  std::unique_ptr<kvstore::KvStore> store_;
  test::FarDevice device_{kernels::make_cpu_device({.num_threads = 1})};
  std::unique_ptr<PageWriter> writer_;  // last: ends before its device
};

TEST_F(PageWriterTest, ServesRequestsOfDifferentLengthInTurn) {
  serve("a", /*seed=*/1, /*num_pages=*/3);
  serve("b", /*seed=*/3, /*num_pages=*/1);
  serve("c", /*seed=*/5, /*num_pages=*/5);
}

TEST_F(PageWriterTest, AnErrorEndsTheRequestThatHasItAndNoOther) {
  const auto rows = make_rows(/*seed=*/7, 2);
  const auto refused = write(*make_sink("never begun", {0, 1}), rows, 2);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Errc::kNotFound) << refused.error().to_string();
  serve("next", /*seed=*/9, /*num_pages=*/2);
}

TEST_F(PageWriterTest, ARequestThatIsGivenUpWhileItsPagesLeaveIsLeftAlone) {
  std::promise<void> in_the_middle, go_on;
  std::atomic<bool> left = false;
  faults_->while_writing = [&] {
    in_the_middle.set_value();
    go_on.get_future().wait();
    left = true;
  };
  ASSERT_TRUE(store_->begin_request("a", 2 * 64, std::vector<int64_t>{0, 1}).ok());
  const auto rows = make_rows(/*seed=*/11, 2);
  auto sink = make_sink("a", {0, 1});
  ASSERT_TRUE(sink->stage_layer(0, rows.local).ok());
  in_the_middle.get_future().wait();  // the other head is not yet read
  std::thread helper([&] {
    for (int i = 0; i < 1000; ++i) std::this_thread::yield();
    go_on.set_value();
  });
  sink.reset();  // and with it the memory that is read
  EXPECT_TRUE(left);
  store_->abort("a");
  helper.join();
  EXPECT_LE(store_->stats().pages_written, 2);
  serve("next", /*seed=*/13, /*num_pages=*/2);
}

}  // namespace
}  // namespace millrace::worker
