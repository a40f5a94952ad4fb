// SPDX-License-Identifier: Apache-2.0
#include "worker/group/group_service.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "common/errc_wire.h"
#include "common/log.h"
#include "engine/ranks/agreement.h"
#include "worker/prompt/prompt_run.h"
#include "worker/sync/command_channel.h"

namespace millrace::worker {

namespace {

// A busy rank responds at every command and every layer, so the timeout between requests need not
// be longer than that within them. An idle rank 0 lets the others wait for kCommandInterval.
SyncTimeouts timeouts_of(const GroupOptions& options) {
  return {.command = std::max<Duration>(4 * kCommandInterval,
                                        std::min<Duration>(kCommandTimeout, options.layer_timeout)),
          .layer = options.layer_timeout};
}

}  // namespace

GroupService::GroupService(const GroupResources& resources, const GroupOptions& options,
                           const Clock& clock)
    : resources_(resources),
      options_(options),
      clock_(clock),
      sync_(resources_.runtime.grid().world(), resources_.watch,
            /*may_hang=*/!resources_.runtime.device().info().host_memory, timeouts_of(options)),
      reporter_(resources_.link, resources_.board),
      leases_(resources_.runtime.weights().shard.kv_replica == 0 ? &resources_.store : nullptr,
              sync_, reporter_, options),
      prompts_{.runtime = resources_.runtime,
               .store = resources_.store,
               .server = resources_.server,
               .sync = sync_,
               .options = options,
               .on_cached = sync_.is_root() ? std::function<void()>([this] {
                 reporter_.cache_changed(resources_.cache.read());
               })
                                            : nullptr} {
  engine::Lane* lane = resources_.runtime.lane();
  if (lane == nullptr) return;
  lane_runs_.emplace(LaneResources{.prompts = prompts_,
                                   .lane = *lane,
                                   .reporter = reporter_,
                                   .watch = resources_.watch,
                                   .peers = resources_.peers});
}

Result<void> GroupService::run(const std::atomic<bool>& stop) {
  MR_RETURN_IF_ERROR(engine::all_agree(sync_.world(), make_page_movers(),
                                       Deadline::after(sync_.timeouts().command)));
  set_busy(false);
  auto served = serve_all(stop);
  if (!served.ok() && served.error().code == Errc::kPeerLost) {
    for (const auto& run : suspended_) run->group_broke();
  }
  return served;
}

Result<void> GroupService::serve_all(const std::atomic<bool>& stop) {
  if (resources_.link == nullptr) return serve(nullptr);
  Drain drain(resources_.board, reporter_, options_, clock_);
  CommandSource commands(*resources_.link, reporter_, drain, options_, stop, clock_,
                         lane_runs_ ? resources_.runtime.grid().shape().cp : 1);
  MR_RETURN_IF_ERROR(serve(&commands));
  if (commands.refusal().empty()) return {};
  return error(Errc::kUnsupported, "the coordinator refused this group: {}", commands.refusal());
}

void GroupService::set_busy(bool busy) {
  if (resources_.pool_locker != nullptr) resources_.pool_locker->set_busy(busy);
  if (resources_.peers != nullptr) resources_.peers->set_busy(busy);
}

Result<void> GroupService::make_page_movers() {
  const int num_threads = resources_.runtime.cores().num_threads;
  auto& device = resources_.runtime.device();
  const int num_prompts = options_.max_preempting_tokens == 0 ? 1 : 2;  // at a time
  for (int i = 0; i < num_prompts; ++i) {
    const auto place = static_cast<size_t>(i);
    MR_ASSIGN_OR_RETURN(writers_[place],
                        PageWriter::create(device, resources_.store, resources_.store.geometry(),
                                           std::min(num_threads, kMaxPageWriters)));
    MR_ASSIGN_OR_RETURN(readers_[place],
                        PageReader::create(device, resources_.store.geometry(),
                                           std::min(num_threads, kMaxPageReaders)));
  }
  return {};
}

// `commands`: rank 0's, null elsewhere.
Result<void> GroupService::serve(CommandSource* commands) {
  while (true) {
    sync_.expect("waiting for a command", sync_.timeouts().command + kCommandInterval);
    MR_ASSIGN_OR_RETURN(
        const auto command,
        sync_.broadcast_command(commands != nullptr ? commands->next() : protocol::GroupCommand()));
    MR_RETURN_IF_ERROR(execute(command, commands));
    if (command.stop()) return {};
  }
}

Result<void> GroupService::execute(const protocol::GroupCommand& command, CommandSource* commands) {
  MR_RETURN_IF_ERROR(change_leases(command));
  resources_.store.expire_leases();
  MR_RETURN_IF_ERROR(end_suspended(command));
  MR_RETURN_IF_ERROR(run_prompts(command, commands));
  sync_.expect("gathering metrics", sync_.timeouts().command);
  const auto posted = post_metrics();
  return posted.ok() ? posted : sync_.broken(posted.error());
}

Result<void> GroupService::change_leases(const protocol::GroupCommand& command) {
  for (const auto& change : command.lease_changes()) MR_RETURN_IF_ERROR(leases_.apply(change));
  return {};
}

Result<void> GroupService::run_prompts(const protocol::GroupCommand& command,
                                       CommandSource* commands) {
  const bool side_by_side = command.side_by_side_size() > 0;
  const bool resumes = !command.resumed().empty();
  if (!side_by_side && !resumes && !command.has_run()) return {};
  set_busy(true);
  has_suspended_ = false;
  auto outcome = side_by_side ? run_side_by_side(command, commands)
                 : resumes    ? resume_prompt(command.resumed())
                              : run_prompt(command.run(), commands);
  if (commands != nullptr && std::exchange(has_suspended_, false)) {
    commands->set_running_aside();
  } else if (commands != nullptr) {
    commands->finish_running();
  }
  set_busy(num_running_ > 0);
  return outcome;
}

Result<void> GroupService::run_side_by_side(const protocol::GroupCommand& command,
                                            CommandSource* commands) {
  MR_CHECK(lane_runs_.has_value(), "{} prompts side by side on a group without lanes",
           command.side_by_side_size());
  const auto find_cancelled = [commands] { return commands->after_side_by_side(); };
  return lane_runs_->run(command, page_movers(),
                         commands != nullptr ? find_cancelled : LaneRuns::FindCancelled(),
                         [this, commands](const protocol::RunPrompt& prompt) {
                           if (commands != nullptr) commands->run_alone(prompt.request_id());
                           return run_prompt(prompt, commands);
                         });
}

PageMovers GroupService::page_movers() const {
  return {.writer = *writers_[num_running_], .reader = *readers_[num_running_]};
}

OtherPrompts GroupService::other_prompts() const {
  OtherPrompts others{.interrupted = num_running_ == 0 ? 0 : interrupted_tokens_};
  for (const auto& run : suspended_) others.suspended.push_back(run->state().num_tokens());
  return others;
}

Result<void> GroupService::run_prompt(const protocol::RunPrompt& prompt, CommandSource* commands) {
  auto run = std::make_unique<PromptRun>(
      prompts_,
      ComputingRanks{.engine = resources_.runtime.engine(),
                     .sync = sync_,
                     .limits = resources_.runtime.limits(),
                     .pace = pace_},
      page_movers(), reporter_, prompt, other_prompts(),
      PromptMeetings{
          .at_boundary =
              [this, commands](const auto& report) { return meet_after_layer(report, commands); },
          .suspends = [this] { return std::exchange(suspends_, false); }});
  return compute(std::move(run), &PromptRun::run);
}

// No other prompt runs: this one did not run between the layers of another, and gets the same page
// movers again.
Result<void> GroupService::resume_prompt(const std::string& request_id) {
  auto run = take_suspended(request_id);
  sync_.expect("the next layer", options_.layer_timeout);
  return compute(std::move(run), &PromptRun::resume);
}

Result<void> GroupService::compute(std::unique_ptr<PromptRun> run,
                                   Result<PromptRun::Progress> (PromptRun::*step)()) {
  if (num_running_ == 0) interrupted_tokens_ = run->state().num_tokens();
  ++num_running_;
  const auto progress = ((*run).*step)();
  --num_running_;
  if (progress.ok() && *progress == PromptRun::Progress::kSuspended) {
    suspended_.push_back(std::move(run));
    has_suspended_ = true;
    return {};
  }
  attention_imbalance_ = run->state().attention_imbalance().value_or(attention_imbalance_);
  if (sync_.is_root()) counts_ += run->state().counts();
  return progress.status();
}

std::unique_ptr<PromptRun> GroupService::take_suspended(const std::string& request_id) {
  const auto found = std::ranges::find(
      suspended_, request_id, [](const auto& run) { return run->state().prompt().request_id(); });
  MR_CHECK(found != suspended_.end(), "request {} is not suspended", request_id);
  auto run = std::move(*found);
  suspended_.erase(found);
  return run;
}

Result<void> GroupService::end_suspended(const protocol::GroupCommand& command) {
  for (const auto& ended : command.end_suspended()) {
    const auto run = take_suspended(ended.request_id());
    const auto& why = ended.error();
    MR_RETURN_IF_ERROR(run->end(Error(errc_from_wire(why.code()), why.message())));
  }
  return {};
}

// Rank 0 learns what ends a request, and tells all ranks with the command: the ranks need not agree
// on it.
Result<void> GroupService::meet_after_layer(const engine::LayerReport& report,
                                            CommandSource* commands) {
  const auto next = commands != nullptr ? commands->at_boundary(report) : protocol::GroupCommand();
  MR_ASSIGN_OR_RETURN(
      const auto command,
      broadcast_command(sync_.world(), next, Deadline::after(options_.layer_timeout)));
  MR_RETURN_IF_ERROR(change_leases(command));
  resources_.store.expire_leases();
  MR_RETURN_IF_ERROR(end_suspended(command));
  MR_RETURN_IF_ERROR(run_prompts(command, commands));
  MR_RETURN_IF_ERROR(expect_next_layer(report));
  suspends_ = command.suspended();
  if (!command.has_end_running()) return {};
  return Error(errc_from_wire(command.end_running().code()), command.end_running().message());
}

Result<void> GroupService::expect_next_layer(const engine::LayerReport& report) {
  sync_.expect(report.layer + 1 < report.num_layers
                   ? fmt::format("layer {} of {}", report.layer + 2, report.num_layers)
                   : "the logits",
               options_.layer_timeout);
  return {};
}

Result<void> GroupService::post_metrics() {
  const auto store = resources_.store.stats();
  reporter_.cache_changed(resources_.cache.read());
  const auto lost = resources_.cache.take_lost();
  PromptCounts counts = counts_;
  if (lane_runs_) counts += lane_runs_->counts();
  PerTier<kvstore::ReadTotals> loads;
  for (const auto& reader : readers_) {
    if (reader == nullptr) continue;
    const auto of_reader = reader->loads();
    for (const Tier tier : kTiers) {
      loads[tier].bytes += of_reader[tier].bytes;
      loads[tier].seconds += of_reader[tier].seconds;
    }
  }
  const auto& groups = resources_.runtime.engine().groups();
  const RankStats own{
      .store = store,
      .free_prompt_tokens = resources_.runtime.storable_tokens(store.pages_available),
      .prefix_loads = loads,
      .transport = resources_.server.stats(),
      .tp = comm::sum_of(groups.tp->stats()),
      .cp = comm::sum_of(groups.cp->stats()),
      .attention_imbalance = attention_imbalance_,
      .cache_queried_tokens = counts.cache_queried_tokens,
      .cache_hit_tokens = counts.cache_hit_tokens,
      .cache_uneconomic_tokens = counts.cache_uneconomic_tokens,
      .num_lost_pages = std::ssize(lost.pages),
      .lost_are_all_left = lost.are_all_left};
  MR_ASSIGN_OR_RETURN(const auto ranks,
                      gather_stats(sync_.world(), own, Deadline::after(sync_.timeouts().command)));
  resources_.store.advance_eviction_clock(eviction_clock(ranks));
  reporter_.metrics(ranks);
  return gather_lost_pages(ranks, lost);
}

// Where no rank has lost pages, nothing is exchanged.
Result<void> GroupService::gather_lost_pages(const std::vector<RankStats>& ranks,
                                             const LostPages& own) {
  std::vector<int64_t> counts;  // of bytes
  size_t total = 0;
  bool any = false;
  for (const auto& rank : ranks) {
    counts.push_back(rank.num_lost_pages * static_cast<int64_t>(sizeof(BlockHash)));
    total += static_cast<size_t>(rank.num_lost_pages);
    any = any || rank.num_lost_pages > 0 || rank.lost_are_all_left;
  }
  if (!any) return {};
  std::vector<BlockHash> all(total);
  MR_RETURN_IF_ERROR(sync_.world().all_gather(std::as_bytes(std::span(own.pages)),
                                              std::as_writable_bytes(std::span(all)), counts,
                                              Deadline::after(sync_.timeouts().command)));
  if (!sync_.is_root()) return {};
  std::vector<LostPages> by_rank;
  auto next = all.begin();
  for (const auto& rank : ranks) {
    by_rank.push_back(
        {.pages = {next, next + rank.num_lost_pages}, .are_all_left = rank.lost_are_all_left});
    next += rank.num_lost_pages;
  }
  reporter_.cache_changed(resources_.cache.lost(by_rank));
  return {};
}

}  // namespace millrace::worker
