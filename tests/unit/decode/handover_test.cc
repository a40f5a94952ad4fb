// What a decode node gets is what the prefill ranks hold: byte for byte, over every transport, for
// any tensor-parallel degree on either side, from every tier.

#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <fstream>

#include "comm/local/local_transport.h"
#include "comm/ucx/ucx_transport.h"
#include "decode/decode_node.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/unit/decode/served_prompt.h"
#include "tests/unit/worker/rank_threads.h"
#include "worker/batch_job.h"

namespace millrace::decode {
namespace {

using test::kTinyPageBytes;
using test::ServedPrompt;

// Only a bug reaches it.
Deadline ample() {
  return Deadline::after(std::chrono::seconds(60));
}

struct Setting {
  std::string name;
  std::string reported_transport;
  std::function<Result<std::unique_ptr<comm::Transport>>()> make_transport;
  worker::GridShape prefill;
  int decode_tp;
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

std::vector<Setting> settings() {
  const auto shm = [] { return make_ucx(comm::UcxTransports::kSharedMemory); };
  const auto tcp = [] { return make_ucx(comm::UcxTransports::kTcp); };
  return {{"LocalTp2Cp2ToTp1", "local", make_local, {2, 2}, 1},
          {"LocalTp1Cp2ToTp2", "local", make_local, {1, 2}, 2},
          {"ShmTp2Cp2ToTp1", "shm", shm, {2, 2}, 1},
          {"ShmTp1Cp2ToTp2", "shm", shm, {1, 2}, 2},
          {"TcpTp2Cp2ToTp1", "tcp", tcp, {2, 2}, 1},
          {"TcpTp1Cp2ToTp2", "tcp", tcp, {1, 2}, 2}};
}

// What a job of one rank generates for the prompt, without any store, server or client.
std::vector<int32_t> batch_tokens(const std::string& model_directory,
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
    auto runtime =
        worker::RankRuntime::create(std::move(world), test::rank_options(model_directory, {1, 1}));
    worker::BatchJob job((*runtime)->engine(), (*runtime)->device(), (*runtime)->weights(),
                         (*runtime)->grid(), (*runtime)->limits(), options);
    MR_CHECK(job.run().ok(), "the reference job failed");
  });
  std::ifstream results(options.output_directory + "/results.jsonl");
  std::string line;
  std::getline(results, line);
  return json::value_to<std::vector<int32_t>>(json::parse(line).at("generated_token_ids"));
}

// The model is the same for all tests: random, written once.
class ModelOnDisk : public testing::Environment {
 public:
  void SetUp() override {
    directory_ = std::make_unique<test::TempDirectory>();
    test::write_random_checkpoint(test::tiny_model_config(), DType::kFloat32, 11,
                                  directory_->path());
  }
  void TearDown() override { directory_.reset(); }
  const std::string& path() const { return directory_->path(); }

 private:
  std::unique_ptr<test::TempDirectory> directory_;
};
auto* const model_on_disk =
    static_cast<ModelOnDisk*>(testing::AddGlobalTestEnvironment(new ModelOnDisk));

class HandoverTest : public testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    auto transport = GetParam().make_transport();
    ASSERT_TRUE(transport.ok()) << transport.error().to_string();
    transport_ = std::move(*transport);
    served_ = std::make_unique<ServedPrompt>(
        *transport_, Clock::steady(),
        ServedPrompt::Options{.model_directory = model_on_disk->path(),
                              .grid = GetParam().prefill,
                              .tokens = tokens_});
  }

  // 12 pages, the last one partial, over 6 stripes a cp rank.
  const std::vector<int32_t> tokens_ = test::random_tokens(715, 101);
  std::unique_ptr<comm::Transport> transport_;
  std::unique_ptr<ServedPrompt> served_;
};

TEST_P(HandoverTest, EveryPageArrivesByteForByteFromEveryTier) {
  ASSERT_TRUE(check_manifest(served_->manifest()).ok());
  KvClient client(*transport_, served_->manifest(), {.pages_per_request = 5});
  ASSERT_EQ(client.num_pages(), 12);
  ASSERT_EQ(client.page_bytes(), kTinyPageBytes);
  std::vector<std::byte> pages(static_cast<size_t>(12 * kTinyPageBytes));
  for (int32_t layer = 0; layer < served_->config().num_layers; ++layer) {
    for (int32_t head = 0; head < served_->config().num_kv_heads; ++head) {
      const auto pulled = client.pull(layer, head, 0, 12, pages, ample());
      ASSERT_TRUE(pulled.ok()) << pulled.error().to_string();
      ASSERT_EQ(pulled->size(), 12u);
      for (int64_t page = 0; page < 12; ++page) {
        const auto expected = served_->expected_page(layer, head, page);
        EXPECT_TRUE(std::equal(expected.begin(), expected.end(),
                               pages.begin() + static_cast<ptrdiff_t>(page * kTinyPageBytes)))
            << "layer " << layer << ", kv head " << head << ", page " << page;
      }
    }
  }
  const auto& stats = client.stats();
  EXPECT_EQ(stats.pages, 2 * 4 * 12);
  EXPECT_EQ(stats.bytes, stats.pages * kTinyPageBytes);
  EXPECT_EQ(stats.corrupt_pages, 0);
  EXPECT_EQ(stats.bytes_by_transport,
            (std::map<std::string, int64_t>{{GetParam().reported_transport, stats.bytes}}));
  for (int tier = 0; tier < 3; ++tier) {
    EXPECT_GT(stats.pages_by_tier[tier], 0) << "tier " << tier;
    EXPECT_EQ(stats.pages_by_tier[tier],
              static_cast<int64_t>(served_->manifest().tiers(tier).pages()));
  }
}

TEST_P(HandoverTest, DecodeNodeGeneratesWhatABatchJobOfOneRankGenerates) {
  const auto report = decode(*transport_, served_->manifest(),
                             {.model_directory = model_on_disk->path(),
                              .tp = GetParam().decode_tp,
                              .max_tokens = 6,
                              .timeout = std::chrono::seconds(60)});
  ASSERT_TRUE(report.ok()) << report.error().to_string();
  EXPECT_EQ(report->token_ids, batch_tokens(model_on_disk->path(), tokens_, 6));
  // Each kv head is pulled once, whatever the degree.
  EXPECT_EQ(report->pulled.pages, 2 * 4 * 12);
}

TEST_P(HandoverTest, AnyRangeOfPagesArrivesInOrder) {
  KvClient client(*transport_, served_->manifest(), {});
  for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 1}, {3, 6}, {11, 1}, {4, 0}}) {
    std::vector<std::byte> pages(static_cast<size_t>(count * kTinyPageBytes));
    const auto pulled = client.pull(1, 2, first, count, pages, ample());
    ASSERT_TRUE(pulled.ok()) << pulled.error().to_string();
    for (int64_t i = 0; i < count; ++i) {
      const auto expected = served_->expected_page(1, 2, first + i);
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(),
                             pages.begin() + static_cast<ptrdiff_t>(i * kTinyPageBytes)))
          << "page " << first + i;
    }
  }
}

TEST_P(HandoverTest, DigestsBoundThePagesTheyCameWith) {
  KvClient client(*transport_, served_->manifest(), {});
  const int32_t head_dim = served_->config().head_dim;
  for (int32_t head = 0; head < served_->config().num_kv_heads; ++head) {
    const auto digests = client.pull_digests(1, head, 0, 12, ample());
    ASSERT_TRUE(digests.ok()) << digests.error().to_string();
    ASSERT_EQ(digests->size(), static_cast<size_t>(12 * 3 * head_dim));
    for (int64_t page = 0; page < 12; ++page) {
      const auto bytes = served_->expected_page(1, head, page);
      const auto* k = reinterpret_cast<const float*>(bytes.data());
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

INSTANTIATE_TEST_SUITE_P(Transports, HandoverTest, testing::ValuesIn(settings()),
                         [](const auto& setting) { return setting.param.name; });

}  // namespace
}  // namespace millrace::decode
