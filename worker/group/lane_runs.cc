#include "worker/group/lane_runs.h"

#include <string>
#include <vector>

#include "worker/ranks/rank_values.h"

namespace millrace::worker {

namespace {

// Steps of a prompt beside its layers, in timeouts of a layer: room, the logits, dropping pages, sealing and
// the manifest.
constexpr int kStepsBesideLayers = 8;

// Collective: the report of every rank, by rank; empty of those with none.
Result<std::vector<protocol::LaneReport>> gather_reports(comm::Communicator& world,
                                                         const protocol::LaneReport& own,
                                                         Deadline deadline) {
  const std::string bytes = own.SerializeAsString();
  MR_ASSIGN_OR_RETURN(const auto counts,
                      gather_values(world, int64_t{std::ssize(bytes)}, deadline));
  int64_t total = 0;
  for (const int64_t count : counts) total += count;
  std::string all(static_cast<size_t>(total), '\0');
  MR_RETURN_IF_ERROR(world.all_gather(std::as_bytes(std::span(bytes)),
                                      std::as_writable_bytes(std::span(all)), counts, deadline));
  std::vector<protocol::LaneReport> reports(counts.size());
  size_t first = 0;
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    const auto size = static_cast<size_t>(counts[rank]);
    if (!reports[rank].ParseFromString(all.substr(first, size))) {
      return error(Errc::kInternal, "what rank {} says of its lane cannot be read", rank);
    }
    first += size;
  }
  return reports;
}

}  // namespace

// Ranks of a lane wait for nobody else, and yet others wait for them: a lane of one rank may hang.
LaneRuns::LaneRuns(const LaneResources& resources)
    : r_(resources),
      sync_(r_.lane.grid().world(), r_.watch, /*may_hang=*/true, r_.group.timeouts()) {}

Result<void> LaneRuns::run(const protocol::GroupCommand& command, PageWriter& writer,
                           PageReader& reader) {
  const int num_lanes = r_.runtime.grid().shape().cp;
  const int first = static_cast<int>(command.first_lane());
  const int own = (r_.lane.number() - first % num_lanes + num_lanes) % num_lanes;
  for (const auto& prompt : command.side_by_side()) r_.reporter.started(prompt.request_id());
  LaneMessages messages;
  if (own < command.side_by_side_size()) {
    MR_RETURN_IF_ERROR(run_own(command.side_by_side(own), writer, reader, messages));
  }
  return meet(messages);
}

Result<void> LaneRuns::run_own(const protocol::RunPrompt& prompt, PageWriter& writer,
                               PageReader& reader, LaneMessages& messages) {
  ControlBoard nowhere;  // rank 0's gets what is relayed
  CoordinatorReporter reporter(sync_.is_root() ? &messages : nullptr, nowhere);
  PromptRun run({.runtime = r_.runtime,
                 .grid = r_.lane.grid(),
                 .engine = r_.lane.engine(),
                 .limits = r_.runtime.lane_limits(),
                 .store = r_.store,
                 .writer = writer,
                 .reader = reader,
                 .server = r_.server,
                 .sync = sync_,
                 .reporter = reporter,
                 .pace = pace_,
                 .ledger = sync_.is_root() ? &ledger_ : nullptr,
                 .options = r_.options},
                prompt, [this](const LayerReport& report) -> Result<void> {
                  sync_.expect(fmt::format("what follows layer {} of {} of a prompt beside others",
                                           report.layer + 1, report.num_layers),
                               r_.options.layer_timeout);
                  return {};
                });
  MR_RETURN_IF_ERROR(run.run());
  if (sync_.is_root()) counts_ += run.counts();
  return {};
}

// A rank that is through with its prompt, or has none, waits for the slowest.
Result<void> LaneRuns::meet(const LaneMessages& own) {
  const int32_t num_steps = r_.runtime.weights().config.num_layers + kStepsBesideLayers;
  const Duration longest = num_steps * r_.options.layer_timeout;
  r_.group.expect_others("prompts side by side", longest, r_.options.layer_timeout);
  const auto reports = gather_reports(r_.group.world(), own.report(), Deadline::after(longest));
  if (!reports.ok()) return r_.group.broken(reports.error());
  for (const auto& report : *reports) {
    for (const auto& message : report.messages()) r_.reporter.relay(message);
  }
  return {};
}

}  // namespace millrace::worker
