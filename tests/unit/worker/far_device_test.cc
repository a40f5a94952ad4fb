// The whole engine on a device whose memory the host cannot touch, with collectives that run beside
// its operations, gives, bit for bit, what it gives on the same device in host memory.

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <tuple>

#include "common/clock.h"
#include "kernels/cpu/cpu_device.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/far_device.h"
#include "tests/support/temp_directory.h"
#include "tests/unit/worker/late_communicator.h"
#include "tests/unit/worker/rank_threads.h"
#include "worker/batch_job.h"
#include "worker/crossover.h"
#include "worker/device_tier.h"
#include "worker/store_sink.h"

namespace millrace::worker {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

constexpr auto kTimeout = std::chrono::seconds(60);
constexpr int kPromptTokens = 715;

std::unique_ptr<kernels::Device> make_device(bool far) {
  auto device = kernels::make_cpu_device({.num_threads = 1});
  if (far) return std::make_unique<test::FarDevice>(std::move(device));
  return device;
}

DeviceGroups make_groups(kernels::Device& device, const RankGrid& grid, bool far) {
  auto groups = make_device_groups(device, grid, /*own_gpu=*/false, Deadline::after(kTimeout));
  MR_CHECK(groups.ok(), "{}", groups.error().to_string());
  return far ? test::late(device, std::move(*groups)) : std::move(*groups);
}

// What RankRuntime is, on a device of the test's choice.
struct Rank {
  Rank(const std::string& model, GridShape shape, std::unique_ptr<comm::Communicator> world,
       bool far)
      : grid(must(RankGrid::create(std::move(world), shape, Deadline::after(kTimeout)))),
        device(make_device(far)),
        weights(must(
            model::load_model_weights(model, grid.tensor_parallel(), DType::kFloat32, *device))),
        engine(must(Engine::create(*device, *weights, grid, make_groups(*device, grid, far),
                                   {.row_tile_tokens = 128, .stripe_tokens = 64}))) {}

  template <typename T>
  static T must(Result<T> result) {
    MR_CHECK(result.ok(), "{}", result.error().to_string());
    return std::move(*result);
  }

  RankGrid grid;
  std::unique_ptr<kernels::Device> device;
  std::unique_ptr<model::ModelWeights> weights;
  Engine engine;
};

json::array prompt_tokens() {
  json::array tokens;
  for (int i = 0; i < kPromptTokens; ++i) tokens.push_back((i * 7 + i / 5) % 101);
  return tokens;
}

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The files of a finished job by name, the times cut out of the results.
std::map<std::string, std::string> job_files(const fs::path& directory) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (entry.is_regular_file()) files[fs::relative(entry, directory)] = read_file(entry);
  }
  auto results = json::parse(files["results.jsonl"]).as_object();
  results.erase("seconds");
  files["results.jsonl"] = json::serialize(results);
  return files;
}

class FarDeviceTest : public testing::TestWithParam<std::tuple<std::string, int, int>> {
 protected:
  void SetUp() override {
    test::write_random_checkpoint(test::tiny_model_config(), DType::kFloat32, 3, model_.path());
    const json::object prompt = {{"id", "p"},
                                 {"prompt_token_ids", prompt_tokens()},
                                 {"max_tokens", 4},
                                 {"probe_positions", {0, 64, 700}}};
    input_ = work_.write("prompts.jsonl", json::serialize(prompt) + "\n");
  }

  // Prefill, generation and the KV files of a batch job.
  std::map<std::string, std::string> run_job(bool far) {
    const GridShape grid = {.tp = std::get<1>(GetParam()), .cp = std::get<2>(GetParam())};
    const BatchOptions options = {.input_path = input_,
                                  .output_directory = work_.file(far ? "far" : "near"),
                                  .head_plan = std::get<0>(GetParam()),
                                  .save_kv = true,
                                  .layer_timeout = kTimeout};
    const PromptLimits limits = {.vocab_size = 101, .max_prompt_tokens = 1000};
    test::run_ranks(grid.tp * grid.cp, [&](std::unique_ptr<comm::Communicator> world) {
      Rank rank(model_.path(), grid, std::move(world), far);
      BatchJob job(rank.engine, *rank.device, *rank.weights, rank.grid, limits, options);
      const auto summary = job.run();
      MR_CHECK(summary.ok(), "{}", summary.error().to_string());
    });
    return job_files(options.output_directory);
  }

  test::TempDirectory model_, work_;
  std::string input_;
};

TEST_P(FarDeviceTest, ABatchJobGivesTheSameTokensLogitsAndKvFiles) {
  const auto near = run_job(/*far=*/false);
  const auto far = run_job(/*far=*/true);
  ASSERT_NE(near.at("results.jsonl").find("\"status\":\"ok\""), std::string::npos)
      << near.at("results.jsonl");
  EXPECT_EQ(near.at("results.jsonl"), far.at("results.jsonl"));
  EXPECT_EQ(near.size(), far.size());
  for (const auto& [name, bytes] : near) EXPECT_TRUE(bytes == far.at(name)) << name;
}

INSTANTIATE_TEST_SUITE_P(
    Plans, FarDeviceTest,
    testing::Values(std::tuple("vertical-slash:64,128", 1, 1),
                    std::tuple("vertical-slash:64,128", 2, 2), std::tuple("adaptive:0.6", 1, 1),
                    std::tuple("adaptive:0.6", 1, 2), std::tuple("block-sparse:4", 2, 1),
                    std::tuple("a-shape:64,128", 1, 3), std::tuple("vertical-slash:64,128", 1, 4),
                    std::tuple("block-sparse:4", 2, 4)),
    [](const auto& job) {
      std::string name = std::get<0>(job.param).substr(0, std::get<0>(job.param).find(':'));
      std::erase(name, '-');
      return fmt::format("{}_tp{}_cp{}", name, std::get<1>(job.param), std::get<2>(job.param));
    });

// Every page of a request, as the store gives it out: bytes, digest and score.
std::vector<std::string> stored_pages(const std::string& model, bool far) {
  std::vector<std::string> pages;
  test::run_ranks(1, [&](std::unique_ptr<comm::Communicator> world) {
    Rank rank(model, {1, 1}, std::move(world), far);
    const auto& config = rank.weights->config;
    const kvstore::KvGeometry geometry{.num_layers = config.num_layers,
                                       .num_kv_heads = config.num_kv_heads,
                                       .head_dim = config.head_dim,
                                       .dtype = DType::kFloat32};
    // Half of the pages fit the device, so both tiers hold some.
    const int64_t half = config.num_layers * config.num_kv_heads * 12 / 2;
    std::unique_ptr<kvstore::SlotMemory> device_memory;
    if (far)
      device_memory = Rank::must(DeviceTier::create(*rank.device, half, geometry.page_bytes()));
    const auto store =
        Rank::must(kvstore::make_kv_store({.device_bytes = half * geometry.page_bytes(),
                                           .host_bytes = 1000 * geometry.page_bytes(),
                                           .geometry = geometry},
                                          Clock::steady(), std::move(device_memory)));
    std::vector<int32_t> tokens;
    for (const auto& token : prompt_tokens())
      tokens.push_back(static_cast<int32_t>(token.as_int64()));
    const auto own_pages = rank.engine.partition(kPromptTokens).pages(0);
    StoreSink sink(*rank.device, *store, "r", geometry, own_pages);
    MR_CHECK(store->begin_request("r", kPromptTokens, own_pages).ok(), "no room");
    const model::HeadPlan plan(config.num_layers, config.num_query_heads, {});
    Rank::must(rank.engine.prefill({.token_ids = tokens, .plan = &plan, .sink = &sink}, kTimeout));
    Rank::must(store->seal("r", "lease", kTimeout));
    for (int32_t layer = 0; layer < config.num_layers; ++layer) {
      for (int32_t head = 0; head < config.num_kv_heads; ++head) {
        const auto pinned =
            Rank::must(store->pin_pages("r", "lease", layer, head, 0, std::ssize(own_pages)));
        for (const auto& page : pinned->pages()) {
          const auto digest = std::as_bytes(page.digest);
          pages.emplace_back(reinterpret_cast<const char*>(page.bytes.data()), page.bytes.size());
          pages.back().append(reinterpret_cast<const char*>(digest.data()), digest.size());
          pages.back() += fmt::format("{} {}", page.score, static_cast<int>(page.tier));
        }
      }
    }
  });
  return pages;
}

TEST(FarDeviceStore, HoldsTheSamePagesDigestsAndScores) {
  test::TempDirectory model;
  test::write_random_checkpoint(test::tiny_model_config(), DType::kFloat32, 3, model.path());
  const auto near = stored_pages(model.path(), /*far=*/false);
  EXPECT_EQ(near.size(), size_t{2 * 4 * 12});
  EXPECT_TRUE(near == stored_pages(model.path(), /*far=*/true));
}

// What a store holds at the end of each layer: layers that the sink calls complete, and layers that
// can be read. Then what it was given in all.
struct StoreProgress {
  std::vector<int32_t> complete, readable;
  StoredBytes stored;
};

StoreProgress store_progress(const std::string& model, bool far) {
  StoreProgress progress;
  test::run_ranks(1, [&](std::unique_ptr<comm::Communicator> world) {
    Rank rank(model, {1, 1}, std::move(world), far);
    const auto& config = rank.weights->config;
    const kvstore::KvGeometry geometry{.num_layers = config.num_layers,
                                       .num_kv_heads = config.num_kv_heads,
                                       .head_dim = config.head_dim};
    const auto store = Rank::must(kvstore::make_kv_store(
        {.host_bytes = 1000 * geometry.page_bytes(), .geometry = geometry}, Clock::steady()));
    std::vector<int32_t> tokens;
    for (const auto& token : prompt_tokens())
      tokens.push_back(static_cast<int32_t>(token.as_int64()));
    const auto pages = rank.engine.partition(kPromptTokens).pages(0);
    StoreSink sink(*rank.device, *store, "r", geometry, pages, /*num_threads=*/2);
    MR_CHECK(store->begin_request("r", kPromptTokens, pages).ok(), "no room");
    MR_CHECK(store->open("r", "lease").ok(), "not opened");
    const auto look = [&] {
      progress.complete.push_back(sink.num_complete());
      int32_t& readable = progress.readable.emplace_back();
      while (readable < config.num_layers &&
             store->pin_pages("r", "lease", readable, 0, 0, std::ssize(pages)).ok()) {
        ++readable;
      }
    };
    const model::HeadPlan plan(config.num_layers, config.num_query_heads, {});
    Rank::must(rank.engine.prefill({.token_ids = tokens,
                                    .plan = &plan,
                                    .sink = &sink,
                                    .at_boundary =
                                        [&](const LayerReport&) {
                                          look();
                                          return Result<void>();
                                        }},
                                   kTimeout));
    look();
    progress.stored = sink.stored();
  });
  return progress;
}

TEST(FarDeviceStore, IsALayerBehindAndWhatItCallsCompleteIsWhatCanBeRead) {
  test::TempDirectory model;
  test::write_random_checkpoint(test::tiny_model_config(), DType::kFloat32, 3, model.path());
  const auto near = store_progress(model.path(), /*far=*/false);
  EXPECT_EQ(near.complete, (std::vector<int32_t>{1, 2, 2}));
  EXPECT_EQ(near.readable, near.complete);
  const auto far = store_progress(model.path(), /*far=*/true);
  EXPECT_EQ(far.complete, (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(far.readable, far.complete);
}

TEST(FarDeviceStore, CountsWhatIsWrittenAndHowMuchOfItWhileALaterLayerWasComputed) {
  test::TempDirectory model;
  test::write_random_checkpoint(test::tiny_model_config(), DType::kFloat32, 3, model.path());
  // Pages of 64 tokens and 16 dimensions, K and V; 12 of each of 2 layers and 4 heads.
  const int64_t layer_bytes = int64_t{12} * 4 * 2 * 64 * 16 * 4;
  const auto near = store_progress(model.path(), /*far=*/false);
  EXPECT_EQ(near.stored.total, 2 * layer_bytes);
  EXPECT_EQ(near.stored.while_computing, 0);
  const auto far = store_progress(model.path(), /*far=*/true);
  EXPECT_EQ(far.stored.total, 2 * layer_bytes);
  EXPECT_LE(far.stored.while_computing, layer_bytes);  // never of the last layer
}

std::vector<int32_t> token_ids() {
  std::vector<int32_t> tokens;
  for (const auto& token : prompt_tokens())
    tokens.push_back(static_cast<int32_t>(token.as_int64()));
  return tokens;
}

// The second failure is that of the wait for what a request that ends has left on its way.
TEST(FarDeviceEngine, TheFirstFailureOfADeviceIsTheOneItEndsWith) {
  test::TempDirectory model;
  test::write_random_checkpoint(test::tiny_model_config(), DType::kFloat32, 3, model.path());
  for (const int num_operations : {0, 10, 50}) {
    test::run_ranks(1, [&](std::unique_ptr<comm::Communicator> world) {
      Rank rank(model.path(), {1, 1}, std::move(world), /*far=*/true);
      const auto& config = rank.weights->config;
      const model::HeadPlan plan(config.num_layers, config.num_query_heads, {});
      dynamic_cast<test::FarDevice&>(*rank.device).break_after(num_operations);
      std::string failure;
      try {
        (void)rank.engine.prefill({.token_ids = token_ids(), .plan = &plan}, kTimeout);
      } catch (const std::runtime_error& e) {
        failure = e.what();
      }
      EXPECT_EQ(failure, "failure 1");
    });
  }
}

TEST(FarDeviceCrossover, IsMeasured) {
  test::TempDirectory model;
  test::write_random_checkpoint(test::tiny_model_config(), DType::kFloat32, 3, model.path());
  test::run_ranks(1, [&](std::unique_ptr<comm::Communicator> world) {
    const Rank rank(model.path(), {1, 1}, std::move(world), /*far=*/true);
    EXPECT_TRUE(measure_crossover(*rank.device, *rank.weights).ok());
  });
}

}  // namespace
}  // namespace millrace::worker
