// SPDX-License-Identifier: Apache-2.0
// Many threads on one small store: writers that begin, write, score and seal, readers that pin what
// was sealed, and a sweeper. Under the thread sanitizer this proves the locking rules; every build
// checks the data byte by byte.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "kvstore/kv_store.h"
#include "tests/support/fake_clock.h"
#include "tests/unit/kvstore/page_data.h"

namespace millrace::kvstore {
namespace {

using std::chrono::hours;

constexpr int64_t kPages = 4;
constexpr int kRequestsPerWriter = 40;

class KvStoreThreads : public ::testing::Test {
 protected:
  void SetUp() override {
    const int64_t page_bytes = geometry_.page_bytes();
    auto store = make_kv_store({.device_bytes = 50 * page_bytes,
                                .host_bytes = host_bytes_for(50, 60, 90, geometry_),
                                .disk_bytes = 90 * page_bytes,
                                .disk_directory = ::testing::TempDir(),
                                .geometry = geometry_},
                               clock_);
    ASSERT_TRUE(store.ok()) << store.error().to_string();
    store_ = std::move(*store);
  }
  void TearDown() override { tender_ = {}; }

  void start_tender() {
    tender_ = std::jthread([this](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        store_->tend(Deadline::after(std::chrono::milliseconds(1)));
      }
    });
  }

  void write_layers_and_seal(const std::string& id) {
    for (int32_t layer = 0; layer < geometry_.num_layers; ++layer) {
      for (int32_t head = 4; head < 6; ++head) {
        for (int64_t page = 0; page < kPages; ++page) {
          if (!write_generated_page(*store_, id, {layer, head, page}, geometry_).ok()) ++wrong_;
        }
        if (!store_->set_scores(id, layer, head, scores_).ok()) ++wrong_;
      }
    }
    if (!store_->seal(id, "l", hours(1)).ok()) ++wrong_;
  }

  // Writes, seals, reads back and releases. Counts what was wrong.
  void serve(const std::string& id) {
    // The store holds five requests at most: refusals are part of the run.
    while (!store_->begin_request(id, kPages * 64, iota_pages(kPages)).ok()) {
      std::this_thread::yield();
    }
    write_layers_and_seal(id);
    std::thread reader([&] { read(id); });
    read(id);
    reader.join();
    if (!store_->release_lease(id, "l").ok()) ++wrong_;
  }

  void read(const std::string& id) {
    for (int32_t layer = 0; layer < geometry_.num_layers; ++layer) {
      for (int32_t head = 4; head < 6; ++head) {
        const auto pins = store_->pin_pages(id, "l", layer, head, consecutive_pages(0, kPages));
        if (!pins.ok()) {
          ++wrong_;
          continue;
        }
        for (int64_t page = 0; page < kPages; ++page) {
          if (!holds_generated_data((*pins)->pages()[page], id, {layer, head, page}, geometry_)) {
            ++wrong_;
          }
        }
      }
    }
  }

  const KvGeometry geometry_ = small_geometry();
  testing::FakeClock clock_;
  std::unique_ptr<KvStore> store_;
  std::jthread tender_;                                         // last: it uses the store
  const std::vector<float> scores_ = {0.1f, 0.6f, 0.2f, 0.1f};  // of the pages of a head
  std::atomic<int64_t> wrong_{0};
};

TEST_F(KvStoreThreads, ServesManyRequestsAtOnce) {
  start_tender();
  std::atomic<bool> done{false};
  std::thread sweeper([&] {
    while (!done) {
      store_->expire_leases();
      store_->stats();
      std::this_thread::yield();
    }
  });
  std::vector<std::thread> writers;
  for (int writer = 0; writer < 4; ++writer) {
    writers.emplace_back([this, writer] {
      for (int i = 0; i < kRequestsPerWriter; ++i) {
        serve(std::to_string(writer) + "-" + std::to_string(i));
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  done = true;
  sweeper.join();
  EXPECT_EQ(wrong_, 0);
  const auto stats = store_->stats();
  EXPECT_EQ(stats.pages_written, 4 * kRequestsPerWriter * kPages * 10);
  for (const TierUse& tier : stats.tiers) EXPECT_EQ(tier.slots_used, 0);
}

TEST_F(KvStoreThreads, ReadersOfAnOpenRequestGetWholeLayersOrAreToldToWait) {
  start_tender();
  for (int i = 0; i < 20; ++i) {
    const std::string id = std::to_string(i);
    ASSERT_TRUE(store_->begin_request(id, kPages * 64, iota_pages(kPages)).ok());
    ASSERT_TRUE(store_->open(id, "l").ok());
    std::vector<std::thread> readers;
    for (int reader = 0; reader < 2; ++reader) {
      readers.emplace_back([&] {
        for (int32_t layer = 0; layer < geometry_.num_layers;) {
          const auto pins = store_->pin_pages(id, "l", layer, 5, consecutive_pages(0, kPages));
          if (!pins.ok()) {
            if (pins.error().code != Errc::kUnavailable) ++wrong_;
            std::this_thread::yield();
            continue;
          }
          for (int64_t page = 0; page < kPages; ++page) {
            const auto& pinned = (*pins)->pages()[static_cast<size_t>(page)];
            if (!holds_generated_data(pinned, id, {layer, 5, page}, geometry_) ||
                pinned.score != scores_[static_cast<size_t>(page)]) {
              ++wrong_;
            }
          }
          ++layer;
        }
      });
    }
    write_layers_and_seal(id);
    for (std::thread& reader : readers) reader.join();
    ASSERT_TRUE(store_->release_lease(id, "l").ok());
  }
  EXPECT_EQ(wrong_, 0);
}

TEST_F(KvStoreThreads, AbortAtAnyMomentLeavesNoSlotBehind) {
  for (int i = 0; i < 60; ++i) {
    const std::string id = std::to_string(i);
    ASSERT_TRUE(store_->begin_request(id, kPages * 64, iota_pages(kPages)).ok());
    std::thread writer([&] {
      if (write_all_pages(*store_, id, iota_pages(kPages), geometry_).ok()) {
        (void)store_->seal(id, "l", hours(1)).ok();
      }
    });
    std::thread reader([&] {
      for (int n = 0; n < 20; ++n) {
        const auto pins = store_->pin_pages(id, "l", 4, 4, consecutive_pages(0, kPages));
        if (pins.ok() && !holds_generated_data((*pins)->pages()[2], id, {4, 4, 2}, geometry_)) {
          ++wrong_;
        }
      }
    });
    store_->abort(id);
    writer.join();
    reader.join();
    for (const TierUse& tier : store_->stats().tiers) ASSERT_EQ(tier.slots_used, 0) << i;
  }
  EXPECT_EQ(wrong_, 0);
}

}  // namespace
}  // namespace millrace::kvstore
