// SPDX-License-Identifier: Apache-2.0
#include "worker/prompt/prompt_state.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/content/prefix_keys.h"
#include "common/errc_wire.h"
#include "common/log.h"
#include "engine/ranks/agreement.h"
#include "engine/ranks/rank_values.h"
#include "kernels/index/tiling.h"
#include "plan/column_cost.h"
#include "worker/store/make_manifest.h"

namespace millrace::worker {

namespace {

// The request has been checked and admitted. If values go wrong in the middle of it (scores are NaN
// where weights are NaN), that is not the client's fault.
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

PromptState::PromptState(const PromptContext& context, const ComputingRanks& ranks,
                         const PageMovers& movers, CoordinatorReporter& reporter,
                         const protocol::RunPrompt& prompt)
    : context_(context),
      ranks_(ranks),
      movers_(movers),
      reporter_(reporter),
      prompt_(prompt),
      grid_(context.runtime.grid()),
      num_tokens_(static_cast<int64_t>(prompt.prompt_token_ids().size() / sizeof(int32_t))),
      progress_(reporter, prompt.request_id(), context.runtime.weights().config.num_layers) {}

bool PromptState::computes() const {
  return !ranks_.lane || *ranks_.lane == grid_.cp().rank();
}

bool PromptState::is_first_of_computing() const {
  return computes() && ranks_.sync.is_root();
}

engine::Partition PromptState::partition() const {
  const int64_t cached_tokens = cached_.prefix.num_tokens();
  if (!ranks_.lane) return ranks_.engine.partition(num_tokens_, cached_tokens);
  return engine::Partition::on_one_rank(num_tokens_, grid_.shape().cp, *ranks_.lane, cached_tokens);
}

void PromptState::read() {
  read_ = read_prompt(prompt_, ranks_.limits, context_.runtime, grid_, context_.options);
}

Result<void> PromptState::agree_on_input() {
  // Until the first boundary, room for the prompt is made, and then one layer is run.
  context_.sync.expect("the first layer", 2 * context_.options.layer_timeout);
  if (!read_) read();
  auto input = *std::exchange(read_, std::nullopt);
  MR_RETURN_IF_ERROR(context_.sync.all_agree(input.status()));
  input_ = *std::move(input);
  return {};
}

Result<void> PromptState::find_prefix(kvstore::CacheCheck check, bool lane_alone) {
  const int64_t most = kernels::first_dense_position(num_tokens_) / kernels::kPageTokens;
  const auto wanted = std::span(input_->page_keys)
                          .first(std::min(input_->page_keys.size(), static_cast<size_t>(most)));
  if (!reads_cache(prompt_) || wanted.empty()) return {};
  MR_ASSIGN_OR_RETURN(cached_, agree_on_prefix(context_.store, grid_, wanted,
                                               Deadline::after(context_.options.layer_timeout),
                                               {.pages = check,
                                                .num_threads = context_.runtime.cores().num_threads,
                                                .num_tokens = num_tokens_,
                                                .rows = ranks_.pace.of(input_->plan_identity),
                                                .loads_beside = movers_.reader.runs_beside(),
                                                .lane = ranks_.lane.value_or(-1),
                                                .lane_alone = lane_alone}));
  return {};
}

// A prompt may fit without its prefix where it does not fit behind it, since the prefix need not
// lie evenly on the ranks. A page of the prefix may also give way between the two steps, though not
// while the ranks have one prompt at a time.
Result<void> PromptState::make_room() {
  auto made = make_room_once();
  if (made.ok() || cached_.prefix.num_pages() == 0 ||
      (made.error().code != Errc::kUnavailable && made.error().code != Errc::kExhausted)) {
    return made;
  }
  pages_.reset();
  cached_ = {};
  return make_room_once();
}

Result<void> PromptState::make_room_once() {
  Result<void> own;
  if (context_.runtime.weights().shard.kv_replica == 0) {
    pages_.emplace(context_.runtime.device(), context_.store, movers_.writer, movers_.reader,
                   prompt_.request_id(), partition().pages(grid_.cp().rank()), cached_.own);
    own = pages_->begin(num_tokens_);
    if (own.ok() && streams(prompt_)) own = pages_->open(prompt_.lease_id());
  }
  return context_.sync.all_agree(own);
}

Result<void> PromptState::announce() {
  if (!streams(prompt_)) return {};
  MR_ASSIGN_OR_RETURN(auto known, manifest(/*finished=*/nullptr));
  if (is_first_of_computing()) reporter_.opened(prompt_.request_id(), std::move(known));
  return {};
}

void PromptState::forget_prefix() {
  pages_.reset();
  cached_ = {};
  progress_.restart();
}

Result<engine::PrefillResult> PromptState::prefill(Layers layers) {
  MR_CHECK(!layers.pauses, "a prompt that is set aside, in one step");
  MR_RETURN_IF_ERROR(begin(std::move(layers)));
  MR_RETURN_IF_ERROR(advance());
  return finish_layers();
}

Result<void> PromptState::begin(Layers layers) {
  budget_.reset();
  engine::KvSink* sink = layers.sink;
  if (has_budget(prompt_)) {
    sink = &budget_.emplace(prompt_.options().kv_budget(), context_.runtime.weights(), num_tokens_,
                            sink);
  }
  MR_ASSIGN_OR_RETURN(
      started_,
      ranks_.engine.start(
          {.token_ids = input_->token_ids,
           .plan = &input_->plan,
           .recall_by_head = prompt_.options().recall_by_head(),
           .sink = sink,
           .prefix = std::move(layers.prefix),
           .prefix_source = layers.source,
           .at_boundary = [this, at_boundary = std::move(layers.at_boundary)](
                              const auto& report) { return after_layer(report, at_boundary); },
           .pauses = std::move(layers.pauses),
           .stages = &stages_},
          context_.options.layer_timeout));
  return {};
}

Result<bool> PromptState::advance() {
  auto all_done = ranks_.engine.advance(*started_);
  if (all_done.ok() && !*all_done) {
    auto settled = ranks_.sync.all_agree(pages_ ? pages_->settle() : Result<void>());
    if (!settled.ok()) all_done = std::move(settled).error();
  }
  if (!all_done.ok()) started_.reset();
  return all_done;
}

// What was started ends with the layers: its memory is for the next prompt.
Result<engine::PrefillResult> PromptState::finish_layers() {
  const auto started = std::move(started_);
  return ranks_.engine.finish(*started);
}

Result<void> PromptState::after_layer(const engine::LayerReport& report,
                                      const Boundary& at_boundary) {
  progress_.computed(report.density);
  MR_ASSIGN_OR_RETURN(const int32_t end_layer, num_reportable());
  progress_.report_until(end_layer);
  return at_boundary(report);
}

// A device with memory of its own is a layer ahead of the store. So the layers reported of a
// streaming request, which may be pulled, are those that all ranks say are complete. Of other
// requests, they are those that are computed.
Result<int32_t> PromptState::num_reportable() {
  const int32_t num_computed = progress_.num_computed();
  if (!streams(prompt_)) return num_computed;
  const int32_t own = pages_ ? pages_->sink().num_complete() : num_computed;
  MR_ASSIGN_OR_RETURN(const auto complete,
                      engine::gather_values(ranks_.sync.world(), own,
                                            Deadline::after(context_.options.layer_timeout)));
  return *std::min_element(complete.begin(), complete.end());
}

Result<void> PromptState::conclude(Result<engine::PrefillResult> prefill) {
  if (!prefill.ok()) return not_the_clients(prefill.error());
  finished_.prefill = *std::move(prefill);
  finished_.cached_tokens = cached_.prefix.num_tokens();
  finished_.uneconomic_tokens = cached_.num_left * kernels::kPageTokens;
  learn_pace(finished_.prefill);
  progress_.report_until(context_.runtime.weights().config.num_layers);
  attention_imbalance_ = finished_.prefill.imbalance.mean;
  return budget_ ? drop_pages() : Result<void>();
}

// Phases are measured on the device: they do not include prompts that ran between two layers of
// this one, and they are the same on all ranks.
void PromptState::learn_pace(const engine::PrefillResult& prefill) {
  double computing_s = 0;
  for (const double phase_s : prefill.phases.seconds()) computing_s += phase_s;
  ranks_.pace.observe(input_->plan_identity, cached_.prefix.num_tokens(), num_tokens_, computing_s);
}

Result<void> PromptState::drop_pages() {
  ranks_.sync.expect("dropping pages", 2 * context_.options.layer_timeout);
  MR_ASSIGN_OR_RETURN(finished_.budget,
                      budget_->choose(grid_.tp(), Deadline::after(context_.options.layer_timeout)));
  return ranks_.sync.all_agree(pages_ ? pages_->drop_all_but(finished_.budget->kept)
                                      : Result<void>());
}

Result<void> PromptState::close(const PromptEnd& end) {
  auto described = end.went.ok() ? finish(end.own) : Result<protocol::Manifest>(end.went.error());
  started_.reset();
  pages_.reset();  // after a failure, the pages are gone before it is reported
  const auto outcome = described.status();
  log_end(outcome, end.runs_again);
  if (!outcome.ok()) {
    auto met = context_.sync.meet_after(outcome.error(), context_.sync.timeouts().command);
    if (is_first_of_computing() && !end.runs_again) {
      reporter_.failed(prompt_.request_id(), met.ok() ? outcome.error() : met.error());
    }
    return met;
  }
  if (!is_first_of_computing()) return {};
  auto done = done_message(finished_, prompt_, std::move(*described),
                           context_.store.geometry().page_bytes(),
                           end.stage_seconds.value_or(stages_.stop()));
  done.set_in_lane(ranks_.lane.has_value());
  reporter_.done(std::move(done));
  return {};
}

Result<protocol::Manifest> PromptState::finish(const Result<void>& failure) {
  MR_RETURN_IF_ERROR(seal(failure));
  if (pages_) pages_->keep();
  remember();
  counts_ = {.cache_queried_tokens = reads_cache(prompt_) ? num_tokens_ : 0,
             .cache_hit_tokens = finished_.cached_tokens,
             .cache_uneconomic_tokens = finished_.uneconomic_tokens};
  return manifest(&finished_);
}

// The lease may be over already; then there is nothing to remember.
void PromptState::remember() {
  if (!pages_ || !writes_cache(prompt_) || input_->page_keys.empty()) return;
  const auto remembered = pages_->remember(
      input_->page_keys,
      plan::column_cost(context_.runtime.weights().config, num_tokens_, finished_.prefill.density),
      context_.on_cached ? std::make_shared<const kvstore::CachedPrompt>(cached_prompt())
                         : nullptr);
  if (!remembered.ok()) log::debug("{}", remembered.error().to_string());
  if (context_.on_cached) context_.on_cached();
}

// If another rank could not remember its pages, that rank's store says that they are gone.
kvstore::CachedPrompt PromptState::cached_prompt() const {
  const auto dealt = partition();
  std::vector<int> owners = cached_.prefix.owners;
  for (int64_t page = std::ssize(owners); page < std::ssize(input_->page_keys); ++page) {
    owners.push_back(dealt.owner(page * kernels::kPageTokens));
  }
  const auto& options = prompt_.options();
  return {.page_keys = input_->page_keys,
          .owners = std::move(owners),
          .token_ids = input_->token_ids,
          .cache_salt = options.cache_salt(),
          .origin = input_->origin,
          .tenant = tenant_key(prompt_.owner(), options.cache_salt()),
          .head_plan = options.head_plan(),
          .min_recall = options.min_recall(),
          .impure = input_->impure};
}

Result<void> PromptState::seal(const Result<void>& failure) {
  context_.sync.expect("sealing the cache",
                       2 * context_.options.layer_timeout);  // and gathering the manifest
  Result<StoredBytes> own = StoredBytes();
  if (!failure.ok()) {
    own = failure.error();
  } else if (pages_) {
    const auto placed = pages_->seal(prompt_.lease_id(),
                                     granted_lease(context_.options, prompt_.options().lease_ms()));
    own = placed.ok() ? pages_->sink().stored() : Result<StoredBytes>(placed.error());
    if (placed.ok()) finished_.placement = *placed;
  }
  MR_ASSIGN_OR_RETURN(const auto stored,
                      engine::all_agree_on_values(context_.sync.world(), own,
                                                  Deadline::after(context_.options.layer_timeout)));
  finished_.stored = sum_of(stored);
  return {};
}

Result<protocol::Manifest> PromptState::manifest(const FinishedPrompt* finished) const {
  MR_ASSIGN_OR_RETURN(
      auto ranks, gather_shards(context_.sync.world(), context_.server.address(),
                                finished == nullptr ? kvstore::Placement() : finished->placement,
                                Deadline::after(context_.options.layer_timeout)));
  if (!computes()) return protocol::Manifest();
  return make_manifest({.request_id = prompt_.request_id(),
                        .lease_id = prompt_.lease_id(),
                        .lease = granted_lease(context_.options, prompt_.options().lease_ms()),
                        .epoch = context_.options.epoch,
                        .result = finished == nullptr ? nullptr : &finished->prefill,
                        .kept = finished == nullptr ? nullptr : finished->kept_in_part(),
                        .float8 = context_.runtime.kv_scales().get(),
                        .ranks = ranks},
                       context_.runtime.weights(), partition(), cached_.prefix, grid_.shape());
}

// Logs one line a request, on the first of the ranks that compute it.
void PromptState::log_end(const Result<void>& outcome, bool runs_again) const {
  if (!is_first_of_computing()) return;
  const auto head = fmt::format("request {}: {} tokens, ", prompt_.request_id(), num_tokens_);
  const double elapsed_s = stopwatch_.elapsed_s();
  if (outcome.ok()) {
    const int64_t cached = finished_.cached_tokens;
    const int64_t uneconomic = finished_.uneconomic_tokens;
    log::info("{}{}{}done in {:.2f} s, density {:.3f}{}", head,
              cached > 0 ? fmt::format("{} of them cached, ", cached) : "",
              uneconomic > 0 ? fmt::format("{} cached too but faster computed, ", uneconomic) : "",
              elapsed_s, finished_.prefill.density, in_trace(prompt_));
  } else {
    log::info("{}{} after {:.2f} s{}: {}{}", head, errc_name(outcome.error().code), elapsed_s,
              in_trace(prompt_), outcome.error().message,
              runs_again ? "; on all ranks instead" : "");
  }
}

}  // namespace millrace::worker
