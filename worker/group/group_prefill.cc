// One prompt in a group, from the command that brings it to its manifest.
#include <algorithm>
#include <optional>
#include <utility>

#include "common/errc_wire.h"
#include "common/log.h"
#include "plan/plan_for_length.h"
#include "worker/group/group_service.h"
#include "worker/ranks/agreement.h"
#include "worker/ranks/command_channel.h"
#include "worker/ranks/rank_values.h"
#include "worker/store/manifest.h"
#include "worker/store/store_sink.h"

namespace millrace::worker {

namespace {

// Forgets the pages of a request that came to no good end. Made once the store has begun it, and
// not before: one that is refused because its id is held must not take the holder's pages along.
class UnfinishedPages {
 public:
  UnfinishedPages(kvstore::KvStore& store, const std::string& request_id)
      : store_(store), request_id_(request_id) {}
  UnfinishedPages(const UnfinishedPages&) = delete;
  UnfinishedPages& operator=(const UnfinishedPages&) = delete;
  ~UnfinishedPages() {
    if (!kept_) store_.abort(request_id_);
  }
  void keep() { kept_ = true; }

 private:
  kvstore::KvStore& store_;
  const std::string& request_id_;
  bool kept_ = false;
};

bool streams(const protocol::RunPrompt& prompt) {
  return prompt.options().handover() == protocol::HANDOVER_STREAMING;
}

protocol::ErrorInfo to_wire(const Error& error) {
  protocol::ErrorInfo info;
  info.set_code(errc_to_wire(error.code));
  info.set_message(error.message);
  return info;
}

// The request has been checked and let in. What is still wrong with values in the middle of it, as
// scores that are no numbers where weights are none, the client can do nothing about.
Error not_the_clients(const Error& failure) {
  const bool blames_client = failure.code == Errc::kInvalidArgument ||
                             failure.code == Errc::kTooLarge || failure.code == Errc::kNotFound;
  return Error(blames_client ? Errc::kInternal : failure.code, failure.message, failure.where);
}

StoredBytes sum_of(std::span<const StoredBytes> ranks) {
  StoredBytes sum;
  for (const auto& rank : ranks) {
    sum.total += rank.total;
    sum.while_computing += rank.while_computing;
  }
  return sum;
}

}  // namespace

struct GroupService::Running {
  const protocol::RunPrompt& prompt;
  const StoreSink* sink = nullptr;  // null on a rank whose kv heads another stores
  std::vector<double> density;      // of each layer computed
  int32_t num_reported = 0;         // layers that the coordinator was told of
};

struct GroupService::Finished {
  PrefillResult prefill;
  kvstore::Placement placement;
  StoredBytes stored;  // by all ranks
};

Result<void> GroupService::run_prompt(const protocol::RunPrompt& prompt) {
  if (link_ != nullptr) {
    protocol::Envelope started;
    started.mutable_prefill_started()->set_request_id(prompt.request_id());
    send(started);
  }
  // Up to the first boundary: room for the prompt is made, then a layer run.
  expect("the first layer", 2 * options_.layer_timeout);
  const Stopwatch stopwatch;
  StageClock stages;
  auto finished = prefill(prompt, stages);
  auto described = finished.ok() ? manifest(prompt, &finished->prefill, finished->placement)
                                 : Result<protocol::Manifest>(finished.error());
  inbox_.finish_running();
  log_end(prompt, finished, described.ok() ? Result<void>() : described.error(),
          stopwatch.elapsed_s());
  if (!described.ok()) {
    auto met = meet_after(described.error());
    send_failed(prompt.request_id(), met.ok() ? described.error() : met.error());
    return met;
  }
  send_done(*finished, std::move(*described), stages);
  return {};
}

// One line a request, where the group's other lines are: rank 0's.
void GroupService::log_end(const protocol::RunPrompt& prompt, const Result<Finished>& finished,
                           const Result<void>& outcome, double elapsed_s) const {
  if (link_ == nullptr) return;
  const auto head = fmt::format("request {}: {} tokens, ", prompt.request_id(),
                                prompt.prompt_token_ids().size() / sizeof(int32_t));
  if (outcome.ok()) {
    spdlog::info("{}done in {:.2f} s, density {:.3f}", head, elapsed_s, finished->prefill.density);
  } else {
    spdlog::info("{}{} after {:.2f} s: {}", head, errc_name(outcome.error().code), elapsed_s,
                 outcome.error().message);
  }
}

void GroupService::send_done(const Finished& finished, protocol::Manifest manifest,
                             StageClock& stages) {
  protocol::Envelope envelope;
  auto& done = *envelope.mutable_prefill_done();
  done.set_request_id(manifest.request_id());
  *done.mutable_manifest() = std::move(manifest);
  for (size_t i = 0; i < kPhaseNames.size(); ++i) {
    if (finished.prefill.phases.seconds()[i] == 0) continue;  // not a phase of this request
    auto& phase = *done.add_phases();
    phase.set_phase(std::string(kPhaseNames[i]));
    phase.set_seconds(finished.prefill.phases.seconds()[i]);
  }
  const auto stage_seconds = stages.stop();
  for (size_t i = 0; i < kStageNames.size(); ++i) {
    auto& stage = *done.add_stages();
    stage.set_stage(std::string(kStageNames[i]));
    stage.set_seconds(stage_seconds[i]);
  }
  done.mutable_stored()->set_bytes(static_cast<uint64_t>(finished.stored.total));
  done.mutable_stored()->set_while_computing(
      static_cast<uint64_t>(finished.stored.while_computing));
  if (link_ != nullptr) board_.hold(done);
  send(envelope);
}

Result<model::HeadPlan> GroupService::plan_for(const protocol::RunPrompt& prompt,
                                               int64_t num_tokens) const {
  const protocol::PrefillOptions& wanted = prompt.options();
  const bool from_client = !wanted.head_plan().empty();
  MR_ASSIGN_OR_RETURN(
      auto plan,
      model::make_head_plan(
          from_client ? wanted.head_plan() : options_.head_plan, runtime_.weights().config,
          num_tokens, runtime_.crossover_tokens(),
          {.allow_files = !from_client,
           .min_recall = wanted.min_recall() > 0 ? wanted.min_recall() : options_.min_recall}));
  return model::plan_for_length(std::move(plan), num_tokens, runtime_.device().info().sparse_cost);
}

Result<std::vector<int32_t>> GroupService::checked_tokens(const protocol::RunPrompt& prompt) {
  auto token_ids = decode_token_ids(prompt.prompt_token_ids());
  const auto own = token_ids.ok() ? check_prompt(*token_ids, runtime_.limits())
                                  : Result<void>(token_ids.error());
  MR_RETURN_IF_ERROR(agree(runtime_.grid().world(), own, Deadline::after(options_.layer_timeout)));
  return token_ids;
}

Result<GroupService::Finished> GroupService::prefill(const protocol::RunPrompt& prompt,
                                                     StageClock& stages) {
  const auto& id = prompt.request_id();
  MR_ASSIGN_OR_RETURN(const auto token_ids, checked_tokens(prompt));
  const auto num_tokens = std::ssize(token_ids);
  const auto pages = runtime_.engine().partition(num_tokens).pages(runtime_.grid().cp().rank());
  const auto plan = plan_for(prompt, num_tokens);
  Result<void> own = plan.ok() ? Result<void>() : plan.error();
  const bool stores = runtime_.weights().shard.kv_replica == 0;
  std::optional<UnfinishedPages> unfinished;
  if (own.ok() && stores) {
    own = store_.begin_request(id, num_tokens, pages);
    if (own.ok()) unfinished.emplace(store_, id);
    if (own.ok() && streams(prompt)) own = store_.open(id, prompt.lease_id());
  }
  MR_RETURN_IF_ERROR(agree(runtime_.grid().world(), own, Deadline::after(options_.layer_timeout)));
  if (streams(prompt)) MR_RETURN_IF_ERROR(announce(prompt));

  std::optional<StoreSink> sink;
  if (stores) sink.emplace(runtime_.device(), store_, *writer_, id, pages);
  Running running{.prompt = prompt, .sink = sink ? &*sink : nullptr};
  Finished finished;
  auto computed = runtime_.engine().prefill(
      {.token_ids = token_ids,
       .plan = &*plan,
       .sink = sink ? &*sink : nullptr,
       .at_boundary = [&](const LayerReport& report) { return at_boundary(running, report); },
       .stages = &stages},
      options_.layer_timeout);
  if (!computed.ok()) return not_the_clients(computed.error());
  finished.prefill = *std::move(computed);
  report_layers(running, runtime_.weights().config.num_layers);
  MR_RETURN_IF_ERROR(seal(running, finished));
  if (unfinished) unfinished->keep();
  return finished;
}

// On all ranks or none.
Result<void> GroupService::seal(const Running& running, Finished& finished) {
  auto& world = runtime_.grid().world();
  attention_imbalance_ = finished.prefill.imbalance.mean;
  expect("sealing the cache", 2 * options_.layer_timeout);  // and gathering the manifest
  Result<StoredBytes> own = StoredBytes();
  if (running.sink != nullptr) {
    const auto placed = store_.seal(running.prompt.request_id(), running.prompt.lease_id(),
                                    lease_of(running.prompt.options().lease_ms()));
    own = placed.ok() ? running.sink->stored() : Result<StoredBytes>(placed.error());
    if (placed.ok()) finished.placement = *placed;
  }
  MR_ASSIGN_OR_RETURN(const auto stored,
                      agree_on_values(world, own, Deadline::after(options_.layer_timeout)));
  finished.stored = sum_of(stored);
  return {};
}

// Of a streaming request, once every rank has room for its pages and answers for them.
Result<void> GroupService::announce(const protocol::RunPrompt& prompt) {
  MR_ASSIGN_OR_RETURN(auto known, manifest(prompt, /*result=*/nullptr, {}));
  protocol::Envelope envelope;
  envelope.mutable_prefill_opened()->set_request_id(prompt.request_id());
  *envelope.mutable_prefill_opened()->mutable_manifest() = std::move(known);
  send(envelope);
  return {};
}

// A device with memory of its own is a layer ahead of the store, so a layer that may be pulled is
// one that all ranks say is complete; of other requests the coordinator hears what is computed.
Result<int32_t> GroupService::num_reportable(const Running& running) {
  const auto num_computed = static_cast<int32_t>(running.density.size());
  if (!streams(running.prompt)) return num_computed;
  const int32_t own = running.sink == nullptr ? num_computed : running.sink->num_complete();
  MR_ASSIGN_OR_RETURN(const auto complete, gather_values(runtime_.grid().world(), own,
                                                         Deadline::after(options_.layer_timeout)));
  return *std::min_element(complete.begin(), complete.end());
}

void GroupService::report_layers(Running& running, int32_t end_layer) {
  for (; running.num_reported < end_layer; ++running.num_reported) {
    protocol::Envelope envelope;
    auto& layer = *envelope.mutable_layer_done();
    layer.set_request_id(running.prompt.request_id());
    layer.set_layer(static_cast<uint32_t>(running.num_reported));
    layer.set_num_layers(static_cast<uint32_t>(runtime_.weights().config.num_layers));
    layer.set_density(running.density[static_cast<size_t>(running.num_reported)]);
    send(envelope);
  }
}

Result<void> GroupService::may_go_on(const protocol::RunPrompt& prompt,
                                     const LayerReport& report) const {
  if (inbox_.running_cancelled()) {
    return error(Errc::kCancelled, "request {} was cancelled after layer {} of {}",
                 prompt.request_id(), report.layer + 1, report.num_layers);
  }
  if (clock_.now() >= running_deadline_) {
    return error(Errc::kDeadlineExceeded, "request {}: the deadline passed in layer {} of {}",
                 prompt.request_id(), report.layer + 1, report.num_layers);
  }
  return {};
}

// What ends a request comes to rank 0, and from there to all with the command: the ranks need not
// agree on it.
Result<void> GroupService::at_boundary(Running& running, const LayerReport& report) {
  running.density.push_back(report.density);
  MR_ASSIGN_OR_RETURN(const int32_t end_layer, num_reportable(running));
  report_layers(running, end_layer);
  protocol::GroupCommand command;
  if (link_ != nullptr) {
    read_link(Duration::zero());
    look_for_drain();
    for (auto& change : inbox_.take_lease_changes()) {
      *command.add_lease_changes() = std::move(change);
    }
    const auto goes_on = may_go_on(running.prompt, report);
    if (!goes_on.ok()) *command.mutable_end_running() = to_wire(goes_on.error());
  }
  MR_ASSIGN_OR_RETURN(command, share_command(runtime_.grid().world(), command,
                                             Deadline::after(options_.layer_timeout)));
  for (const auto& change : command.lease_changes()) MR_RETURN_IF_ERROR(change_lease(change));
  store_.expire_leases();
  expect(report.layer + 1 < report.num_layers
             ? fmt::format("layer {} of {}", report.layer + 2, report.num_layers)
             : "the logits",
         options_.layer_timeout);
  if (!command.has_end_running()) return {};
  return Error(errc_from_wire(command.end_running().code()), command.end_running().message());
}

Result<protocol::Manifest> GroupService::manifest(const protocol::RunPrompt& prompt,
                                                  const PrefillResult* result,
                                                  const kvstore::Placement& placement) {
  MR_ASSIGN_OR_RETURN(auto ranks,
                      gather_shards(runtime_.grid().world(), server_.address(), placement,
                                    Deadline::after(options_.layer_timeout)));
  const auto num_tokens = prompt.prompt_token_ids().size() / sizeof(int32_t);
  return make_manifest({.request_id = prompt.request_id(),
                        .lease_id = prompt.lease_id(),
                        .lease = lease_of(prompt.options().lease_ms()),
                        .epoch = options_.epoch,
                        .result = result,
                        .ranks = ranks},
                       runtime_.weights(),
                       runtime_.engine().partition(static_cast<int64_t>(num_tokens)),
                       runtime_.grid().shape());
}

}  // namespace millrace::worker
