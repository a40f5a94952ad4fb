// SPDX-License-Identifier: Apache-2.0
// Bandwidth of the store on one thread: checksum, memcpy for comparison, write_page into each tier,
// and pin_pages from each tier. Pages of a rank like Llama 3.1 8B's: head dimension 128, bfloat16,
// 32 KiB.
#include <benchmark/benchmark.h>

#include <cstring>
#include <filesystem>
#include <numeric>

#include "common/checksum.h"
#include "kvstore/kv_store.h"
#include "kvstore/pages/prefix_cache.h"

namespace millrace::bench {
namespace {

using namespace millrace::kvstore;

constexpr int64_t kNumPages = 1024;
constexpr int64_t kPinnedAtOnce = 32;

KvGeometry geometry() {
  return {.num_layers = 4,
          .num_kv_heads = 1,
          .first_kv_head = 0,
          .head_dim = 128,
          .dtype = DType::kBFloat16,
          .page_tokens = 64};
}

// A store that holds one request, with one tier, or with device and host for write-through.
class Fixture {
 public:
  Fixture(bool device, bool host, bool disk)
      : page_(static_cast<size_t>(geometry().page_bytes())), digest_(geometry().head_dim, 1.0f) {
    const int64_t bytes = (num_pages() + 1) * geometry().page_bytes();
    auto store = make_kv_store(
        {.device_bytes = device ? bytes : 0,
         .host_bytes = (host ? bytes : 0) +
                       (device + host + disk) * (num_pages() + 1) * geometry().record_bytes(),
         .disk_bytes = disk ? bytes : 0,
         .disk_directory = disk ? std::filesystem::temp_directory_path().string() : "",
         .geometry = geometry()},
        Clock::steady());
    MR_CHECK(store.ok(), "{}", store.error().to_string());
    store_ = std::move(*store);
    pages_.resize(kNumPages);
    std::iota(pages_.begin(), pages_.end(), int64_t{0});
    for (size_t i = 0; i < page_.size(); ++i) page_[i] = static_cast<std::byte>(i * 31);
  }

  static int64_t num_pages() { return kNumPages * geometry().num_layers; }
  static int64_t bytes() { return num_pages() * geometry().page_bytes(); }

  void begin() { check(store_->begin_request("r", kNumPages * 64, pages_)); }
  void write_all() {
    const PageDigest digest{.min = digest_, .max = digest_, .radius = digest_};
    for (int32_t layer = 0; layer < geometry().num_layers; ++layer) {
      for (const int64_t page : pages_)
        check(store_->write_page("r", {layer, 0, page}, page_, digest));
    }
  }
  void seal() {
    const auto placement = store_->seal("r", "l", std::chrono::hours(1));
    MR_CHECK(placement.ok(), "{}", placement.error().to_string());
  }
  int64_t pin_all() {
    int64_t bytes = 0;
    for (int32_t layer = 0; layer < geometry().num_layers; ++layer) {
      for (int64_t page = 0; page < kNumPages; page += kPinnedAtOnce) {
        const auto pins =
            store_->pin_pages("r", "l", layer, 0, consecutive_pages(page, kPinnedAtOnce));
        MR_CHECK(pins.ok(), "{}", pins.error().to_string());
        for (const PinnedPage& pinned : (*pins)->pages()) bytes += pinned.bytes.size();
      }
    }
    return bytes;
  }
  void abort() { store_->abort("r"); }

 private:
  static void check(const Result<void>& result) {
    MR_CHECK(result.ok(), "{}", result.error().to_string());
  }

  std::vector<std::byte> page_;
  std::vector<float> digest_;
  std::vector<int64_t> pages_;
  std::unique_ptr<KvStore> store_;
};

void write_pages(benchmark::State& state, bool device, bool host, bool disk) {
  Fixture fixture(device, host, disk);
  fixture.begin();  // before the clock runs, so that the memory exists, as in a running service
  fixture.write_all();
  fixture.abort();
  for (auto _ : state) {
    fixture.begin();
    fixture.write_all();
    state.PauseTiming();
    fixture.abort();
    state.ResumeTiming();
  }
  state.SetBytesProcessed(state.iterations() * Fixture::bytes());
  state.SetItemsProcessed(state.iterations() * Fixture::num_pages());
}

void pin_pages(benchmark::State& state, bool device, bool disk) {
  Fixture fixture(device, false, disk);
  fixture.begin();
  fixture.write_all();
  fixture.seal();
  int64_t bytes = 0;
  for (auto _ : state) bytes += fixture.pin_all();
  state.SetBytesProcessed(bytes);
  state.SetItemsProcessed(state.iterations() * Fixture::num_pages());
  fixture.abort();
}

// One of four ranks' shares of 131,072 tokens of an 8B model, in host memory. A request waits for
// its bookkeeping before its first layer and after its last.
class LargeRequest {
 public:
  // `head_dim`: less than 128 where the bytes of pages do not matter.
  explicit LargeRequest(int32_t head_dim) : pages_(kPages) {
    geometry_ = geometry();
    geometry_.num_layers = 32;
    geometry_.num_kv_heads = 8;
    geometry_.head_dim = head_dim;
    auto store = make_kv_store(
        {.host_bytes = kPages * 32 * 8 * (geometry_.page_bytes() + geometry_.record_bytes()),
         .geometry = geometry_},
        Clock::steady());
    MR_CHECK(store.ok(), "{}", store.error().to_string());
    store_ = std::move(*store);
    std::iota(pages_.begin(), pages_.end(), int64_t{0});
  }
  void begin() {
    const auto begun = store_->begin_request("r", kPages * 64, pages_);
    MR_CHECK(begun.ok(), "{}", begun.error().to_string());
  }
  void write_all() {
    const std::vector<std::byte> page(static_cast<size_t>(geometry_.page_bytes()));
    const std::vector<float> bound(static_cast<size_t>(geometry_.head_dim));
    const std::vector<float> scores(kPages, 1.0f);
    for (int32_t layer = 0; layer < geometry_.num_layers; ++layer) {
      for (int32_t head = 0; head < geometry_.num_kv_heads; ++head) {
        for (const int64_t number : pages_) {
          const auto written = store_->write_page("r", {layer, head, number}, page,
                                                  {.min = bound, .max = bound, .radius = bound});
          MR_CHECK(written.ok(), "{}", written.error().to_string());
        }
        MR_CHECK(store_->set_scores("r", layer, head, scores).ok(), "scores");
      }
    }
  }
  void seal() {
    const auto placed = store_->seal("r", "l", std::chrono::hours(1));
    MR_CHECK(placed.ok(), "{}", placed.error().to_string());
  }
  void abort() { store_->abort("r"); }

 private:
  static constexpr int64_t kPages = 512;
  KvGeometry geometry_;
  std::vector<int64_t> pages_;
  std::unique_ptr<KvStore> store_;
};

void begin_and_abort(benchmark::State& state) {
  LargeRequest request(/*head_dim=*/128);
  for (auto _ : state) {
    request.begin();
    request.abort();
  }
}

void seal_on_host(benchmark::State& state) {
  LargeRequest request(/*head_dim=*/4);
  for (auto _ : state) {
    state.PauseTiming();
    request.begin();
    request.write_all();
    state.ResumeTiming();
    request.seal();
    state.PauseTiming();
    request.abort();
    state.ResumeTiming();
  }
}

// Copies between two regions as large as the store's, so that caches help neither.
void copy_memory(benchmark::State& state) {
  const auto page_bytes = static_cast<size_t>(geometry().page_bytes());
  const std::vector<std::byte> page(page_bytes, std::byte{1});
  std::vector<std::byte> region(static_cast<size_t>(Fixture::bytes()));
  for (auto _ : state) {
    for (size_t at = 0; at < region.size(); at += page_bytes) {
      std::memcpy(region.data() + at, page.data(), page_bytes);
    }
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * Fixture::bytes());
}

void checksum_pages(benchmark::State& state) {
  const auto page_bytes = static_cast<size_t>(geometry().page_bytes());
  const std::vector<std::byte> region(static_cast<size_t>(Fixture::bytes()), std::byte{1});
  for (auto _ : state) {
    for (size_t at = 0; at < region.size(); at += page_bytes) {
      benchmark::DoNotOptimize(checksum(std::span(region).subspan(at, page_bytes)));
    }
  }
  state.SetBytesProcessed(state.iterations() * Fixture::bytes());
}

BENCHMARK(copy_memory)->Unit(benchmark::kMillisecond);
BENCHMARK(checksum_pages)->Unit(benchmark::kMillisecond);
BENCHMARK(begin_and_abort)->Unit(benchmark::kMillisecond);
BENCHMARK(seal_on_host)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(write_pages, device, true, false, false)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(write_pages, device_and_host, true, true, false)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(write_pages, disk, false, false, true)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(pin_pages, device, true, false)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(pin_pages, disk, false, true)->Unit(benchmark::kMillisecond);

// A full prefix cache of this many columns. Each new prompt has 1,024 columns (65,536 tokens), and
// as many are dropped. An item is one column: one added and one dropped.
class FullCache {
 public:
  static constexpr int64_t kPromptColumns = 1024;

  explicit FullCache(int64_t num_columns) {
    while (cache_.num_columns() < num_columns) add();
  }
  void replace() {
    add();
    for (int64_t i = 0; i < kPromptColumns; ++i) {
      cache_.give_way(*cache_.first_to_go(sequence_));
    }
    cache_.advance_clock(cache_.most_given_up());
  }

 private:
  void add() {
    ++sequence_;
    std::vector<std::shared_ptr<PageColumn>> columns;
    for (int64_t page = 0; page < kPromptColumns; ++page) {
      columns.push_back(
          std::make_shared<PageColumn>("", one_row(), page, kPromptColumns, sequence_));
      columns.back()->num_requests = 1;
      PageContentKey key{};
      std::memcpy(key.data(), &sequence_, sizeof sequence_);
      std::memcpy(key.data() + sizeof sequence_, &page, sizeof page);
      cache_.insert(key, *columns.back());
      cache_.touch(*columns.back(), sequence_);
    }
    for (const auto& column : columns) {
      cache_.raise_cost(*column, 1 + static_cast<double>(sequence_ * 7 % 5));
      cache_.release(*column);
    }
  }
  static KvGeometry one_row() {
    auto one = geometry();
    one.num_layers = 1;
    return one;
  }

  CacheLog log_;
  PrefixCache cache_{log_};
  int64_t sequence_ = 0;
};

void give_way(benchmark::State& state) {
  FullCache cache(state.range(0));
  for (auto _ : state) cache.replace();
  state.SetItemsProcessed(state.iterations() * FullCache::kPromptColumns);
}

BENCHMARK(give_way)->Arg(4096)->Arg(32768)->Arg(262144)->Arg(524288)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace millrace::bench

BENCHMARK_MAIN();
