// SPDX-License-Identifier: Apache-2.0
// Random workloads against a model that only knows what was promised: who holds how many pages, and
// that every byte follows from its key (page_data.h). Nothing is ever lost, and no write fails for
// lack of room. A reservation is refused exactly when the model says so. A page of an open request
// can be read exactly when it is there, and a dropped page never again.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <tuple>

#include "kvstore/kv_store.h"
#include "kvstore/pages/rising_pages.h"
#include "tests/support/fake_clock.h"
#include "tests/unit/kvstore/page_data.h"
#include "tests/unit/kvstore/random_request.h"

namespace millrace::kvstore {
namespace {

using std::chrono::seconds;

struct Budgets {
  int64_t device, host, disk;
  int64_t total() const { return device + host + disk; }
  bool one_tier() const { return (device > 0) + (host > 0) + (disk > 0) <= 1; }
};

class Workload {
 public:
  // `promotes`: as in KvStoreConfig; if not, pages that rise come to the device in tend().
  Workload(const Budgets& budgets, bool promotes, uint32_t seed)
      : budgets_(budgets), random_(seed) {
    const int64_t page_bytes = geometry_.page_bytes();
    auto store = make_kv_store(
        {.device_bytes = budgets.device * page_bytes,
         .host_bytes = host_bytes_for(budgets.device, budgets.host, budgets.disk, geometry_),
         .disk_bytes = budgets.disk * page_bytes,
         .disk_directory = budgets.disk > 0 ? ::testing::TempDir() : "",
         .promotes = promotes,
         .geometry = geometry_},
        clock_);
    MR_CHECK(store.ok(), "{}", store.error().to_string());
    store_ = std::move(*store);
  }

  void step() {
    switch (random_() % 16) {
      case 0:
        return begin();
      case 1:
      case 2:
        return pin();
      case 3:
        return unpin();
      case 4:
        return end();
      case 5:
        return pass_time();
      case 6:
        return score();
      case 7:
        return tend();
      default:
        return write_or_seal();
    }
  }

  void check_books() const {
    const auto stats = store_->stats();
    int64_t used = 0;
    int64_t written = 0;
    for (const TierUse& tier : stats.tiers) {
      ASSERT_LE(tier.slots_used, tier.slots_total);
      used += tier.slots_used;
    }
    for (const auto& [id, request] : requests_) written += request.written();
    ASSERT_GE(used, written + pinned_of_dead());
    ASSERT_EQ(stats.requests, static_cast<int64_t>(requests_.size()));
    ASSERT_EQ(stats.pinned_pages,
              std::accumulate(pins_.begin(), pins_.end(), int64_t{0},
                              [](int64_t n, const Pin& p) { return n + p.num_pages; }));
  }

  void finish() {
    while (!pins_.empty()) unpin();
    for (const auto& [id, request] : requests_) {
      if (request.sealed) read_all(id, request);
      store_->abort(id);
    }
    requests_.clear();
    for (const TierUse& tier : store_->stats().tiers) ASSERT_EQ(tier.slots_used, 0);
  }

  int64_t refusals() const { return refusals_; }
  int64_t seals() const { return seals_; }
  int64_t early_reads() const { return early_reads_; }
  int64_t drops() const { return drops_; }
  int64_t moves_to_device() const {
    const auto moves = store_->stats().moves;
    return moves[Tier::kHost][Tier::kDevice] + moves[Tier::kDisk][Tier::kDevice];
  }

 private:
  struct Request {
    std::vector<int64_t> pages;
    std::vector<PageKey> unwritten;                // in the order they will be written
    std::set<std::pair<int32_t, int32_t>> scored;  // layer, kv head
    std::set<std::tuple<int32_t, int32_t, int64_t>> dropped;
    bool open = false;
    bool sealed = false;
    TimePoint lease_ends;

    int64_t reserved(const KvGeometry& geometry) const {
      return static_cast<int64_t>(pages.size()) * geometry.num_layers * geometry.num_kv_heads -
             static_cast<int64_t>(dropped.size());
    }
    bool is_whole(const PageKey& first, int64_t num_pages) const {
      const auto from = dropped.lower_bound({first.layer, first.kv_head, first.page});
      const auto to = dropped.lower_bound({first.layer, first.kv_head, first.page + num_pages});
      return from == to;
    }
    bool is_there(const PageKey& first, int64_t num_pages) const {
      if (!open || !scored.contains({first.layer, first.kv_head})) return false;
      return std::none_of(unwritten.begin(), unwritten.end(), [&](const PageKey& key) {
        return key.layer == first.layer && key.kv_head == first.kv_head && key.page >= first.page &&
               key.page < first.page + num_pages;
      });
    }
    int64_t written() const {
      return reserved(small_geometry()) - static_cast<int64_t>(unwritten.size());
    }
  };
  struct Pin {
    std::string id;
    PageKey first;
    int64_t num_pages;
    std::unique_ptr<PinnedPages> pages;
  };

  void begin() {
    Request request;
    const int64_t num_prompt_pages = 1 + random_() % 8;
    for (int64_t page = 0; page < num_prompt_pages; ++page) {
      if (random_() % 4 != 0) request.pages.push_back(page);
    }
    for (int32_t layer = 0; layer < geometry_.num_layers; ++layer) {
      for (int32_t head = 0; head < geometry_.num_kv_heads; ++head) {
        for (const int64_t page : request.pages) {
          request.unwritten.push_back({layer, geometry_.first_kv_head + head, page});
        }
      }
    }
    if (random_() % 2 == 0) {
      std::shuffle(request.unwritten.begin(), request.unwritten.end(), random_);
    }
    const std::string id = std::to_string(next_id_++);
    const int64_t transit = budgets_.one_tier() ? 0 : 1;
    const bool fits = held() + request.reserved(geometry_) + transit <= budgets_.total();
    const auto begun = store_->begin_request(id, num_prompt_pages * 64, request.pages);
    ASSERT_EQ(begun.ok(), fits || request.pages.empty()) << id << " " << held();
    if (begun.ok()) {
      request.open = random_() % 2 == 0;
      if (request.open) {
        ASSERT_TRUE(store_->open(id, "lease " + id).ok());
      }
      requests_.emplace(id, std::move(request));
    } else {
      ASSERT_EQ(begun.error().code, Errc::kExhausted);
      ++refusals_;
    }
  }

  void write_or_seal() {
    auto* chosen = any_request(/*sealed=*/false);
    if (chosen == nullptr) return;
    auto& [id, request] = *chosen;
    for (int64_t n = random_() % 12; n >= 0 && !request.unwritten.empty(); --n) {
      const auto written = write_generated_page(*store_, id, request.unwritten.back(), geometry_);
      ASSERT_TRUE(written.ok()) << written.error().to_string();
      const PageKey key = request.unwritten.back();
      request.unwritten.pop_back();
      if (request.open && random_() % 4 == 0) score_row(id, request, key.layer, key.kv_head);
    }
    if (!request.unwritten.empty()) return;
    if (!request.open && random_() % 2 == 0) drop_pages(id, request);
    const auto lease = seconds(1 + random_() % 20);
    const auto placement = store_->seal(id, "lease " + id, lease);
    ASSERT_TRUE(placement.ok()) << placement.error().to_string();
    ASSERT_EQ(placement->pages[Tier::kDevice] + placement->pages[Tier::kHost] +
                  placement->pages[Tier::kDisk],
              request.reserved(geometry_));
    request.sealed = true;
    request.lease_ends = clock_.now() + lease;
    ++seals_;
  }

  // Drops pages of some rows.
  void drop_pages(const std::string& id, Request& request) {
    for (int32_t layer = 0; layer < geometry_.num_layers; ++layer) {
      const int32_t head = geometry_.first_kv_head + static_cast<int32_t>(random_() % 2);
      std::vector<int64_t> pages;
      for (const int64_t page : request.pages) {
        if (random_() % 2 == 0) pages.push_back(page);
      }
      ASSERT_TRUE(store_->drop_pages(id, layer, head, pages).ok());
      for (const int64_t page : pages) request.dropped.emplace(layer, head, page);
      if (random_() % 4 == 0) tend();
    }
    ++drops_;
  }

  void tend() {
    if (random_() % 2 == 0) clock_.advance(kBusRest);
    for (int i = 0; i < 10; ++i) store_->tend(Deadline::after(Duration::zero()));
  }

  void score() {
    auto* chosen = any_request(/*sealed=*/false);
    if (chosen == nullptr) return;
    const auto layer = static_cast<int32_t>(random_() % geometry_.num_layers);
    const auto head = static_cast<int32_t>(random_() % geometry_.num_kv_heads);
    score_row(chosen->first, chosen->second, layer, geometry_.first_kv_head + head);
  }

  void score_row(const std::string& id, Request& request, int32_t layer, int32_t kv_head) {
    std::vector<float> scores(request.pages.size());
    for (float& score : scores) score = static_cast<float>(random_() % 1000) / 1000;
    ASSERT_TRUE(store_->set_scores(id, layer, kv_head, scores).ok());
    request.scored.emplace(layer, kv_head);
  }

  void pin() {
    auto* chosen = any_request(/*sealed=*/random_() % 2 == 0);
    if (chosen == nullptr || chosen->second.pages.empty() || pins_.size() > 20) return;
    const auto& [id, request] = *chosen;
    const size_t first = random_() % request.pages.size();
    int64_t count = 1;
    while (first + count < request.pages.size() && random_() % 3 != 0 &&
           request.pages[first + count] == request.pages[first] + count) {
      ++count;
    }
    PageKey key = {
        static_cast<int32_t>(random_() % geometry_.num_layers),
        geometry_.first_kv_head + static_cast<int32_t>(random_() % geometry_.num_kv_heads),
        request.pages[first]};
    if (!request.sealed && !request.scored.empty()) {  // where there may be something
      std::tie(key.layer, key.kv_head) = *request.scored.begin();
    }
    auto pages = store_->pin_pages(id, "lease " + id, key.layer, key.kv_head,
                                   consecutive_pages(key.page, count));
    const bool there = request.sealed
                           ? clock_.now() < request.lease_ends && request.is_whole(key, count)
                           : request.is_there(key, count);
    ASSERT_EQ(pages.ok(), there);
    early_reads_ += there && !request.sealed;
    if (!there) {
      const bool waits = request.open && !request.sealed;
      ASSERT_EQ(pages.error().code, waits ? Errc::kUnavailable : Errc::kNotFound);
      return;
    }
    // Pulled often, and not held.
    if (random_() % 4 == 0) {
      *pages = nullptr;
      for (int i = 0; i < 2; ++i) {
        ASSERT_TRUE(store_
                        ->pin_pages(id, "lease " + id, key.layer, key.kv_head,
                                    consecutive_pages(key.page, count))
                        .ok());
      }
      return;
    }
    pins_.push_back({id, key, count, std::move(*pages)});
    check_pin(pins_.back());
  }

  void unpin() {
    if (pins_.empty()) return;
    const size_t index = random_() % pins_.size();
    check_pin(pins_[index]);
    std::swap(pins_[index], pins_.back());
    pins_.pop_back();
  }

  void check_pin(const Pin& pin) const {
    for (int64_t i = 0; i < pin.num_pages; ++i) {
      const PageKey key = {pin.first.layer, pin.first.kv_head, pin.first.page + i};
      ASSERT_TRUE(holds_generated_data(pin.pages->pages()[i], pin.id, key, geometry_));
    }
  }

  void end() {
    if (random_() % 3 != 0) return;
    const bool sealed = random_() % 4 != 0;
    auto* chosen = any_request(sealed);
    if (chosen == nullptr) return;
    const std::string id = chosen->first;
    if (sealed) {
      const bool over = clock_.now() >= chosen->second.lease_ends;
      ASSERT_EQ(store_->release_lease(id, "lease " + id).ok(), !over);
      if (over) return;
    } else {
      store_->abort(id);
    }
    requests_.erase(id);
  }

  void pass_time() {
    clock_.advance(seconds(random_() % 4));
    if (random_() % 2 == 0) return;
    const int64_t ended = store_->expire_leases();
    const TimePoint now = clock_.now();
    ASSERT_EQ(ended, std::erase_if(requests_, [&](const auto& item) {
                return item.second.sealed && now >= item.second.lease_ends;
              }));
  }

  void read_all(const std::string& id, const Request& request) {
    if (clock_.now() >= request.lease_ends) return;
    for (int32_t layer = 0; layer < geometry_.num_layers; ++layer) {
      for (int32_t head = 0; head < geometry_.num_kv_heads; ++head) {
        for (const int64_t page : request.pages) {
          const PageKey key = {layer, geometry_.first_kv_head + head, page};
          const auto pinned = store_->pin_pages(id, "lease " + id, key.layer, key.kv_head,
                                                consecutive_pages(page, 1));
          ASSERT_EQ(pinned.ok(), request.is_whole(key, 1));
          if (!pinned.ok()) continue;
          ASSERT_TRUE(holds_generated_data((*pinned)->pages()[0], id, key, geometry_));
        }
      }
    }
  }

  // Distinct pages of ended requests that are still pinned.
  int64_t pinned_of_dead() const {
    std::map<std::pair<std::string, std::pair<int32_t, int32_t>>, std::vector<int64_t>> pages;
    for (const Pin& pin : pins_) {
      if (requests_.contains(pin.id)) continue;
      auto& row = pages[{pin.id, {pin.first.layer, pin.first.kv_head}}];
      for (int64_t i = 0; i < pin.num_pages; ++i) row.push_back(pin.first.page + i);
    }
    int64_t count = 0;
    for (auto& [key, row] : pages) {
      std::sort(row.begin(), row.end());
      count += std::unique(row.begin(), row.end()) - row.begin();
    }
    return count;
  }

  int64_t held() const {
    int64_t pages = pinned_of_dead();
    for (const auto& [id, request] : requests_) pages += request.reserved(geometry_);
    return pages;
  }

  std::pair<const std::string, Request>* any_request(bool sealed) {
    return kvstore::any_request(requests_, sealed, random_);
  }

  const KvGeometry geometry_ = small_geometry();
  const Budgets budgets_;
  std::mt19937 random_;
  testing::FakeClock clock_;
  std::unique_ptr<KvStore> store_;
  std::map<std::string, Request> requests_;
  std::vector<Pin> pins_;
  int64_t next_id_ = 0;
  int64_t refusals_ = 0;
  int64_t seals_ = 0;
  int64_t early_reads_ = 0;
  int64_t drops_ = 0;
};

class KvStoreRandom : public ::testing::TestWithParam<Budgets> {};

TEST_P(KvStoreRandom, LosesNothingAndKeepsItsPromises) {
  int64_t refusals = 0;
  int64_t seals = 0;
  int64_t early_reads = 0;
  int64_t drops = 0;
  int64_t moves_to_device = 0;
  for (uint32_t seed = 1; seed <= 6; ++seed) {
    const bool promotes = seed % 2 == 0;
    Workload workload(GetParam(), promotes, seed);
    for (int step = 0; step < 1500; ++step) {
      workload.step();
      if (!HasFatalFailure() && step % 10 == 0) workload.check_books();
      ASSERT_FALSE(HasFatalFailure()) << "seed " << seed << " step " << step;
    }
    workload.finish();
    ASSERT_FALSE(HasFatalFailure()) << "seed " << seed;
    refusals += workload.refusals();
    seals += workload.seals();
    early_reads += workload.early_reads();
    drops += workload.drops();
    if (!promotes) moves_to_device += workload.moves_to_device();
  }
  // The workload is only useful if it filled the store, got work done, was read early and dropped
  // pages.
  EXPECT_GT(refusals, 10);
  EXPECT_GT(seals, 100);
  EXPECT_GT(early_reads, 10);
  EXPECT_GT(drops, 20);
  // Without promotion at seal, pages that rose came to the device, where there is one among others.
  const bool has_device = GetParam().device > 0 && !GetParam().one_tier();
  EXPECT_EQ(moves_to_device > 0, has_device) << moves_to_device;
}

INSTANTIATE_TEST_SUITE_P(Tiers, KvStoreRandom,
                         ::testing::Values(Budgets{120, 0, 0}, Budgets{60, 90, 0},
                                           Budgets{90, 60, 0}, Budgets{40, 40, 80},
                                           Budgets{7, 3, 150}, Budgets{0, 80, 80},
                                           Budgets{30, 0, 130}, Budgets{0, 0, 150}));

}  // namespace
}  // namespace millrace::kvstore
