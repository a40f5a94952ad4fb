// In which order the engine gives a far device its layers, and what it does when one fails.

#include <mutex>
#include <stdexcept>

#include "tests/unit/worker/far_device_case.h"
#include "worker/crossover.h"
#include "worker/kv_sink.h"

namespace millrace::worker {
namespace {

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

class FarDeviceLayers : public FarDeviceTest {
 protected:
  std::vector<std::string> notes_of_layers(Memory memory, bool sets_aside) const {
    NotingSink sink(sets_aside);
    const auto note = [&](std::string_view what, int32_t layer) {
      sink.notes.push_back(fmt::format("{} {}", what, layer));
    };
    const auto note_boundary = [&](const LayerReport& report) {
      note("boundary", report.layer);
      return Result<void>();
    };
    on_one_rank(memory, [&](DeviceRank& rank) {
      const auto plan = dense_plan(rank);
      must(rank.engine.prefill(
          {.token_ids = token_ids(),
           .plan = &plan,
           .sink = &sink,
           .index_tap = [&](int32_t layer, const kernels::IndexView&) { note("enqueue", layer); },
           .at_boundary = note_boundary},
          kTimeout));
    });
    return sink.notes;
  }
};

TEST_F(FarDeviceLayers, AreGivenToTheDeviceBeforeTheOneBeforeIsClosed) {
  const std::vector<std::string> ahead = {
      "enqueue 0", "set aside 0",                               //
      "enqueue 1", "write 0",     "boundary 0", "set aside 1",  //
      "enqueue 2", "write 1",     "boundary 1", "set aside 2",  //
      "enqueue 3", "write 2",     "boundary 2", "set aside 3",  //
      "write 3",   "boundary 3"};
  EXPECT_EQ(notes_of_layers(Memory::kFarLate, /*sets_aside=*/true), ahead);
}

TEST_F(FarDeviceLayers, AreGivenAfterTheOneBeforeWhereTheSinkReadsItsMemoryOrItIsTheHosts) {
  std::vector<std::string> in_turn;
  for (int layer = 0; layer < 4; ++layer) {
    for (const std::string step : {"enqueue", "set aside", "write", "boundary"}) {
      in_turn.push_back(fmt::format("{} {}", step, layer));
    }
  }
  EXPECT_EQ(notes_of_layers(Memory::kFarLate, /*sets_aside=*/false), in_turn);
  EXPECT_EQ(notes_of_layers(Memory::kNear, /*sets_aside=*/true), in_turn);
}

class FarDeviceEngine : public FarDeviceTest {};

// At the first, a middle and the last layer: what another rank's device was given is not left
// waiting for this one's.
TEST_F(FarDeviceEngine, AnErrorOfOneRanksSinkEndsTheRequestOnAllAndLeavesThemUsable) {
  for (const int32_t layer : {0, 1, 3}) {
    std::mutex mutex;
    std::vector<std::string> outcomes;
    on_ranks({2, 2}, Memory::kFarLate, [&](DeviceRank& rank) {
      const auto plan = dense_plan(rank);
      const auto tokens = token_ids();
      NotingSink sink(/*sets_aside=*/true);
      if (rank.number() == 3) sink.fails_at = layer;
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

TEST_F(FarDeviceEngine, MeasuresItsCrossover) {
  on_one_rank(Memory::kFarLate, [](DeviceRank& rank) {
    EXPECT_TRUE(measure_crossover(*rank.device, *rank.weights).ok());
  });
}

}  // namespace
}  // namespace millrace::worker
