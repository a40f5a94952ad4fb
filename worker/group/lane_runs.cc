#include "worker/group/lane_runs.h"

#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "worker/ranks/rank_values.h"
#include "worker/runtime/prompt.h"

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
  for (const auto& prompt : command.side_by_side()) r_.reporter.started(prompt.request_id());
  protocol::LaneReport report;
  if (const auto* own = prompt_of(command, r_.lane.number())) {
    MR_RETURN_IF_ERROR(run_own(*own, writer, reader, report));
  }
  return meet(command, report);
}

const protocol::RunPrompt* LaneRuns::prompt_of(const protocol::GroupCommand& command,
                                               int lane) const {
  const int num_lanes = r_.runtime.grid().shape().cp;
  const int first = static_cast<int>(command.first_lane());
  const int number = (lane - first % num_lanes + num_lanes) % num_lanes;
  return number < command.side_by_side_size() ? &command.side_by_side(number) : nullptr;
}

Result<void> LaneRuns::run_own(const protocol::RunPrompt& prompt, PageWriter& writer,
                               PageReader& reader, protocol::LaneReport& lane_report) {
  ControlBoard nowhere;  // rank 0's gets what is relayed
  LaneMessages messages(lane_report);
  CoordinatorReporter reporter(sync_.is_root() ? &messages : nullptr, nowhere);
  const auto tell_cached = [&lane_report](const CachedChain& chain) {
    const auto bytes = std::as_bytes(chain.keys);
    lane_report.set_cached_page_keys(bytes.data(), bytes.size());
  };
  PromptRun run(
      {.runtime = r_.runtime,
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
       .events = r_.events,
       .tell_cached = sync_.is_root() ? tell_cached : decltype(PromptResources::tell_cached)(),
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
Result<void> LaneRuns::meet(const protocol::GroupCommand& command,
                            const protocol::LaneReport& own) {
  const int32_t num_steps = r_.runtime.weights().config.num_layers + kStepsBesideLayers;
  const Duration longest = num_steps * r_.options.layer_timeout;
  r_.group.expect_others("prompts side by side", longest, r_.options.layer_timeout);
  const auto reports = gather_reports(r_.group.world(), own, Deadline::after(longest));
  if (!reports.ok()) return r_.group.broken(reports.error());
  for (size_t rank = 0; rank < reports->size(); ++rank) {
    const auto& report = (*reports)[rank];
    const int lane = static_cast<int>(rank) / r_.runtime.grid().shape().tp;
    const auto* prompt = prompt_of(command, lane);
    if (prompt != nullptr) publish(*prompt, lane, report);
    for (const auto& message : report.messages()) r_.reporter.relay(message);
  }
  return {};
}

// Rank 0's: it has the tokens of all prompts, and each lane the keys of its own. Pages that a rank could not remember it
// says are gone.
void LaneRuns::publish(const protocol::RunPrompt& prompt, int lane,
                       const protocol::LaneReport& report) {
  const std::string_view bytes = report.cached_page_keys();
  if (bytes.empty() || r_.events == nullptr || !r_.events->publishes()) return;
  const auto token_ids = decode_token_ids(prompt.prompt_token_ids());
  if (!token_ids.ok()) return;  // and no lane has run it
  std::vector<PageContentKey> keys(bytes.size() / sizeof(PageContentKey));
  std::memcpy(keys.data(), bytes.data(), keys.size() * sizeof(PageContentKey));
  const std::vector<int> owners(keys.size(), lane);
  r_.events->stored({.keys = keys,
                     .token_ids = *token_ids,
                     .owners = owners,
                     .cache_salt = prompt.options().cache_salt()});
}

}  // namespace millrace::worker
