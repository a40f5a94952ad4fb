// SPDX-License-Identifier: Apache-2.0
// A store of small pages. Its requests are filled with generated data, and each is held under its
// own lease, "lease-" and the request's id, for 60 s.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "kvstore/kv_store.h"
#include "tests/support/fake_clock.h"
#include "tests/unit/kvstore/page_data.h"

namespace millrace::kvstore {

class KvStoreTest : public ::testing::Test {
 protected:
  void make_store(int64_t device_slots, int64_t host_slots, int64_t disk_slots = 0,
                  bool promotes = true) {
    const int64_t page_bytes = geometry_.page_bytes();
    auto store = make_kv_store(
        {.device_bytes = device_slots * page_bytes,
         .host_bytes = host_bytes_for(device_slots, host_slots, disk_slots, geometry_),
         .disk_bytes = disk_slots * page_bytes,
         .disk_directory = disk_slots > 0 ? ::testing::TempDir() : "",
         .promotes = promotes,
         .geometry = geometry_},
        clock_);
    ASSERT_TRUE(store.ok()) << store.error().to_string();
    store_ = std::move(store).value();
  }

  Result<void> begin(const std::string& id, int64_t num_pages) {
    return store_->begin_request(id, num_pages * 64, iota_pages(num_pages));
  }
  void write_all(const std::string& id, int64_t num_pages) {
    const auto written = write_all_pages(*store_, id, iota_pages(num_pages), geometry_);
    ASSERT_TRUE(written.ok()) << written.error().to_string();
  }
  Placement seal(const std::string& id) {
    auto placement = store_->seal(id, "lease-" + id, std::chrono::seconds(60));
    EXPECT_TRUE(placement.ok()) << placement.error().to_string();
    return placement.ok() ? *placement : Placement{};
  }
  Placement add(const std::string& id, int64_t num_pages) {
    EXPECT_TRUE(begin(id, num_pages).ok());
    write_all(id, num_pages);
    return seal(id);
  }
  auto pin(const std::string& id, int32_t layer, int32_t kv_head, int64_t page, int64_t count = 1) {
    return store_->pin_pages(id, "lease-" + id, layer, kv_head, consecutive_pages(page, count));
  }
  Tier tier_of(const std::string& id, const PageKey& key) {
    auto pins = pin(id, key.layer, key.kv_head, key.page);
    EXPECT_TRUE(pins.ok());
    return (*pins)->pages()[0].tier;
  }
  void expect_intact(const std::string& id, int64_t num_pages) {
    for (int32_t layer = 0; layer < geometry_.num_layers; ++layer) {
      for (int32_t head = 4; head < 6; ++head) {
        auto pins = pin(id, layer, head, 0, num_pages);
        ASSERT_TRUE(pins.ok()) << pins.error().to_string();
        for (int64_t page = 0; page < num_pages; ++page) {
          EXPECT_TRUE(
              holds_generated_data((*pins)->pages()[page], id, {layer, head, page}, geometry_))
              << id << " layer " << layer << " head " << head << " page " << page;
        }
      }
    }
  }
  int64_t used(Tier tier) { return store_->stats().tiers[tier].slots_used; }

  const KvGeometry geometry_ = small_geometry();
  testing::FakeClock clock_;
  std::unique_ptr<KvStore> store_;
};

}  // namespace millrace::kvstore
