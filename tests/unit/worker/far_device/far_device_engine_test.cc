// SPDX-License-Identifier: Apache-2.0
// In which order the engine gives a far device its layers, and what it does when one of them fails.

#include <mutex>
#include <stdexcept>
#include <utility>

#include "engine/kv_sink.h"
#include "engine/runtime/crossover.h"
#include "tests/unit/worker/far_device/far_device_case.h"

namespace millrace::worker {
namespace {

// Records what the engine does, and fails where the test says.
class NotingSink final : public engine::KvSink {
 public:
  explicit NotingSink(bool stages_layers) : stages_layers_(stages_layers) {}
  bool stages_layers() const override { return stages_layers_; }
  Result<void> stage_layer(int32_t layer, const engine::LocalKv&) override {
    notes.push_back(fmt::format("stage {}", layer));
    if (layer == fails_at) return error(Errc::kIo, "disk full");
    return {};
  }
  Result<void> write_layer(const engine::LayerKv& kv) override {
    notes.push_back(fmt::format("write {}", kv.layer));
    return {};
  }

  std::vector<std::string> notes;
  int32_t fails_at = -1;

 private:
  bool stages_layers_;
};

class FarDeviceLayers : public FarDeviceTest {
 protected:
  std::vector<std::string> notes_of_layers(Memory memory, bool stages_layers) const {
    NotingSink sink(stages_layers);
    const auto note = [&](std::string_view what, int32_t layer) {
      sink.notes.push_back(fmt::format("{} {}", what, layer));
    };
    const auto note_boundary = [&](const engine::LayerReport& report) {
      note("boundary", report.layer);
      return Result<void>();
    };
    on_one_rank(memory, [&](DeviceRank& rank) {
      const auto plan = dense_plan(rank);
      must(rank.engine.prefill(
          {.token_ids = token_ids(),
           .plan = &plan,
           .sink = &sink,
           .index_tap = [&](const engine::BuiltIndex& built) { note("enqueue", built.layer); },
           .at_boundary = note_boundary},
          kTimeout));
    });
    return sink.notes;
  }
};

TEST_F(FarDeviceLayers, AreGivenToTheDeviceBeforeTheOneBeforeIsClosed) {
  const std::vector<std::string> ahead = {"enqueue 0", "stage 0",                             //
                                          "enqueue 1", "write 0",   "boundary 0", "stage 1",  //
                                          "enqueue 2", "write 1",   "boundary 1", "stage 2",  //
                                          "enqueue 3", "write 2",   "boundary 2", "stage 3",  //
                                          "write 3",   "boundary 3"};
  EXPECT_EQ(notes_of_layers(Memory::kFarLate, /*stages_layers=*/true), ahead);
}

TEST_F(FarDeviceLayers, AreGivenAfterTheOneBeforeWhereTheSinkReadsItsMemoryOrItIsTheHosts) {
  std::vector<std::string> in_turn;
  for (int layer = 0; layer < 4; ++layer) {
    for (const std::string step : {"enqueue", "stage", "write", "boundary"}) {
      in_turn.push_back(fmt::format("{} {}", step, layer));
    }
  }
  EXPECT_EQ(notes_of_layers(Memory::kFarLate, /*stages_layers=*/false), in_turn);
  EXPECT_EQ(notes_of_layers(Memory::kNear, /*stages_layers=*/true), in_turn);
}

class FarDeviceEngine : public FarDeviceTest {};

// At the first, a middle and the last layer: operations already given to another rank's device are
// not left waiting for this rank's.
TEST_F(FarDeviceEngine, AnErrorOfOneRanksSinkEndsTheRequestOnAllAndLeavesThemUsable) {
  for (const int32_t layer : {0, 1, 3}) {
    std::mutex mutex;
    std::vector<std::string> outcomes;
    on_ranks({2, 2}, Memory::kFarLate, [&](DeviceRank& rank) {
      const auto plan = dense_plan(rank);
      const auto tokens = token_ids();
      NotingSink sink(/*stages_layers=*/true);
      if (rank.number() == 3) sink.fails_at = layer;
      const engine::PrefillTask task{.token_ids = tokens, .plan = &plan, .sink = &sink};
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

// The second failure comes from the wait for what an ending request has left unfinished.
TEST_F(FarDeviceEngine, TheFirstFailureOfADeviceIsTheOneItEndsWith) {
  for (const int num_operations : {0, 10, 50}) {
    on_one_rank(Memory::kFarLate, [&](DeviceRank& rank) {
      const auto plan = dense_plan(rank);
      rank.far_device().break_after(num_operations);
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

// Memory cannot be freed while operations of an ending request are unfinished.
TEST_F(FarDeviceEngine, ADeviceThatDoesNotComeToAnEndEndsTheProcess) {
  on_one_rank(Memory::kFarLate, [&](DeviceRank& rank) {
    const auto plan = dense_plan(rank);
    const auto hang = [&](const engine::LayerReport&) {
      rank.far_device().hang();
      return error(Errc::kCancelled, "cancelled");
    };
    const auto cancelled = rank.engine.prefill(
        {.token_ids = token_ids(), .plan = &plan, .at_boundary = hang}, kTimeout);
    EXPECT_EQ(cancelled.error().message, "cancelled");
    ASSERT_EQ(rank.ends.size(), 1U);
    EXPECT_EQ(rank.ends.front().message, "the device hangs");
  });
}

// This includes the last layer, in which only a few rows attend, with the host a layer ahead and
// collectives running concurrently.
TEST_F(FarDeviceEngine, GivesTheLogitsOfNearMemoryWithAndWithoutProbes) {
  const auto tokens = token_ids();
  for (const std::string text : {"adaptive:0.6", "vertical-slash:64,128"}) {
    for (const std::vector<int64_t>& probes : {std::vector<int64_t>{}, {3, 200, 201, 640, 713}}) {
      for (const engine::GridShape grid :
           {engine::GridShape{1, 1}, {2, 1}, {1, 2}, {2, 2}, {1, 3}}) {
        SCOPED_TRACE(
            fmt::format("{}, {} probes, tp {} cp {}", text, probes.size(), grid.tp, grid.cp));
        std::vector<std::vector<std::pair<int32_t, double>>> outcomes;
        for (const Memory memory : {Memory::kNear, Memory::kFar, Memory::kFarLate}) {
          auto& outcome = outcomes.emplace_back();
          on_ranks(grid, memory, [&](DeviceRank& rank) {
            NotingSink sink(/*stages_layers=*/true);
            const auto plan = must(plan::make_head_plan(text, rank.weights->config, kPromptTokens,
                                                        /*crossover_tokens=*/0));
            const std::vector<int32_t> targets(probes.size(), 7);
            const auto result = must(rank.engine.prefill({.token_ids = tokens,
                                                          .plan = &plan,
                                                          .probe_positions = probes,
                                                          .probe_target_ids = targets,
                                                          .sink = &sink},
                                                         kTimeout));
            if (rank.number() != 0) return;
            for (const auto& top : result.top_tokens) outcome.emplace_back(top.token_id, top.logit);
            for (size_t i = 0; i < probes.size(); ++i) {
              outcome.emplace_back(result.probe_token_ids[i], result.probe_logprobs[i]);
            }
          });
        }
        EXPECT_EQ(outcomes[0].size(), 10 + probes.size());
        EXPECT_EQ(outcomes[1], outcomes[0]);
        EXPECT_EQ(outcomes[2], outcomes[0]);
      }
    }
  }
}

class FarDeviceWarmUp : public FarDeviceTest {
 protected:
  // For each rank: the device memory that warming up took, how much of it is still taken, and the
  // tokens of a prompt after it.
  struct Warmed {
    int64_t peak_bytes = 0;
    int64_t left_bytes = 0;
    std::vector<std::pair<int32_t, float>> top_tokens;  // and their logits; of rank 0
  };

  // max_tokens 0: no warm-up at all.
  std::vector<Warmed> warmed_ranks(int64_t max_tokens) const {
    std::vector<Warmed> ranks(4);
    on_ranks({2, 2}, Memory::kFarLate, [&](DeviceRank& rank) {
      ranks[static_cast<size_t>(rank.number())] = warmed(rank, max_tokens);
    });
    return ranks;
  }

 private:
  static Warmed warmed(DeviceRank& rank, int64_t max_tokens) {
    auto& device = rank.far_device();
    const int64_t before_bytes = device.allocated_bytes();
    device.reset_peak();
    if (max_tokens > 0) {
      const auto done = rank.engine.warm_up(max_tokens, kTimeout);
      MR_CHECK(done.ok(), "{}", done.error().to_string());
    }
    Warmed warmed = {.peak_bytes = device.peak_bytes() - before_bytes,
                     .left_bytes = device.allocated_bytes() - before_bytes};
    const auto plan = must(plan::make_head_plan("adaptive:0.6", rank.weights->config, kPromptTokens,
                                                /*crossover_tokens=*/0));
    const auto result =
        must(rank.engine.prefill({.token_ids = token_ids(), .plan = &plan}, kTimeout));
    for (const auto& token : result.top_tokens) {
      warmed.top_tokens.emplace_back(token.token_id, token.logit);
    }
    return warmed;
  }
};

TEST_F(FarDeviceWarmUp, PromptsLeaveNothingBehind) {
  const auto cold = warmed_ranks(0);
  ASSERT_EQ(cold[0].top_tokens.size(), 10U);
  for (const int64_t max_tokens : {1, 70, 1000}) {
    const auto warm = warmed_ranks(max_tokens);
    for (size_t rank = 0; rank < warm.size(); ++rank) {
      SCOPED_TRACE(fmt::format("up to {} tokens, rank {}", max_tokens, rank));
      EXPECT_GT(warm[rank].peak_bytes, 0);
      EXPECT_EQ(warm[rank].left_bytes, 0);
      EXPECT_EQ(warm[rank].top_tokens, cold[rank].top_tokens);
    }
  }
}

TEST_F(FarDeviceEngine, MeasuresItsCrossover) {
  on_one_rank(Memory::kFarLate, [](DeviceRank& rank) {
    EXPECT_TRUE(engine::measure_crossover(*rank.device, *rank.weights).ok());
  });
}

}  // namespace
}  // namespace millrace::worker
