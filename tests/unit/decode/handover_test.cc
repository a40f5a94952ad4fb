// SPDX-License-Identifier: Apache-2.0
// A decode node gets what the prefill ranks hold: byte for byte, over every transport, for any
// tensor-parallel degree on either side, in every dtype, from every tier.

#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <span>

#include "comm/local/local_transport.h"
#include "comm/tcp/tcp_transport.h"
#include "comm/ucx/ucx_transport.h"
#include "decode/decode_node.h"
#include "kvclient/kv_client.h"
#include "kvclient/manifest/manifest_proto.h"
#include "model/checkpoint/element_conversion.h"
#include "model/weights.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/unit/decode/served_prompt.h"
#include "tests/unit/engine/ranks/rank_threads.h"
#include "worker/batch/batch_job.h"

namespace millrace::decode {
namespace {

using test::ServedPrompt;

// Only a bug reaches it.
Deadline ample() {
  return Deadline::after(std::chrono::seconds(60));
}

struct Setting {
  std::string name;
  std::string reported_transport;
  std::function<Result<std::unique_ptr<comm::Transport>>()> make_transport;
  engine::GridShape prefill;
  int decode_tp = 1;
  DType dtype = DType::kFloat32;
  int32_t num_kv_heads = 4;
  std::optional<DType> cache_dtype = {};  // where the pages are of another

  DType page_dtype() const { return cache_dtype.value_or(dtype); }
};

void PrintTo(const Setting& setting, std::ostream* out) {
  *out << setting.name;
}

Result<std::unique_ptr<comm::Transport>> make_local() {
  return std::unique_ptr<comm::Transport>(std::make_unique<comm::LocalTransport>());
}

Result<std::unique_ptr<comm::Transport>> make_ucx(comm::UcxTransports transports) {
  MR_ASSIGN_OR_RETURN(auto transport, comm::UcxTransport::create({.transports = transports}));
  return std::unique_ptr<comm::Transport>(std::move(transport));
}

Result<std::unique_ptr<comm::Transport>> make_shm() {
  return make_ucx(comm::UcxTransports::kSharedMemory);
}

Result<std::unique_ptr<comm::Transport>> make_ucx_tcp() {
  return make_ucx(comm::UcxTransports::kTcp);
}

Result<std::unique_ptr<comm::Transport>> make_tcp() {
  return std::unique_ptr<comm::Transport>(
      std::make_unique<comm::TcpTransport>(comm::TcpOptions{.server_threads = 2}));
}

// The two settings with 2 kv heads on 4 ranks replicate each head, in prefill and in decoding.
std::vector<Setting> float32_settings() {
  return {{"LocalTp2Cp2ToTp1", "local", make_local, {2, 2}, 1},
          {"LocalTp1Cp2ToTp2", "local", make_local, {1, 2}, 2},
          {"ShmTp2Cp2ToTp1", "shm", make_shm, {2, 2}, 1},
          {"ShmTp1Cp2ToTp2", "shm", make_shm, {1, 2}, 2},
          {"TcpTp2Cp2ToTp1", "tcp", make_tcp, {2, 2}, 1},
          {"TcpTp1Cp2ToTp2", "tcp", make_tcp, {1, 2}, 2},
          {"UcxTcpTp2Cp2ToTp1", "tcp", make_ucx_tcp, {2, 2}, 1},
          {"ReplicasTp4Cp2ToTp1", "local", make_local, {4, 2}, 1, DType::kFloat32, 2},
          {"ReplicasTp1Cp2ToTp4", "local", make_local, {1, 2}, 4, DType::kFloat32, 2}};
}

std::vector<Setting> bfloat16_settings() {
  return {{"Bfloat16LocalTp2Cp2", "local", make_local, {2, 2}, 1, DType::kBFloat16},
          {"Bfloat16ShmTp1Cp2", "shm", make_shm, {1, 2}, 1, DType::kBFloat16},
          {"Bfloat16TcpTp2Cp2", "tcp", make_tcp, {2, 2}, 1, DType::kBFloat16},
          {"Bfloat16ReplicasTp4Cp2", "local", make_local, {4, 2}, 1, DType::kBFloat16, 2}};
}

// Only a GPU computes in float16, so these pages are rounded float32 pages.
std::vector<Setting> float16_settings() {
  return {
      {"Float16LocalTp2Cp2ToTp1",
       "local",
       make_local,
       {2, 2},
       1,
       DType::kFloat32,
       4,
       DType::kFloat16},
      {"Float16TcpTp1Cp2ToTp2", "tcp", make_tcp, {1, 2}, 2, DType::kFloat32, 4, DType::kFloat16}};
}

std::vector<Setting> all_settings() {
  auto settings = float32_settings();
  for (auto& setting : bfloat16_settings()) settings.push_back(std::move(setting));
  for (auto& setting : float16_settings()) settings.push_back(std::move(setting));
  return settings;
}

// Settings in which both sides do the arithmetic of a job of one rank, up to float32's rounding. In
// bfloat16 another grid may choose another token, so there the grid is also one rank. Rounding a
// cache to float16 changes less than the difference between this model's best two tokens.
std::vector<Setting> generating_settings() {
  auto settings = float32_settings();
  for (auto& setting : float16_settings()) settings.push_back(std::move(setting));
  settings.push_back({"Bfloat16OneRank", "local", make_local, {1, 1}, 1, DType::kBFloat16});
  return settings;
}

// What a job of one rank generates for the prompt, without any store, server or client.
std::vector<int32_t> batch_tokens(const std::string& model_directory, DType dtype,
                                  const std::vector<int32_t>& tokens, int32_t max_tokens) {
  namespace json = boost::json;
  const test::TempDirectory work;
  const json::object prompt = {
      {"id", "prompt"}, {"prompt_token_ids", json::value_from(tokens)}, {"max_tokens", max_tokens}};
  const worker::BatchOptions options{.input_path = work.write("in", json::serialize(prompt) + "\n"),
                                     .output_directory = work.file("out"),
                                     .head_plan = "dense",
                                     .layer_timeout = std::chrono::seconds(60)};
  test::run_ranks(1, [&](std::unique_ptr<comm::Communicator> world) {
    auto rank = test::rank_options(model_directory, {1, 1});
    rank.compute_dtype = dtype;
    auto runtime = engine::RankRuntime::create(std::move(world), rank);
    worker::BatchJob job(worker::batch_resources(**runtime), options);
    MR_CHECK(job.run().ok(), "the reference job failed");
  });
  std::ifstream results(options.output_directory + "/results.jsonl");
  std::string line;
  std::getline(results, line);
  return json::value_to<std::vector<int32_t>>(json::parse(line).at("generated_token_ids"));
}

// All tests share the same random models. They are written once, one for each number of kv heads.
class ModelsOnDisk : public testing::Environment {
 public:
  void SetUp() override {
    for (const int32_t num_kv_heads : {2, 4}) {
      auto directory = std::make_unique<test::TempDirectory>();
      auto config = test::tiny_model_config();
      config.num_kv_heads = num_kv_heads;
      test::write_random_checkpoint(config, DType::kFloat32, 11, directory->path());
      directories_[num_kv_heads] = std::move(directory);
    }
  }
  void TearDown() override { directories_.clear(); }
  const std::string& path(int32_t num_kv_heads) const {
    return directories_.at(num_kv_heads)->path();
  }

 private:
  std::map<int32_t, std::unique_ptr<test::TempDirectory>> directories_;
};
auto* const models_on_disk =
    static_cast<ModelsOnDisk*>(testing::AddGlobalTestEnvironment(new ModelsOnDisk));

class HandoverTest : public testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    auto transport = GetParam().make_transport();
    ASSERT_TRUE(transport.ok()) << transport.error().to_string();
    transport_ = std::move(*transport);
    served_ = std::make_unique<ServedPrompt>(
        *transport_, Clock::steady(),
        ServedPrompt::Options{.model_directory = model_directory(),
                              .grid = GetParam().prefill,
                              .tokens = tokens_,
                              .compute_dtype = GetParam().dtype,
                              .cache_dtype = GetParam().cache_dtype});
  }

  static const std::string& model_directory() {
    return models_on_disk->path(GetParam().num_kv_heads);
  }
  static int64_t page_bytes() {
    return int64_t{2} * 64 * 16 * dtype_bytes(GetParam().page_dtype());
  }
  kvclient::Manifest manifest() const { return kvclient::from_protocol(served_->manifest()); }
  // `bytes`: the pulled pages [first, ...) of one layer and kv head.
  void expect_pages(int32_t layer, int32_t head, int64_t first,
                    const std::vector<std::byte>& bytes) const {
    for (auto at = bytes.begin(); at != bytes.end(); at += page_bytes(), ++first) {
      const auto expected = served_->expected_page(layer, head, first);
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), at))
          << "layer " << layer << ", kv head " << head << ", page " << first;
    }
  }

  // 12 pages, the last one partial, over 6 stripes a cp rank.
  const std::vector<int32_t> tokens_ = test::random_tokens(715, 101);
  std::unique_ptr<comm::Transport> transport_;
  std::unique_ptr<ServedPrompt> served_;
};

class GenerationTest : public HandoverTest {};

TEST_P(HandoverTest, EveryPageArrivesByteForByteFromEveryTier) {
  const auto checked = kvclient::check_manifest(manifest());
  ASSERT_TRUE(checked.ok()) << checked.error().to_string();
  EXPECT_EQ(served_->manifest().layout().dtype(), dtype_name(GetParam().page_dtype()));
  kvclient::KvClient client(*transport_, manifest(), {.pages_per_request = 5});
  ASSERT_EQ(client.num_pages(), 12);
  ASSERT_EQ(client.page_bytes(), page_bytes());
  std::vector<std::byte> pages(static_cast<size_t>(12 * page_bytes()));
  for (int32_t layer = 0; layer < 2; ++layer) {
    for (int32_t head = 0; head < GetParam().num_kv_heads; ++head) {
      const auto pulled = client.pull(layer, head, 0, 12, pages, ample());
      ASSERT_TRUE(pulled.ok()) << pulled.error().to_string();
      ASSERT_EQ(pulled->size(), 12u);
      expect_pages(layer, head, 0, pages);
    }
  }
  const auto& stats = client.stats();
  EXPECT_EQ(stats.pages, 2 * GetParam().num_kv_heads * 12);
  EXPECT_EQ(stats.bytes, stats.pages * page_bytes());
  EXPECT_EQ(stats.corrupt_pages, 0);
  EXPECT_EQ(stats.bytes_by_transport,
            (std::map<std::string, int64_t>{{GetParam().reported_transport, stats.bytes}}));
  for (const Tier tier : kTiers) {
    EXPECT_GT(stats.pages_by_tier[tier], 0) << tier_name(tier);
    EXPECT_EQ(stats.pages_by_tier[tier],
              static_cast<int64_t>(served_->manifest().tiers(static_cast<int>(tier)).pages()));
  }
}

TEST_P(GenerationTest, DecodeNodeGeneratesWhatABatchJobOfOneRankGenerates) {
  const int decode_tp = GetParam().decode_tp;
  const auto report = decode(*transport_, manifest(),
                             {.model_directory = model_directory(),
                              .tp = decode_tp,
                              .max_tokens = 6,
                              .timeout = std::chrono::seconds(60)});
  ASSERT_TRUE(report.ok()) << report.error().to_string();
  EXPECT_EQ(report->token_ids, batch_tokens(model_directory(), GetParam().dtype, tokens_, 6));
  // Each kv head is pulled once, or by each rank that holds a replica of it.
  EXPECT_EQ(report->pulled.pages, 2 * std::max(GetParam().num_kv_heads, decode_tp) * 12);
}

// Whatever dtype the cache turns out to have.
TEST_P(GenerationTest, TheModelIsLoadedBeforeTheNodeHearsOfACache) {
  const auto feed = std::make_shared<kvclient::HandoverFeed>();
  int times = 0;
  DecodeOptions options{.model_directory = model_directory(),
                        .tp = GetParam().decode_tp,
                        .max_tokens = 6,
                        .timeout = std::chrono::seconds(60)};
  options.on_loaded = [&] {
    ++times;
    feed->take("done", test::event_of(manifest()));
  };
  const auto report = decode(*transport_, feed, options);
  ASSERT_TRUE(report.ok()) << report.error().to_string();
  EXPECT_EQ(times, 1);
  EXPECT_EQ(report->token_ids, batch_tokens(model_directory(), GetParam().dtype, tokens_, 6));
}

TEST_P(GenerationTest, AModelIsLoadedOnceForACacheOfAKnownType) {
  for (const auto known : {std::optional<DType>(), std::optional(GetParam().page_dtype())}) {
    const auto feed = std::make_shared<kvclient::HandoverFeed>();
    DecodeOptions options{.model_directory = model_directory(),
                          .tp = GetParam().decode_tp,
                          .max_tokens = 2,
                          .cache_dtype = known,
                          .timeout = std::chrono::seconds(60)};
    options.on_loaded = [&] { feed->take("done", test::event_of(manifest())); };
    const auto report = decode(*transport_, feed, options);
    ASSERT_TRUE(report.ok()) << report.error().to_string();
    const auto stored = model::stored_dtype(model_directory());
    ASSERT_TRUE(stored.ok()) << stored.error().to_string();
    EXPECT_EQ(report->model_loads, known || GetParam().dtype == *stored ? 1 : 2);
  }
}

TEST_P(GenerationTest, InOrderOfCriticalityTheSameCacheArrives) {
  const auto run = [&](kvclient::PullOrder order) {
    auto report = decode(*transport_, manifest(),
                         {.model_directory = model_directory(),
                          .tp = GetParam().decode_tp,
                          .max_tokens = 2,
                          .client = {.pages_per_request = 2},
                          .order = order,
                          .timeout = std::chrono::seconds(60)});
    MR_CHECK(report.ok(), "{}", report.error().to_string());
    return *report;
  };
  const auto by_position = run(kvclient::PullOrder::kPosition);
  const auto hot_first = run(kvclient::PullOrder::kCriticality);
  EXPECT_EQ(hot_first.cache_checksums, by_position.cache_checksums);
  EXPECT_EQ(hot_first.token_ids, by_position.token_ids);
  EXPECT_EQ(hot_first.pulled.pages, by_position.pulled.pages);
  EXPECT_GT(hot_first.pulled.hot_pages, 0);
  EXPECT_EQ(hot_first.pulled.hot_pages, hot_first.pulled.hot_pages_total);
}

// The decode node's own copy of the model says which tokens end a text.
TEST_P(GenerationTest, DecodeNodeEndsWithTheTextUnlessItIsToldNotTo) {
  namespace fs = std::filesystem;
  const auto all = batch_tokens(model_directory(), GetParam().dtype, tokens_, 6);
  const test::TempDirectory model;
  for (const auto& entry : fs::directory_iterator(model_directory())) {
    fs::create_symlink(entry.path(), model.file(entry.path().filename().string()));
  }
  model.write("generation_config.json", fmt::format(R"({{"eos_token_id": {}}})", all[2]));
  for (const bool ignore_eos : {false, true}) {
    const auto report = decode(*transport_, manifest(),
                               {.model_directory = model.path(),
                                .tp = GetParam().decode_tp,
                                .max_tokens = 6,
                                .ignore_eos = ignore_eos,
                                .timeout = std::chrono::seconds(60)});
    ASSERT_TRUE(report.ok()) << report.error().to_string();
    const auto end = std::find(all.begin(), all.end(), all[2]) + 1;
    EXPECT_EQ(report->token_ids, ignore_eos ? all : std::vector(all.begin(), end));
    EXPECT_EQ(report->finish_reason, ignore_eos ? "length" : "stop");
  }
}

TEST_P(HandoverTest, AnyRangeOfPagesArrivesInOrder) {
  kvclient::KvClient client(*transport_, manifest(), {});
  for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 1}, {3, 6}, {11, 1}, {4, 0}}) {
    std::vector<std::byte> pages(static_cast<size_t>(count * page_bytes()));
    const auto pulled = client.pull(1, 1, first, count, pages, ample());
    ASSERT_TRUE(pulled.ok()) << pulled.error().to_string();
    expect_pages(1, 1, first, pages);
  }
}

// Row-major elements of a page half, whatever their dtype.
std::vector<float> to_floats(std::span<const std::byte> bytes, DType dtype) {
  std::vector<float> values(bytes.size() / static_cast<size_t>(dtype_bytes(dtype)));
  model::convert_elements(bytes.data(), dtype, std::ssize(values), values.data(), DType::kFloat32);
  return values;
}

TEST_P(HandoverTest, DigestsBoundThePagesTheyCameWith) {
  kvclient::KvClient client(*transport_, manifest(), {});
  const int32_t head_dim = served_->config().head_dim;
  for (int32_t head = 0; head < served_->config().num_kv_heads; ++head) {
    const auto digests = client.pull_digests(1, head, 0, 12, ample());
    ASSERT_TRUE(digests.ok()) << digests.error().to_string();
    ASSERT_EQ(digests->size(), static_cast<size_t>(12 * 3 * head_dim));
    for (int64_t page = 0; page < 12; ++page) {
      const auto bytes = served_->expected_page(1, head, page);
      const auto k = to_floats(std::span(bytes).first(bytes.size() / 2), GetParam().page_dtype());
      const int64_t rows = std::min<int64_t>(64, served_->num_tokens() - 64 * page);
      for (int32_t d = 0; d < head_dim; ++d) {
        float low = k[d], high = k[d];
        for (int64_t row = 1; row < rows; ++row) {
          low = std::min(low, k[row * head_dim + d]);
          high = std::max(high, k[row * head_dim + d]);
        }
        double radius = 0;
        for (int64_t row = 0; row < rows; ++row) {
          radius += std::abs(k[row * head_dim + d] - (double{low} + high) / 2);
        }
        radius /= static_cast<double>(rows);
        const auto* digest = digests->data() + page * 3 * head_dim + d;
        ASSERT_EQ(digest[0], low) << "page " << page << ", dimension " << d;
        ASSERT_EQ(digest[head_dim], high);
        // A float32 sum of 64 terms of about 1: at most 64 roundings of 2^-24 each.
        ASSERT_NEAR(digest[2 * head_dim], radius, 1e-5);
      }
    }
  }
}

// On every grid, each rank has the scores of its own pages, as shares of the whole prompt's mass.
TEST_P(HandoverTest, ScoresOfAllRanksSumToOneAndAreThoseThatPagesCarry) {
  kvclient::KvClient client(*transport_, manifest(), {});
  const int32_t num_kv_heads = served_->config().num_kv_heads;
  const auto scores = client.pull_scores(0, 2, 0, num_kv_heads, ample());
  ASSERT_TRUE(scores.ok()) << scores.error().to_string();
  ASSERT_EQ(scores->size(), static_cast<size_t>(2 * num_kv_heads * 12));
  std::vector<std::byte> bytes(static_cast<size_t>(12 * page_bytes()));
  for (int32_t layer = 0; layer < 2; ++layer) {
    for (int32_t head = 0; head < num_kv_heads; ++head) {
      const float* row = scores->data() + (layer * num_kv_heads + head) * 12;
      // exp() and sums of float32 over 715 keys and 64 rows, or of bfloat16 products.
      EXPECT_NEAR(std::accumulate(row, row + 12, 0.0), 1, 1e-2) << layer << " " << head;
      const auto pages = client.pull(layer, head, 0, 12, bytes, ample());
      ASSERT_TRUE(pages.ok());
      for (size_t page = 0; page < 12; ++page) EXPECT_EQ(row[page], (*pages)[page].score);
    }
  }
}

std::string name_of(const testing::TestParamInfo<Setting>& setting) {
  return setting.param.name;
}
INSTANTIATE_TEST_SUITE_P(Settings, HandoverTest, testing::ValuesIn(all_settings()), name_of);
INSTANTIATE_TEST_SUITE_P(Settings, GenerationTest, testing::ValuesIn(generating_settings()),
                         name_of);

}  // namespace
}  // namespace millrace::decode
