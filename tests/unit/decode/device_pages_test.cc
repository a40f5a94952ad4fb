// SPDX-License-Identifier: Apache-2.0
// A GPU's pages compared with progressive attention on a CPU: the same pages in the same order, and
// the same attention, however many slots there are.

#include "kernels/pages/device_pages.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <tuple>

#include "common/dtype.h"
#include "common/float8_array.h"
#include "decode/attention/cpu_page_kernel.h"
#include "decode/attention/progressive_attention.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_device_pages.h"
#include "tests/support/random_data.h"
#include "tests/unit/decode/paged_cache.h"

namespace millrace::decode {
namespace {

using test::PagedCache;

Deadline ample() {
  return Deadline::after(std::chrono::seconds(60));
}

// One step in one layer.
struct Attended {
  std::vector<float> out, lse;
  std::vector<std::vector<int32_t>> pages;  // by kv head
};

// The tokens after the prompt.
struct Tail {
  std::vector<float> out, lse;
};

std::vector<float> queries(const CacheShape& shape, uint64_t seed, float size) {
  return test::random_normals(seed, int64_t{shape.num_query_heads} * shape.head_dim, size);
}

Tail tail_of(const CacheShape& shape, uint64_t seed) {
  return {.out = queries(shape, seed + 77, 1),
          .lse = test::random_normals(seed + 78, shape.num_query_heads)};
}

class OnCpu {
 public:
  OnCpu(PagedCache& cache, const kernels::PageRule& rule)
      : shape_(cache.shape()),
        pool_(cache, {.num_layers = shape_.num_layers,
                      .first_kv_head = shape_.first_kv_head,
                      .num_kv_heads = shape_.num_kv_heads,
                      .num_pages = shape_.num_pages(),
                      .page_bytes = cache.page_bytes(),
                      .num_slots = shape_.num_layers * shape_.num_kv_heads * shape_.num_pages()}),
        attention_(shape_, cache.digests(), pool_, kernel_, rule) {}

  void set_sinks(std::vector<float> sinks) { sinks_ = std::move(sinks); }  // of all layers
  // Over the prompt from a given token on, and the tail.
  Attended attend(int32_t layer, const std::vector<float>& q, const Tail& tail,
                  int64_t first_token = 0) {
    Attended attended{.out = std::vector<float>(q.size()),
                      .lse = std::vector<float>(static_cast<size_t>(shape_.num_query_heads))};
    const auto end = attention_.attend({.layer = layer,
                                        .first_token = first_token,
                                        .q = q.data(),
                                        .tail_lse = tail.lse.data(),
                                        .out = attended.out.data(),
                                        .lse = attended.lse.data()},
                                       ample());
    EXPECT_TRUE(end.ok());
    for (size_t i = 0; i < attended.out.size(); ++i) {
      const size_t head = i / static_cast<size_t>(shape_.head_dim);
      const double weight = 1 / (1 + std::exp(double{tail.lse[head]} - attended.lse[head]));
      attended.out[i] = static_cast<float>(weight * attended.out[i] + (1 - weight) * tail.out[i]);
      if (sinks_.empty()) continue;
      const double mass = std::exp(double{attended.lse[head]}) + std::exp(double{tail.lse[head]});
      const double share = 1 / (1 + std::exp(double{sinks_[head]} - std::log(mass)));
      attended.out[i] = static_cast<float>(share * attended.out[i]);
    }
    for (int32_t h = 0; h < shape_.num_kv_heads; ++h) {
      const auto pages = attention_.pages_read(h);
      attended.pages.emplace_back(pages.begin(), pages.end());
    }
    return attended;
  }

 private:
  const CacheShape shape_;
  PagePool pool_;
  CpuPageKernel kernel_{2};
  ProgressiveAttention attention_;
  std::vector<float> sinks_;
};

struct GpuOptions {
  double mass = 0.9;
  bool proven = false;
  int64_t num_slots = 0;  // 0: of all pages
  // Float32 pages become codes under these scales. The output is bfloat16, or `output`.
  const KvScales* float8 = nullptr;
  DType output = DType::kBFloat16;
};

class OnGpu {
 public:
  OnGpu(PagedCache& cache, const GpuOptions& options)
      : shape_(cache.shape()),
        output_(options.float8 != nullptr ? options.output : cache.shape().dtype),
        device_(must(kernels::make_cuda_device({}))),
        ahead_(must(kernels::make_cuda_device({}))) {
    const kernels::DevicePagesShape shape{.num_layers = shape_.num_layers,
                                          .num_kv_heads = shape_.num_kv_heads,
                                          .num_query_heads = shape_.num_query_heads,
                                          .head_dim = shape_.head_dim,
                                          .num_tokens = shape_.num_tokens,
                                          .dtype = output_,
                                          .scale = shape_.scale(),
                                          .float8 = options.float8,
                                          .kept = shape_.kept,
                                          .first_kv_head = shape_.first_kv_head};
    host_ = must(device_->allocate_host(shape.all_pages() * shape.page_bytes()));
    // NaN where there is no token, and where no page is kept.
    std::memset(host_.as<std::byte>(), 0xff, static_cast<size_t>(host_.bytes()));
    std::vector<std::byte> page(static_cast<size_t>(cache.page_bytes()));
    int64_t number = 0;
    for (int32_t layer = 0; layer < shape_.num_layers; ++layer) {
      for (int32_t h = 0; h < shape_.num_kv_heads; ++h) {
        for (int64_t p = 0; p < shape_.num_pages(); ++p, ++number) {
          if (!shape_.has_page(layer, h, p)) continue;
          const kvclient::NamedPage named{{layer, shape_.first_kv_head + h, p}, page.data()};
          MR_CHECK(cache.fetch({&named, 1}, FetchUrgency::kNeed, ample()).ok(), "no page");
          const auto tokens = std::min<int64_t>(64, shape_.num_tokens - 64 * p);
          std::byte* const to = host_.as<std::byte>() + number * shape.page_bytes();
          const int64_t half = shape.page_bytes() / 2;
          const std::byte* const values = page.data() + page.size() / 2;
          if (options.float8 == nullptr) {
            const auto rows = static_cast<size_t>(tokens * shape_.head_dim * 2);
            std::memcpy(to, page.data(), rows);
            std::memcpy(to + half, values, rows);
            continue;
          }
          const auto& scale = options.float8->of(layer, shape_.first_kv_head + h);
          const int64_t count = tokens * shape_.head_dim;
          encode_float8(page.data(), DType::kFloat32, count, scale.k,
                        reinterpret_cast<Float8*>(to));
          encode_float8(values, DType::kFloat32, count, scale.v,
                        reinterpret_cast<Float8*>(to + half));
        }
      }
    }
    pages_ = must(kernels::make_cuda_device_pages(
        *device_, ahead_.get(), shape,
        {.host = host_.as<std::byte>(),
         .num_slots = options.num_slots == 0 ? shape.kept_pages() : options.num_slots,
         .rule = {.log_odds = static_cast<float>(std::log((1 - options.mass) / options.mass)),
                  .proven = options.proven}}));
    for (int32_t layer = 0; layer < shape_.num_layers; ++layer) {
      for (int32_t h = 0; h < shape_.num_kv_heads; ++h) {
        MR_CHECK(pages_->set_digests(layer, h, digests(cache, layer, h)).ok(), "");
      }
    }
    MR_CHECK(pages_->complete(ample()).ok(), "not complete");
    const int64_t row = shape_.num_query_heads * int64_t{shape_.head_dim};
    q_ = must(device_->allocate(row * 4));
    next_q_ = must(device_->allocate(row * 4));
    tail_out_ = must(device_->allocate(row * 4));
    tail_lse_ = must(device_->allocate(shape_.num_query_heads * 4));
    out_ = must(device_->allocate(row * 2));
    lse_ = must(device_->allocate(shape_.num_query_heads * 4));
  }

  void set_sinks(const std::vector<float>& sinks) {
    sinks_ = must(device_->allocate(std::ssize(sinks) * 4));
    device_->copy(sinks_.data(), sinks.data(), sinks_.bytes());
    MR_CHECK(device_->synchronize(ample()).ok(), "no sinks");
  }
  // `next_q`: the queries foreseen for the next layer, if not empty.
  Attended attend(int32_t layer, const std::vector<float>& q, const Tail& tail,
                  const std::vector<float>& next_q = {}, int64_t first_token = 0) {
    pages_->begin_layer(layer);
    if (!next_q.empty()) {
      ahead_->copy(next_q_.data(), next_q.data(), next_q_.bytes());
      pages_->foresee(layer + 1, next_q_.as<float>());
    }
    device_->copy(q_.data(), q.data(), q_.bytes());
    device_->copy(tail_out_.data(), tail.out.data(), tail_out_.bytes());
    device_->copy(tail_lse_.data(), tail.lse.data(), tail_lse_.bytes());
    const std::vector<std::byte> poison(static_cast<size_t>(out_.bytes()), std::byte{0xff});
    device_->copy(out_.data(), poison.data(), out_.bytes());
    pages_->attend({.layer = layer,
                    .first_token = first_token,
                    .q = q_.as<float>(),
                    .tail_lse = tail_lse_.as<float>(),
                    .tail_out = tail_out_.as<float>(),
                    .sinks = sinks_.as<float>(),
                    .out = out_.data(),
                    .lse = lse_.as<float>()});
    std::vector<uint16_t> bits(q.size());
    Attended attended{.lse = std::vector<float>(static_cast<size_t>(shape_.num_query_heads))};
    device_->copy(bits.data(), out_.data(), out_.bytes());
    device_->copy(attended.lse.data(), lse_.data(), lse_.bytes());
    attended.pages = must(pages_->pages_read(ample()));
    attended.out = test::widen_bits(bits, output_);
    return attended;
  }
  kernels::DevicePagesStats stats() { return must(pages_->stats(ample())); }

 private:
  // NaN for pages that are not kept.
  std::vector<float> digests(const PagedCache& cache, int32_t layer, int32_t kv_head) const {
    const int64_t of_page = 3 * shape_.head_dim;
    const float* const first = cache.digests().of(layer, kv_head);
    std::vector<float> all(first, first + shape_.num_pages() * of_page);
    for (int64_t page = 0; page < shape_.num_pages(); ++page) {
      if (shape_.has_page(layer, kv_head, page)) continue;
      std::fill_n(all.begin() + page * of_page, of_page, NAN);
    }
    return all;
  }
  template <typename T>
  static T must(Result<T> result) {
    MR_CHECK(result.ok(), "{}", result.error().to_string());
    return std::move(result).value();
  }

  const CacheShape shape_;
  const DType output_;
  std::unique_ptr<kernels::Device> device_, ahead_;
  kernels::HostBuffer host_;
  kernels::DeviceBuffer q_, next_q_, tail_out_, tail_lse_, sinks_, out_, lse_;
  std::unique_ptr<kernels::DevicePages> pages_;
};

class DevicePagesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kernels::num_cuda_devices() == 0) GTEST_SKIP() << "no GPU that the kernels run on";
  }
};

// Half a unit in the last place of the output's dtype, and float32's rounding of a sum over some
// thousand tokens.
double tolerance(DType dtype, double value) {
  return std::abs(value) * (dtype == DType::kBFloat16 ? 0x1p-8 : 0x1p-11) * 1.01 + 2e-5;
}

// Pages whose keys differ by less than rounding may change places within a portion.
void expect_same(Attended gpu, Attended cpu, DType dtype) {
  for (auto* side : {&gpu, &cpu}) {
    for (auto& pages : side->pages) std::sort(pages.begin(), pages.end());
  }
  EXPECT_EQ(gpu.pages, cpu.pages);
  ASSERT_EQ(gpu.out.size(), cpu.out.size());
  for (size_t i = 0; i < gpu.out.size(); ++i) {
    ASSERT_NEAR(gpu.out[i], cpu.out[i], tolerance(dtype, double{cpu.out[i]})) << "element " << i;
  }
  for (size_t i = 0; i < gpu.lse.size(); ++i) {
    if (gpu.lse[i] == cpu.lse[i]) continue;  // -inf: no page
    ASSERT_NEAR(gpu.lse[i], cpu.lse[i], 2e-5);
  }
}

TEST_F(DevicePagesTest, AttendToThePagesThatTheCpuDoes) {
  int64_t read = 0, all = 0;
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const int32_t head_dim : {64, 128, 256}) {
      for (const int32_t group : {1, 3, 4, 8}) {
        if (head_dim == 256 && group > 4) continue;  // refused
        for (const int64_t tokens : {int64_t{1}, int64_t{130}, int64_t{64 * 150 - 17}}) {
          SCOPED_TRACE(fmt::format("{} head_dim {} group {} tokens {}", dtype_name(dtype), head_dim,
                                   group, tokens));
          PagedCache cache({.num_layers = 2,
                            .first_kv_head = 2,
                            .num_kv_heads = 2,
                            .num_query_heads = 2 * group,
                            .head_dim = head_dim,
                            .num_tokens = tokens,
                            .dtype = dtype},
                           test::clustered_keys(1, 0.7F), static_cast<uint64_t>(group + tokens));
          const kernels::CalibratedRule rule(0.9);
          OnCpu cpu(cache, rule);
          OnGpu gpu(cache, {});
          for (uint64_t step = 0; step < 3; ++step) {
            for (int32_t layer = 0; layer < 2; ++layer) {
              const auto q = queries(cache.shape(), step * 10 + static_cast<uint64_t>(layer), 2);
              const auto tail = tail_of(cache.shape(), step);
              const auto expected = cpu.attend(layer, q, tail);
              expect_same(gpu.attend(layer, q, tail), expected, dtype);
              for (const auto& pages : expected.pages) read += std::ssize(pages);
              all += 2 * cache.shape().num_pages();
            }
          }
        }
      }
    }
  }
  EXPECT_LT(read, all * 9 / 10);  // else the rule was never asked
}

TEST_F(DevicePagesTest, ProvenMassesEndOnTheSamePagesToo) {
  for (const int32_t head_dim : {64, 256}) {
    SCOPED_TRACE(head_dim);
    PagedCache cache({.num_layers = 1,
                      .num_kv_heads = 2,
                      .num_query_heads = 8,
                      .head_dim = head_dim,
                      .num_tokens = 64 * 120 - 5,
                      .dtype = DType::kBFloat16},
                     test::clustered_keys(1.5F, 0.05F), 11);
    const kernels::BoundRule rule(0.9);
    OnCpu cpu(cache, rule);
    OnGpu gpu(cache, {.proven = true});
    for (uint64_t step = 0; step < 5; ++step) {
      const auto q = queries(cache.shape(), step, 3);
      const auto tail = tail_of(cache.shape(), step);
      expect_same(gpu.attend(0, q, tail), cpu.attend(0, q, tail), DType::kBFloat16);
    }
  }
}

// In layer 0, one head has all pages, the next a random half, and others from three pages to none;
// in layer 1 in the reverse order.
KeptPages kept_in_part(const CacheShape& shape) {
  KeptPages kept(shape.num_layers, shape.first_kv_head + shape.num_kv_heads, shape.num_pages());
  const std::vector<std::function<bool(int64_t)>> choices = {
      [](int64_t) { return true; },
      [](int64_t page) { return test::random_normal(91, static_cast<uint64_t>(page)) > 0; },
      [&](int64_t page) { return kernels::PageRuleNumbers::leads(page, shape.num_pages()); },
      [](int64_t page) { return page == 5 || page == 77; },
      [](int64_t page) { return page == 0; },
      [](int64_t) { return false; }};
  for (int32_t layer = 0; layer < shape.num_layers; ++layer) {
    for (int32_t h = 0; h < shape.num_kv_heads; ++h) {
      const auto& has = choices[static_cast<size_t>(layer == 0 ? h : shape.num_kv_heads - 1 - h)];
      for (int64_t page = 0; page < shape.num_pages(); ++page) {
        if (has(page)) kept.keep(layer, shape.first_kv_head + h, page);
      }
    }
  }
  return kept;
}

CacheShape shape_kept_in_part() {
  return {.num_layers = 2,
          .first_kv_head = 1,
          .num_kv_heads = 6,
          .num_query_heads = 12,
          .head_dim = 64,
          .num_tokens = 64 * 150 - 17,
          .dtype = DType::kBFloat16};
}

TEST_F(DevicePagesTest, PagesThatAreNotKeptTakeNoPart) {
  auto shape = shape_kept_in_part();
  const auto kept = kept_in_part(shape);
  shape.kept = &kept;
  PagedCache cache(shape, test::clustered_keys(1, 0.7F), 31);
  for (const bool proven : {false, true}) {
    const kernels::CalibratedRule calibrated(0.9);
    const kernels::BoundRule bound(0.9);
    OnCpu cpu(cache, proven ? static_cast<const kernels::PageRule&>(bound) : calibrated);
    for (const int64_t slots : {0, 30}) {
      OnGpu gpu(cache, {.proven = proven, .num_slots = slots});
      for (uint64_t step = 0; step < 4; ++step) {
        for (int32_t layer = 0; layer < 2; ++layer) {
          SCOPED_TRACE(
              fmt::format("proven {} slots {} step {} layer {}", proven, slots, step, layer));
          const auto q = queries(shape, step * 10 + static_cast<uint64_t>(layer), 2);
          const auto next = queries(shape, step * 10 + 1, 2);
          const auto tail = tail_of(shape, step);
          expect_same(gpu.attend(layer, q, tail, layer == 0 ? next : std::vector<float>()),
                      cpu.attend(layer, q, tail), shape.dtype);
        }
      }
      EXPECT_EQ(gpu.stats().from_host == 0, slots == 0);
    }
  }
}

// Where a window of the prompt begins: within the last page, in an earlier page, at a page's
// beginning, at its end, near the prompt's end, after all of the prompt, and after the last page.
std::vector<int64_t> window_beginnings(int64_t num_tokens) {
  return {num_tokens - 1, num_tokens - 37, num_tokens - 64 * 70 - 5, 64 * 120,        64 * 121 - 1,
          int64_t{1},     num_tokens,      num_tokens + 3,           num_tokens + 500};
}

TEST_F(DevicePagesTest, OfAWindowAllTokensTakePartAndNoOthers) {
  auto shape = shape_kept_in_part();
  const auto kept = kept_in_part(shape);
  for (const KeptPages* pages : {static_cast<const KeptPages*>(nullptr), &kept}) {
    shape.kept = pages;
    PagedCache cache(shape, test::clustered_keys(1, 0.7F), 41);
    const kernels::CalibratedRule rule(0.9);
    OnCpu cpu(cache, rule);
    for (const int64_t slots : {0, 30}) {
      OnGpu gpu(cache, {.num_slots = slots});
      uint64_t step = 0;
      for (const int64_t first_token : window_beginnings(shape.num_tokens)) {
        for (int32_t layer = 0; layer < 2; ++layer, ++step) {
          SCOPED_TRACE(fmt::format("from token {}, {} slots, layer {}", first_token, slots, layer));
          const auto q = queries(shape, step, 2);
          const auto tail = tail_of(shape, step);
          expect_same(gpu.attend(layer, q, tail, {}, first_token),
                      cpu.attend(layer, q, tail, first_token), shape.dtype);
          // And a layer that is searched, after one that was not.
          expect_same(gpu.attend(layer, q, tail), cpu.attend(layer, q, tail), shape.dtype);
        }
      }
    }
  }
}

// The sink takes its share of prompt and tail together, and is no part of what is read: the pages
// are the same. One head has no tail.
TEST_F(DevicePagesTest, ASinkTakesItsShareOfPromptAndTail) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const int32_t head_dim : {64, 128}) {
      PagedCache cache({.num_layers = 2,
                        .num_kv_heads = 2,
                        .num_query_heads = 16,
                        .head_dim = head_dim,
                        .num_tokens = 64 * 150 - 17,
                        .dtype = dtype},
                       test::clustered_keys(1, 0.7F), 51);
      const kernels::CalibratedRule rule(0.9);
      OnCpu cpu(cache, rule);
      OnGpu gpu(cache, {.num_slots = 100});
      const std::vector<float> sinks = {0,  4, 9.5F, -3, 1e4F, -1e4F, 12, 8,
                                        -1, 3, 7,    10, 11,   13,    9,  6};
      for (const bool with_sinks : {false, true}) {
        if (with_sinks) {
          cpu.set_sinks(sinks);
          gpu.set_sinks(sinks);
        }
        for (int32_t layer = 0; layer < 2; ++layer) {
          SCOPED_TRACE(fmt::format("{} head_dim {} layer {} sinks {}", dtype_name(dtype), head_dim,
                                   layer, with_sinks));
          const auto q = queries(cache.shape(), static_cast<uint64_t>(layer), 2);
          auto tail = tail_of(cache.shape(), 3);
          tail.lse[7] = -INFINITY;
          expect_same(gpu.attend(layer, q, tail), cpu.attend(layer, q, tail), dtype);
          const int64_t window = cache.shape().num_tokens - 150;
          expect_same(gpu.attend(layer, q, tail, {}, window), cpu.attend(layer, q, tail, window),
                      dtype);
        }
      }
    }
  }
}

// The CPU computes in float32, on what the codes stand for.
TEST_F(DevicePagesTest, PagesInEightBitsAreReadUnderTheirHeadsScales) {
  const KvScales scales(
      {{.k = 0.04F, .v = 3.1F}, {.k = 0.09F, .v = 1}, {.k = 0.7F, .v = 0.01F}, {.k = 1, .v = 0.5F}},
      /*num_heads=*/2);
  for (const DType output : {DType::kBFloat16, DType::kFloat16}) {
    for (const int32_t head_dim : {64, 128, 256}) {
      for (const int32_t group : {1, 3, 8}) {
        if (head_dim == 256 && group > 4) continue;  // refused
        for (const int64_t tokens : {int64_t{1}, int64_t{130}, int64_t{64 * 150 - 17}}) {
          SCOPED_TRACE(fmt::format("{} head_dim {} group {} tokens {}", dtype_name(output),
                                   head_dim, group, tokens));
          PagedCache cache({.num_layers = 2,
                            .num_kv_heads = 2,
                            .num_query_heads = 2 * group,
                            .head_dim = head_dim,
                            .num_tokens = tokens},
                           test::clustered_keys(1, 0.7F), static_cast<uint64_t>(group + tokens),
                           &scales);
          const kernels::CalibratedRule rule(0.9);
          OnCpu cpu(cache, rule);
          const int64_t few = std::min<int64_t>(40, cache.shape().num_pages());
          OnGpu all(cache, {.float8 = &scales, .output = output});
          OnGpu some(cache, {.num_slots = few, .float8 = &scales, .output = output});
          for (uint64_t step = 0; step < 3; ++step) {
            for (int32_t layer = 0; layer < 2; ++layer) {
              const auto q = queries(cache.shape(), step * 10 + static_cast<uint64_t>(layer), 2);
              const auto tail = tail_of(cache.shape(), step);
              const auto expected = cpu.attend(layer, q, tail);
              expect_same(all.attend(layer, q, tail), expected, output);
              expect_same(some.attend(layer, q, tail), expected, output);
              if (tokens < 70) continue;
              expect_same(all.attend(layer, q, tail, {}, tokens - 70),
                          cpu.attend(layer, q, tail, tokens - 70), output);
            }
          }
        }
      }
    }
  }
}

// Slots, foresight and copies change times only: results are equal to the bit.
TEST_F(DevicePagesTest, AnyNumberOfSlotsGivesTheSame) {
  PagedCache cache({.num_layers = 6,
                    .num_kv_heads = 2,
                    .num_query_heads = 8,
                    .head_dim = 128,
                    .num_tokens = 64 * 60 - 9,
                    .dtype = DType::kBFloat16},
                   test::clustered_keys(1, 1), 21);
  for (const bool foresee : {false, true}) {
    OnGpu ample_slots(cache, {.mass = 0.95});
    for (const int64_t slots : {1, 40, 300}) {
      OnGpu few(cache, {.mass = 0.95, .num_slots = slots});
      for (uint64_t step = 0; step < 12; ++step) {
        for (int32_t layer = 0; layer < 6; ++layer) {
          // Steps that resemble each other but change, so that slots are useful.
          const auto q = queries(cache.shape(), step / 3 * 10 + static_cast<uint64_t>(layer), 2);
          const auto next =
              queries(cache.shape(), step / 3 * 10 + static_cast<uint64_t>(layer) + 1, 2);
          const auto tail = tail_of(cache.shape(), step);
          const auto expected = ample_slots.attend(layer, q, tail);
          const auto attended =
              few.attend(layer, q, tail, foresee && layer < 5 ? next : std::vector<float>());
          ASSERT_EQ(attended.pages, expected.pages) << slots << " slots, step " << step;
          ASSERT_EQ(attended.out, expected.out) << slots << " slots, step " << step;
          ASSERT_EQ(attended.lse, expected.lse);
        }
      }
      const auto stats = few.stats();
      EXPECT_GT(stats.copied, 0);
      EXPECT_GT(stats.from_host, 0);
      if (slots == 300) {
        EXPECT_LT(stats.from_host, stats.pages_read + stats.pages_spared);
      }
      EXPECT_EQ(stats.pages_foreseen > 0, foresee);
      EXPECT_EQ(ample_slots.stats().from_host, 0);
    }
  }
}

TEST_F(DevicePagesTest, RefusesShapesThatTheKernelsDoNotTake) {
  const auto device = kernels::make_cuda_device({});
  ASSERT_TRUE(device.ok());
  const kernels::DevicePagesShape good{.num_layers = 1,
                                       .num_kv_heads = 1,
                                       .num_query_heads = 4,
                                       .head_dim = 64,
                                       .num_tokens = 64,
                                       .scale = 1};
  const auto refused = [&](kernels::DevicePagesShape shape, int64_t slots) {
    return kernels::make_cuda_device_pages(**device, nullptr, shape, {.num_slots = slots})
        .error()
        .code;
  };
  auto shape = good;
  shape.head_dim = 96;
  EXPECT_EQ(refused(shape, 1), Errc::kUnsupported);
  shape = good;
  shape.num_query_heads = 16;
  EXPECT_EQ(refused(shape, 1), Errc::kUnsupported);
  shape = good;
  shape.head_dim = 256;
  shape.num_query_heads = 5;
  EXPECT_EQ(refused(shape, 1), Errc::kUnsupported);
  shape = good;
  shape.dtype = DType::kFloat32;
  EXPECT_EQ(refused(shape, 1), Errc::kUnsupported);
  EXPECT_EQ(refused(good, 2), Errc::kInvalidArgument);
  const KeptPages none(1, 1, 1);
  shape = good;
  shape.kept = &none;
  EXPECT_EQ(refused(shape, 1), Errc::kInvalidArgument);
}

}  // namespace
}  // namespace millrace::decode
