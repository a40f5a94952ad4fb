// SPDX-License-Identifier: Apache-2.0
#include "worker/group/lane_runs.h"

#include <algorithm>
#include <future>
#include <numeric>
#include <span>
#include <string>

#include "engine/ranks/rank_values.h"
#include "worker/peers/peer_pins.h"

namespace millrace::worker {

namespace {

// The steps of a prompt besides its layers, counted in layer timeouts: room, the logits, dropping
// pages, sealing and the manifest.
constexpr int kStepsBesideLayers = 8;

// Collective. The report of every rank, by rank; empty for ranks that have none.
Result<std::vector<protocol::LaneReport>> gather_reports(comm::Communicator& world,
                                                         const protocol::LaneReport& own,
                                                         Deadline deadline) {
  const std::string bytes = own.SerializeAsString();
  MR_ASSIGN_OR_RETURN(const auto counts,
                      engine::gather_values(world, int64_t{std::ssize(bytes)}, deadline));
  int64_t total = 0;
  for (const int64_t count : counts) total += count;
  std::string all(static_cast<size_t>(total), '\0');
  MR_RETURN_IF_ERROR(world.all_gather(std::as_bytes(std::span(bytes)),
                                      std::as_writable_bytes(std::span(all)), counts, deadline));
  std::vector<protocol::LaneReport> reports(counts.size());
  const char* next = all.data();
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    if (!reports[rank].ParseFromArray(next, static_cast<int>(counts[rank]))) {
      return error(Errc::kInternal, "what rank {} says of its lane cannot be read", rank);
    }
    next += counts[rank];
  }
  return reports;
}

}  // namespace

// A lane's ranks wait for no other ranks, but other ranks wait for them. So even a lane of one rank
// is watched.
LaneRuns::LaneRuns(const LaneResources& resources)
    : resources_(resources),
      prompts_(resources.prompts),
      sync_(resources_.lane.grid().world(), resources_.watch, /*may_hang=*/true,
            prompts_.sync.timeouts()) {}

Result<void> LaneRuns::run(const protocol::GroupCommand& command, const PageMovers& movers,
                           const FindCancelled& find_cancelled,
                           const RunOnAllRanks& run_on_all_ranks) {
  protocol::LaneReport report;
  ControlBoard nowhere;  // discarded: rank 0's board gets what is relayed
  LaneMessages messages(report);
  const auto prompts = prompts_of(command, messages, nowhere, movers);
  read(prompts);
  for (const auto& prompt : prompts) {
    resources_.reporter.started(prompt.message.request_id());
    prompt.run->open();
  }
  std::vector<protocol::LaneReport> reports;
  {
    std::vector<std::unique_ptr<kvstore::HeldPrefix>> held;
    const auto places = share_places(prompts, held);
    if (!places.ok()) return prompts_.sync.broken(places.error());
    protocol::LaneReport own;
    if (const Prompt* prompt = own_of(prompts)) {
      if (prompt->run->may_continue()) compute(*prompt, *places);
      prompt->run->fill_report(own);
    }
    MR_ASSIGN_OR_RETURN(reports, meet(own));
  }
  const auto scores = share_scores(prompts, reports);
  if (!scores.ok()) return prompts_.sync.broken(scores.error());
  MR_ASSIGN_OR_RETURN(const auto decided,
                      prompts_.sync.broadcast_command(find_cancelled ? find_cancelled()
                                                                     : protocol::GroupCommand()));
  for (const auto& prompt : prompts) {
    prompt.run->take_report(report_of(prompt, reports),
                            (*scores)[static_cast<size_t>(prompt.lane)]);
    const bool cancelled = std::ranges::find(decided.cancelled(), prompt.message.request_id()) !=
                           decided.cancelled().end();
    if (cancelled) prompt.run->cancel();
    MR_RETURN_IF_ERROR(prompt.run->close());
  }
  if (const Prompt* prompt = own_of(prompts); prompt != nullptr && sync_.is_root()) {
    counts_ += prompt->run->state().counts();
    if (prompt->run->needs_all_ranks()) report.Clear();  // this attempt is not reported
  }
  MR_RETURN_IF_ERROR(relay(report));
  for (const auto& prompt : prompts) {
    if (prompt.run->needs_all_ranks()) MR_RETURN_IF_ERROR(run_on_all_ranks(prompt.message));
  }
  return {};
}

// Of four prompts of 150,000 tokens, one after the other takes a rank 26 ms.
void LaneRuns::read(const std::vector<Prompt>& prompts) {
  std::vector<std::future<void>> others;
  for (const auto& prompt : std::span(prompts).subspan(1)) {
    others.push_back(std::async(std::launch::async, [&prompt] { prompt.run->read(); }));
  }
  prompts.front().run->read();
  for (auto& other : others) other.get();
}

const LaneRuns::Prompt* LaneRuns::own_of(const std::vector<Prompt>& prompts) const {
  const auto own = std::ranges::find(prompts, resources_.lane.number(), &Prompt::lane);
  return own == prompts.end() ? nullptr : &*own;
}

std::vector<LaneRuns::Prompt> LaneRuns::prompts_of(const protocol::GroupCommand& command,
                                                   LaneMessages& messages, ControlBoard& nowhere,
                                                   const PageMovers& movers) {
  const int num_lanes = prompts_.runtime.grid().shape().cp;
  std::vector<Prompt> prompts;
  for (int i = 0; i < command.side_by_side_size(); ++i) {
    const int lane = (static_cast<int>(command.first_lane()) + i) % num_lanes;
    const bool speaks = lane == resources_.lane.number() && sync_.is_root();
    Prompt& prompt = prompts.emplace_back(Prompt{
        .message = command.side_by_side(i),
        .lane = lane,
        .reporter = std::make_unique<CoordinatorReporter>(speaks ? &messages : nullptr, nowhere),
        .run = nullptr});
    prompt.run = make_run(prompt, movers);
  }
  return prompts;
}

std::unique_ptr<LanePromptRun> LaneRuns::make_run(const Prompt& prompt, const PageMovers& movers) {
  auto& runtime = prompts_.runtime;
  return std::make_unique<LanePromptRun>(
      prompts_,
      ComputingRanks{.engine = resources_.lane.engine(),
                     .sync = sync_,
                     .limits = runtime.lane_limits(),
                     .pace = pace_,
                     .lane = prompt.lane},
      movers, *prompt.reporter, prompt.message,
      LaneLimits{.most_new_tokens = runtime.side_by_side_tokens(),
                 .reads_peers = resources_.peers != nullptr},
      [this](const engine::LayerReport& report) -> Result<void> {
        sync_.expect(fmt::format("what follows layer {} of {} of a prompt beside others",
                                 report.layer + 1, report.num_layers),
                     prompts_.options.layer_timeout);
        return {};
      });
}

// Gathers [ranks of the row][prompts]: the places of a rank's pages of the prompt's prefix. The
// lane's own pages are left out; it asks its store for them. All ranks know how many places there
// are.
Result<LaneRuns::Places> LaneRuns::share_places(
    const std::vector<Prompt>& prompts, std::vector<std::unique_ptr<kvstore::HeldPrefix>>& held) {
  auto& cp = prompts_.runtime.grid().cp();
  const auto& geometry = prompts_.store.geometry();
  const int64_t rows = int64_t{geometry.num_layers} * geometry.num_kv_heads;
  own_places_.clear();
  std::vector<int64_t> counts(static_cast<size_t>(cp.size()));  // of bytes
  std::vector<std::vector<int64_t>> of_prompts;                 // [prompts][ranks]
  for (const auto& prompt : prompts) {
    auto& of_ranks = of_prompts.emplace_back(counts.size());
    if (!prompt.run->may_continue()) continue;
    for (int rank = 0; rank < cp.size(); ++rank) {
      if (rank == prompt.lane) continue;
      const auto pages = prompt.run->state().cached().prefix.pages(rank);
      of_ranks[static_cast<size_t>(rank)] = rows * std::ssize(pages);
      counts[static_cast<size_t>(rank)] += rows * std::ssize(pages) * int64_t{sizeof(PagePlace)};
      if (rank != cp.rank() || pages.empty()) continue;
      auto pinned = prompts_.store.hold_prefix(prompt.message.request_id());
      if (pinned.ok()) {
        add_places(*held.emplace_back(*std::move(pinned)), prompts_.store, own_places_);
      }
      own_places_.resize(static_cast<size_t>(counts[static_cast<size_t>(rank)]) /
                         sizeof(PagePlace));  // in no pool, if gone
    }
  }
  const int64_t num_bytes = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  const size_t num_places = static_cast<size_t>(num_bytes) / sizeof(PagePlace);
  if (all_places_.size() < num_places) all_places_.resize(num_places);
  if (num_bytes > 0) {
    MR_RETURN_IF_ERROR(
        cp.all_gather(std::as_bytes(std::span(own_places_)),
                      std::as_writable_bytes(std::span(all_places_).first(num_places)), counts,
                      Deadline::after(prompts_.options.layer_timeout)));
  }
  Places places(counts.size());
  size_t first = 0;
  for (size_t rank = 0; rank < counts.size(); ++rank) {
    for (size_t i = 0; i < prompts.size(); ++i) {
      const auto count = static_cast<size_t>(of_prompts[i][rank]);
      places[static_cast<size_t>(prompts[i].lane)].push_back(
          std::span(all_places_).subspan(first, count));
      first += count;
    }
  }
  return places;
}

const protocol::LaneReport& LaneRuns::report_of(
    const Prompt& prompt, std::span<const protocol::LaneReport> reports) const {
  const auto& grid = prompts_.runtime.grid();
  const int rank = prompt.lane * grid.shape().tp + grid.tp().rank();
  return reports[static_cast<size_t>(rank)];
}

Result<LaneRuns::Scores> LaneRuns::share_scores(const std::vector<Prompt>& prompts,
                                                std::span<const protocol::LaneReport> reports) {
  auto& cp = prompts_.runtime.grid().cp();
  std::vector<int64_t> counts(static_cast<size_t>(cp.size()));  // of bytes
  for (const auto& prompt : prompts) {
    counts[static_cast<size_t>(prompt.lane)] =
        prompt.run->num_prefix_scores(report_of(prompt, reports)) * int64_t{sizeof(float)};
  }
  const int64_t num_bytes = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  const size_t num_scores = static_cast<size_t>(num_bytes) / sizeof(float);
  if (all_scores_.size() < num_scores) all_scores_.resize(num_scores);
  const Prompt* const prompt = own_of(prompts);
  const auto own = prompt == nullptr ? std::span<const float>() : prompt->run->prefix_scores();
  if (num_bytes > 0) {
    MR_RETURN_IF_ERROR(cp.all_gather(
        std::as_bytes(own), std::as_writable_bytes(std::span(all_scores_).first(num_scores)),
        counts, Deadline::after(prompts_.options.layer_timeout)));
  }
  Scores scores;
  std::span<const float> rest = all_scores_;
  for (const int64_t count : counts) {
    scores.push_back(rest.first(static_cast<size_t>(count) / sizeof(float)));
    rest = rest.subspan(scores.back().size());
  }
  return scores;
}

void LaneRuns::compute(const Prompt& prompt, const Places& places) const {
  PeerPins pins(prompts_.store, prompt.message.request_id(), prompt.run->state().cached().prefix,
                prompt.lane, resources_.peers, places[static_cast<size_t>(prompt.lane)]);
  if (resources_.peers != nullptr && prompt.run->state().cached().prefix.num_pages() > 0)
    resources_.peers->set_used();
  if (pins.reach_all()) return prompt.run->compute(&pins);
  prompt.run->compute(error(Errc::kUnavailable,
                            "cached pages of other ranks are on disk, or in a GPU's memory alone"));
}

// A rank that has finished its prompt, or has none, waits for the slowest.
Result<std::vector<protocol::LaneReport>> LaneRuns::meet(const protocol::LaneReport& own) {
  const int32_t num_steps = prompts_.runtime.weights().config.num_layers + kStepsBesideLayers;
  const Duration longest = num_steps * prompts_.options.layer_timeout;
  prompts_.sync.expect_others("prompts side by side", longest, prompts_.options.layer_timeout);
  auto reports = gather_reports(prompts_.sync.world(), own, Deadline::after(longest));
  if (!reports.ok()) return prompts_.sync.broken(reports.error());
  return reports;
}

Result<void> LaneRuns::relay(const protocol::LaneReport& own) {
  const auto reports =
      gather_reports(prompts_.sync.world(), own, Deadline::after(prompts_.options.layer_timeout));
  if (!reports.ok()) return prompts_.sync.broken(reports.error());
  for (const auto& report : *reports) {
    for (const auto& message : report.messages()) resources_.reporter.relay(message);
  }
  return {};
}

}  // namespace millrace::worker
