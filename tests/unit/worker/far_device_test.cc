// The whole engine on a device whose memory the host cannot touch and that is always behind, with
// collectives that run beside its operations, gives, bit for bit, what it gives on the same device
// in host memory.

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

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

// `late`: collectives run beside the operations of a far device; else they are done when called, as
// with ranks that share a GPU.
DeviceGroups make_groups(kernels::Device& device, const RankGrid& grid, bool late) {
  auto groups = make_device_groups(device, grid, /*own_gpu=*/false, Deadline::after(kTimeout));
  MR_CHECK(groups.ok(), "{}", groups.error().to_string());
  return late ? test::late(device, std::move(*groups)) : std::move(*groups);
}

// What RankRuntime is, on a device of the test's choice.
struct Rank {
  Rank(const std::string& model, GridShape shape, std::unique_ptr<comm::Communicator> world,
       bool far)
      : Rank(model, shape, std::move(world), far, /*late=*/far) {}
  Rank(const std::string& model, GridShape shape, std::unique_ptr<comm::Communicator> world,
       bool far, bool late)
      : grid(must(RankGrid::create(std::move(world), shape, Deadline::after(kTimeout)))),
        device(make_device(far)),
        weights(must(
            model::load_model_weights(model, grid.tensor_parallel(), DType::kFloat32, *device))),
        engine(must(Engine::create(*device, *weights, grid, make_groups(*device, grid, late),
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

// Four layers: what is taken in turn by layers has been taken again.
void write_model(const fs::path& directory) {
  auto config = test::tiny_model_config();
  config.num_layers = 4;
  test::write_random_checkpoint(config, DType::kFloat32, 3, directory);
}

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
    write_model(model_.path());
    const json::object prompt = {{"id", "p"},
                                 {"prompt_token_ids", prompt_tokens()},
                                 {"max_tokens", 4},
                                 {"probe_positions", {0, 64, 700}}};
    input_ = work_.write("prompts.jsonl", json::serialize(prompt) + "\n");
  }

  // Prefill and generation of a batch job, and its KV files, whose sink has the engine close a
  // layer before it goes on with the next.
  std::map<std::string, std::string> run_job(bool far, bool save_kv) {
    const GridShape grid = {.tp = std::get<1>(GetParam()), .cp = std::get<2>(GetParam())};
    const BatchOptions options = {.input_path = input_,
                                  .output_directory = work_.file(far ? "far" : "near"),
                                  .head_plan = std::get<0>(GetParam()),
                                  .save_kv = save_kv,
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
  const auto near = run_job(/*far=*/false, /*save_kv=*/true);
  const auto far = run_job(/*far=*/true, /*save_kv=*/true);
  ASSERT_NE(near.at("results.jsonl").find("\"status\":\"ok\""), std::string::npos)
      << near.at("results.jsonl");
  EXPECT_EQ(near.at("results.jsonl"), far.at("results.jsonl"));
  EXPECT_EQ(near.size(), far.size());
  for (const auto& [name, bytes] : near) EXPECT_TRUE(bytes == far.at(name)) << name;
}

TEST_P(FarDeviceTest, ABatchJobGivesTheSameTokensAndLogitsWithTheHostALayerAhead) {
  const auto near = run_job(/*far=*/false, /*save_kv=*/false);
  const auto far = run_job(/*far=*/true, /*save_kv=*/false);
  ASSERT_NE(near.at("results.jsonl").find("\"status\":\"ok\""), std::string::npos)
      << near.at("results.jsonl");
  EXPECT_EQ(near.at("results.jsonl"), far.at("results.jsonl"));
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

// Of ranks that share a kv head one writes its file, after each layer; the others have no reason
// not to be a layer ahead.
TEST(FarDeviceBatch, RanksOfDifferentSinksGoThroughTheLayersTogether) {
  test::TempDirectory model, work;
  write_model(model.path());
  const json::object prompt = {{"id", "p"}, {"prompt_token_ids", prompt_tokens()}};
  const BatchOptions options = {
      .input_path = work.write("prompts.jsonl", json::serialize(prompt) + "\n"),
      .output_directory = work.file("out"),
      .save_kv = true,
      .layer_timeout = kTimeout};
  const PromptLimits limits = {.vocab_size = 101, .max_prompt_tokens = 1000};
  const GridShape grid = {.tp = 8, .cp = 1};  // 4 kv heads
  test::run_ranks(grid.tp, [&](std::unique_ptr<comm::Communicator> world) {
    Rank rank(model.path(), grid, std::move(world), /*far=*/true, /*late=*/false);
    BatchJob job(rank.engine, *rank.device, *rank.weights, rank.grid, limits, options);
    const auto summary = job.run();
    MR_CHECK(summary.ok(), "{}", summary.error().to_string());
  });
  const auto results = job_files(options.output_directory).at("results.jsonl");
  EXPECT_NE(results.find("\"status\":\"ok\""), std::string::npos) << results;
}

// Generation takes memory of its own for the tokens to come, which one rank alone may lack.
TEST(FarDeviceBatch, ARankWithoutMemoryForGenerationFailsThePromptOnAllRanks) {
  test::TempDirectory model, work;
  write_model(model.path());
  const json::object much = {{"id", "much"}, {"prompt_token_ids", {1, 2, 3}}, {"max_tokens", 4096}};
  const json::object little = {
      {"id", "little"}, {"prompt_token_ids", {1, 2, 3}}, {"max_tokens", 2}};
  const BatchOptions options = {
      .input_path = work.write("prompts.jsonl",
                               json::serialize(much) + "\n" + json::serialize(little) + "\n"),
      .output_directory = work.file("out"),
      .layer_timeout = kTimeout};
  const PromptLimits limits = {.vocab_size = 101, .max_prompt_tokens = 1000};
  BatchSummary summary;
  test::run_ranks(2, [&](std::unique_ptr<comm::Communicator> world) {
    const int rank = world->rank();
    Rank self(model.path(), {.tp = 2, .cp = 1}, std::move(world), /*far=*/true, /*late=*/false);
    auto& device = dynamic_cast<test::FarDevice&>(*self.device);
    if (rank == 1) device.refuse_larger_than(1 << 20);
    BatchJob job(self.engine, *self.device, *self.weights, self.grid, limits, options);
    const auto done = job.run();
    MR_CHECK(done.ok(), "{}", done.error().to_string());
    if (rank == 0) summary = *done;
  });
  EXPECT_EQ(summary.num_failed, 1);
  EXPECT_EQ(summary.num_ok, 1);
  const auto results = read_file(work.file("out") + "/results.jsonl");
  EXPECT_NE(results.find("rank 1: "), std::string::npos) << results;
}

// An operation that is never done, until the watch has said so: as a GPU that waits for a peer.
TEST(FarDeviceBatch, ADeviceThatHangsIsEndedByTheWatch) {
  test::TempDirectory model, work;
  write_model(model.path());
  const json::object prompt = {{"id", "p"}, {"prompt_token_ids", prompt_tokens()}};
  const BatchOptions options = {
      .input_path = work.write("prompts.jsonl", json::serialize(prompt) + "\n"),
      .output_directory = work.file("out"),
      .layer_timeout = std::chrono::milliseconds(100)};
  const PromptLimits limits = {.vocab_size = 101, .max_prompt_tokens = 1000};
  std::promise<std::string> ended;
  auto why = ended.get_future().share();
  test::run_ranks(1, [&](std::unique_ptr<comm::Communicator> world) {
    Rank rank(model.path(), {1, 1}, std::move(world), /*far=*/true);
    dynamic_cast<test::FarDevice&>(*rank.device).enqueue([&] { why.wait(); });
    const auto watch =
        *GroupWatch::alone([&](const std::string& reason) { ended.set_value(reason); });
    BatchJob job(rank.engine, *rank.device, *rank.weights, rank.grid, limits, options, watch.get());
    (void)job.run();  // whatever becomes of it: a process would have ended
  });
  EXPECT_EQ(why.get(), "stuck in the first layer: not done within 0.2 s");
}

std::vector<int32_t> token_ids() {
  std::vector<int32_t> tokens;
  for (const auto& token : prompt_tokens())
    tokens.push_back(static_cast<int32_t>(token.as_int64()));
  return tokens;
}

kvstore::KvGeometry geometry_of(const Rank& rank) {
  return {.num_layers = rank.weights->config.num_layers,
          .num_kv_heads = rank.weights->shard.num_kv_heads,
          .first_kv_head = rank.weights->shard.first_kv_head,
          .head_dim = rank.weights->config.head_dim,
          .dtype = DType::kFloat32};
}

// Every page of a rank's request, as the store gives it out: bytes, digest and score.
std::vector<std::string> pages_of(const Rank& rank, kvstore::KvStore& store,
                                  const std::vector<int64_t>& own_pages) {
  std::vector<std::string> pages;
  const auto geometry = geometry_of(rank);
  for (int32_t layer = 0; layer < geometry.num_layers; ++layer) {
    for (int32_t head = 0; head < geometry.num_kv_heads; ++head) {
      for (const int64_t number : own_pages) {
        const auto pinned = Rank::must(
            store.pin_pages("r", "lease", layer, geometry.first_kv_head + head, number, 1));
        const auto& page = pinned->pages().front();
        const auto digest = std::as_bytes(page.digest);
        pages.emplace_back(reinterpret_cast<const char*>(page.bytes.data()), page.bytes.size());
        pages.back().append(reinterpret_cast<const char*>(digest.data()), digest.size());
        pages.back() += fmt::format("{} {}", page.score, static_cast<int>(page.tier));
      }
    }
  }
  return pages;
}

// By rank.
using StoredPages = std::map<int, std::vector<std::string>>;

StoredPages stored_pages(const std::string& model, const std::string& plan_text, GridShape shape,
                         bool far) {
  StoredPages stored;
  std::mutex mutex;
  test::run_ranks(shape.tp * shape.cp, [&](std::unique_ptr<comm::Communicator> world) {
    Rank rank(model, shape, std::move(world), far);
    const auto geometry = geometry_of(rank);
    const auto own_pages = rank.engine.partition(kPromptTokens).pages(rank.grid.cp().rank());
    // Half of the pages fit the device, so both tiers hold some.
    const int64_t half = geometry.num_layers * geometry.num_kv_heads * std::ssize(own_pages) / 2;
    std::unique_ptr<kvstore::SlotMemory> device_memory;
    if (far) {
      device_memory = Rank::must(DeviceTier::create(*rank.device, half, geometry.page_bytes()));
    }
    const auto store =
        Rank::must(kvstore::make_kv_store({.device_bytes = half * geometry.page_bytes(),
                                           .host_bytes = 1000 * geometry.page_bytes(),
                                           .geometry = geometry},
                                          Clock::steady(), std::move(device_memory)));
    const auto writer =
        Rank::must(PageWriter::create(*rank.device, *store, geometry, /*num_threads=*/1));
    StoreSink sink(*rank.device, *store, *writer, "r", own_pages);
    MR_CHECK(store->begin_request("r", kPromptTokens, own_pages).ok(), "no room");
    const auto plan =
        Rank::must(model::make_head_plan(plan_text, rank.weights->config, kPromptTokens, 0));
    Rank::must(
        rank.engine.prefill({.token_ids = token_ids(), .plan = &plan, .sink = &sink}, kTimeout));
    Rank::must(store->seal("r", "lease", kTimeout));
    auto pages = pages_of(rank, *store, own_pages);
    const std::lock_guard lock(mutex);
    stored[rank.grid.world().rank()] = std::move(pages);
  });
  return stored;
}

TEST(FarDeviceStore, HoldsTheSamePagesDigestsAndScores) {
  test::TempDirectory model;
  write_model(model.path());
  const auto near = stored_pages(model.path(), "dense", {1, 1}, /*far=*/false);
  EXPECT_EQ(near.at(0).size(), size_t{4 * 4 * 12});
  EXPECT_TRUE(near == stored_pages(model.path(), "dense", {1, 1}, /*far=*/true));
}

TEST(FarDeviceStore, OfEachRankOfAGridHoldsTheSamePagesDigestsAndScores) {
  test::TempDirectory model;
  write_model(model.path());
  for (const GridShape shape : {GridShape{1, 2}, {2, 2}, {1, 4}}) {
    for (const std::string plan : {"vertical-slash:64,128", "adaptive:0.6"}) {
      SCOPED_TRACE(fmt::format("tp {} cp {} {}", shape.tp, shape.cp, plan));
      EXPECT_TRUE(stored_pages(model.path(), plan, shape, /*far=*/false) ==
                  stored_pages(model.path(), plan, shape, /*far=*/true));
    }
  }
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
    const auto geometry = geometry_of(rank);
    const auto store = Rank::must(kvstore::make_kv_store(
        {.host_bytes = 1000 * geometry.page_bytes(), .geometry = geometry}, Clock::steady()));
    const auto tokens = token_ids();
    const auto pages = rank.engine.partition(kPromptTokens).pages(0);
    const auto writer =
        Rank::must(PageWriter::create(*rank.device, *store, geometry, /*num_threads=*/2));
    StoreSink sink(*rank.device, *store, *writer, "r", pages);
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
  write_model(model.path());
  const auto near = store_progress(model.path(), /*far=*/false);
  EXPECT_EQ(near.complete, (std::vector<int32_t>{1, 2, 3, 4, 4}));
  EXPECT_EQ(near.readable, near.complete);
  const auto far = store_progress(model.path(), /*far=*/true);
  EXPECT_EQ(far.complete, (std::vector<int32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(far.readable, far.complete);
}

TEST(FarDeviceStore, CountsWhatIsWrittenAndHowMuchOfItWhileALaterLayerWasComputed) {
  test::TempDirectory model;
  write_model(model.path());
  // Pages of 64 tokens and 16 dimensions, K and V; 12 of each of 4 layers and 4 heads.
  const int64_t layer_bytes = int64_t{12} * 4 * 2 * 64 * 16 * 4;
  const auto near = store_progress(model.path(), /*far=*/false);
  EXPECT_EQ(near.stored.total, 4 * layer_bytes);
  EXPECT_EQ(near.stored.while_computing, 0);
  const auto far = store_progress(model.path(), /*far=*/true);
  EXPECT_EQ(far.stored.total, 4 * layer_bytes);
  // All but the last layer's, for this device computes a layer when it is waited for.
  EXPECT_EQ(far.stored.while_computing, 3 * layer_bytes);
}

// Writes down what the engine does, and fails where it is told to.
class NotingSink final : public KvSink {
 public:
  explicit NotingSink(bool sets_aside) : sets_aside_(sets_aside) {}
  bool sets_aside() const override { return sets_aside_; }
  Result<void> set_aside(int32_t layer, const LocalKv&) override {
    notes.push_back(fmt::format("set aside {}", layer));
    if (layer == fails_at) return error(Errc::kIo, "disk full");
    return {};
  }
  Result<void> write_layer(const LayerKv& kv) override {
    notes.push_back(fmt::format("write {}", kv.layer));
    return {};
  }

  std::vector<std::string> notes;
  int32_t fails_at = -1;

 private:
  bool sets_aside_;
};

std::vector<std::string> notes_of_layers(const std::string& model, bool far, bool sets_aside) {
  NotingSink sink(sets_aside);
  test::run_ranks(1, [&](std::unique_ptr<comm::Communicator> world) {
    Rank rank(model, {1, 1}, std::move(world), far);
    const auto& config = rank.weights->config;
    const model::HeadPlan plan(config.num_layers, config.num_query_heads, {});
    const auto note = [&](std::string_view what, int32_t layer) {
      sink.notes.push_back(fmt::format("{} {}", what, layer));
    };
    Rank::must(rank.engine.prefill(
        {.token_ids = token_ids(),
         .plan = &plan,
         .sink = &sink,
         .index_tap = [&](int32_t layer, const kernels::IndexView&) { note("enqueue", layer); },
         .at_boundary =
             [&](const LayerReport& report) {
               note("boundary", report.layer);
               return Result<void>();
             }},
        kTimeout));
  });
  return sink.notes;
}

TEST(FarDeviceEngine, IsGivenALayerBeforeTheOneBeforeIsClosed) {
  test::TempDirectory model;
  write_model(model.path());
  const std::vector<std::string> ahead = {
      "enqueue 0", "set aside 0",                               //
      "enqueue 1", "write 0",     "boundary 0", "set aside 1",  //
      "enqueue 2", "write 1",     "boundary 1", "set aside 2",  //
      "enqueue 3", "write 2",     "boundary 2", "set aside 3",  //
      "write 3",   "boundary 3"};
  EXPECT_EQ(notes_of_layers(model.path(), /*far=*/true, /*sets_aside=*/true), ahead);
}

TEST(FarDeviceEngine, IsGivenALayerAfterTheOneBeforeWhereTheSinkReadsItsMemoryOrItIsTheHosts) {
  test::TempDirectory model;
  write_model(model.path());
  std::vector<std::string> in_turn;
  for (int layer = 0; layer < 4; ++layer) {
    for (const std::string step : {"enqueue", "set aside", "write", "boundary"}) {
      in_turn.push_back(fmt::format("{} {}", step, layer));
    }
  }
  EXPECT_EQ(notes_of_layers(model.path(), /*far=*/true, /*sets_aside=*/false), in_turn);
  EXPECT_EQ(notes_of_layers(model.path(), /*far=*/false, /*sets_aside=*/true), in_turn);
}

// At the first, a middle and the last layer: what another rank's device was given is not left
// waiting for this one's.
TEST(FarDeviceEngine, AnErrorOfOneRanksSinkEndsTheRequestOnAllAndLeavesThemUsable) {
  test::TempDirectory model;
  write_model(model.path());
  for (const int32_t layer : {0, 1, 3}) {
    std::mutex mutex;
    std::vector<std::string> outcomes;
    test::run_ranks(4, [&](std::unique_ptr<comm::Communicator> world) {
      Rank rank(model.path(), {2, 2}, std::move(world), /*far=*/true);
      const auto& config = rank.weights->config;
      const model::HeadPlan plan(config.num_layers, config.num_query_heads, {});
      const auto tokens = token_ids();
      NotingSink sink(/*sets_aside=*/true);
      if (rank.grid.world().rank() == 3) sink.fails_at = layer;
      const PrefillTask task{.token_ids = tokens, .plan = &plan, .sink = &sink};
      const auto failed = rank.engine.prefill(task, kTimeout);
      sink.fails_at = -1;
      const auto again = rank.engine.prefill(task, kTimeout);
      const std::lock_guard lock(mutex);
      outcomes.push_back(failed.ok() ? "ok" : failed.error().message);
      outcomes.back() += again.ok() ? ", then ok" : ", then " + again.error().message;
    });
    EXPECT_EQ(outcomes, std::vector<std::string>(4, "rank 3: disk full, then ok")) << layer;
  }
}

// The second failure is that of the wait for what a request that ends has left on its way.
TEST(FarDeviceEngine, TheFirstFailureOfADeviceIsTheOneItEndsWith) {
  test::TempDirectory model;
  write_model(model.path());
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

// Of each rank: the device memory that warming up took, what of it is still taken, and the tokens
// of a prompt after it.
struct Warmed {
  int64_t peak_bytes = 0;
  int64_t left_bytes = 0;
  std::vector<std::pair<int32_t, float>> top_tokens;  // and their logits; of rank 0
};

std::vector<Warmed> warmed_ranks(const std::string& model, int64_t max_tokens) {
  std::vector<Warmed> ranks(4);
  test::run_ranks(4, [&](std::unique_ptr<comm::Communicator> world) {
    Rank rank(model, {2, 2}, std::move(world), /*far=*/true);
    auto& device = dynamic_cast<test::FarDevice&>(*rank.device);
    const int64_t before_bytes = device.allocated_bytes();
    device.reset_peak();
    if (max_tokens > 0) {
      const auto done = rank.engine.warm_up(max_tokens, kTimeout);
      MR_CHECK(done.ok(), "{}", done.error().to_string());
    }
    auto& warmed = ranks[static_cast<size_t>(rank.grid.world().rank())];
    warmed = {.peak_bytes = device.peak_bytes() - before_bytes,
              .left_bytes = device.allocated_bytes() - before_bytes};
    const auto plan =
        Rank::must(model::make_head_plan("adaptive:0.6", rank.weights->config, kPromptTokens, 0));
    const auto result =
        Rank::must(rank.engine.prefill({.token_ids = token_ids(), .plan = &plan}, kTimeout));
    for (const auto& token : result.top_tokens) {
      warmed.top_tokens.emplace_back(token.token_id, token.logit);
    }
  });
  return ranks;
}

TEST(FarDeviceEngine, WarmsUpWithPromptsThatLeaveNothingBehind) {
  test::TempDirectory model;
  write_model(model.path());
  const auto cold = warmed_ranks(model.path(), 0);
  ASSERT_EQ(cold[0].top_tokens.size(), 10U);
  for (const int64_t max_tokens : {1, 70, 1000}) {
    const auto warm = warmed_ranks(model.path(), max_tokens);
    for (size_t rank = 0; rank < warm.size(); ++rank) {
      SCOPED_TRACE(fmt::format("up to {} tokens, rank {}", max_tokens, rank));
      EXPECT_GT(warm[rank].peak_bytes, 0);
      EXPECT_EQ(warm[rank].left_bytes, 0);
      EXPECT_EQ(warm[rank].top_tokens, cold[rank].top_tokens);
    }
  }
}

TEST(FarDeviceCrossover, IsMeasured) {
  test::TempDirectory model;
  write_model(model.path());
  test::run_ranks(1, [&](std::unique_ptr<comm::Communicator> world) {
    const Rank rank(model.path(), {1, 1}, std::move(world), /*far=*/true);
    EXPECT_TRUE(measure_crossover(*rank.device, *rank.weights).ok());
  });
}

}  // namespace
}  // namespace millrace::worker
