// SPDX-License-Identifier: Apache-2.0
#include "worker/prompt/prompt_run.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "common/content/prefix_keys.h"
#include "common/errc_wire.h"
#include "common/log.h"
#include "engine/ranks/agreement.h"
#include "engine/ranks/rank_values.h"
#include "kernels/index/tiling.h"
#include "plan/column_cost.h"
#include "worker/prompt/between_layers.h"
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

// As the coordinator's line has it.
std::string in_trace(const protocol::RunPrompt& prompt) {
  return prompt.trace_id().empty() ? "" : fmt::format(", trace {}", prompt.trace_id());
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

PromptRun::PromptRun(const PromptResources& resources, const protocol::RunPrompt& prompt,
                     Boundary at_boundary)
    : resources_(resources),
      prompt_(prompt),
      at_boundary_(std::move(at_boundary)),
      num_tokens_(static_cast<int64_t>(prompt.prompt_token_ids().size() / sizeof(int32_t))),
      progress_(resources_.reporter, prompt.request_id(),
                resources_.runtime.weights().config.num_layers) {}

bool PromptRun::computes() const {
  return !resources_.lane || resources_.lane->number == resources_.grid.cp().rank();
}

bool PromptRun::is_first_of_computing() const {
  return computes() && resources_.engine_sync.is_root();
}

engine::Partition PromptRun::partition() const {
  const int64_t cached_tokens = cached_.prefix.num_tokens();
  if (!resources_.lane) return resources_.engine.partition(num_tokens_, cached_tokens);
  return engine::Partition::on_one_rank(num_tokens_, resources_.grid.shape().cp,
                                        resources_.lane->number, cached_tokens);
}

Result<void> PromptRun::run() {
  resources_.reporter.started(prompt_.request_id());
  open();
  if (went_.ok()) went_ = compute_again_if_damaged();
  return close();
}

void PromptRun::read() {
  read_ = read_prompt(prompt_, resources_.limits, resources_.runtime, resources_.grid,
                      resources_.options);
}

void PromptRun::open() {
  // Until the first boundary, room for the prompt is made, and then one layer is run.
  resources_.sync.expect("the first layer", 2 * resources_.options.layer_timeout);
  went_ = check_and_make_room();
}

Result<void> PromptRun::check_and_make_room() {
  if (!read_) read();
  auto input = *std::exchange(read_, std::nullopt);
  MR_RETURN_IF_ERROR(resources_.sync.all_agree(input.status()));
  input_ = *std::move(input);
  // The client of a streaming prompt is told of the prefix before it is loaded, so all of it is
  // checked.
  MR_RETURN_IF_ERROR(find_prefix_and_room(streams(prompt_) ? kvstore::CacheCheck::kAll
                                                           : kvstore::CacheCheck::kDisk));
  MR_RETURN_IF_ERROR(check_place());
  if (!streams(prompt_)) return {};
  MR_ASSIGN_OR_RETURN(auto known, manifest(/*finished=*/nullptr));
  if (is_first_of_computing()) resources_.reporter.opened(prompt_.request_id(), std::move(known));
  return {};
}

Result<void> PromptRun::compute_again_if_damaged() {
  const auto source = [this]() -> engine::PrefixSource* {
    return cached_.prefix.num_pages() > 0 ? &pages_->prefix() : nullptr;
  };
  auto computed = prefill(source(), cached_.prefix);
  if (!computed.ok() && may_start_again(computed.error())) {
    // Only once: a check of all pages finds the damaged one, forgets it and ends the prefix before
    // it. All ranks have had the same error.
    log::warn("request {}{}: {}; computing it again from there", prompt_.request_id(),
              in_trace(prompt_), computed.error().message);
    pages_.reset();
    cached_ = {};
    progress_.restart();
    MR_RETURN_IF_ERROR(find_prefix_and_room(kvstore::CacheCheck::kAll));
    MR_RETURN_IF_ERROR(check_place());
    computed = prefill(source(), cached_.prefix);
  }
  return conclude(std::move(computed));
}

void PromptRun::compute(Result<PrefixPins*> pins) {
  went_ = compute_in_lane(std::move(pins));
  // What follows waits for other prompts, and does not count for this one.
  stage_seconds_ = stages_.stop();
}

// The lane treats all pages of the prefix as its own. Where some cannot be reached, or one is
// damaged, all ranks begin the prompt anew: the coordinator has not been told of this attempt yet.
Result<void> PromptRun::compute_in_lane(Result<PrefixPins*> pins) {
  const auto& prefix = cached_.prefix;
  if (prefix.num_pages() == 0) return conclude(prefill(nullptr, {}));
  needs_all_ranks_ = true;
  MR_RETURN_IF_ERROR(resources_.engine_sync.all_agree(pins.status()));
  std::vector<int64_t> pages(static_cast<size_t>(prefix.num_pages()));
  std::iota(pages.begin(), pages.end(), int64_t{0});
  StorePrefix source(resources_.runtime.device(), resources_.reader, **pins, std::move(pages));
  auto computed =
      prefill(&source, {.owners = std::vector<int>(prefix.owners.size()), .float8 = prefix.float8});
  needs_all_ranks_ = !computed.ok() && computed.error().code == Errc::kCorrupt;
  return conclude(std::move(computed));
}

// Called on the ranks that have computed the prompt.
Result<void> PromptRun::conclude(Result<engine::PrefillResult> prefill) {
  if (!prefill.ok()) return not_the_clients(prefill.error());
  finished_.prefill = *std::move(prefill);
  finished_.cached_tokens = cached_.prefix.num_tokens();
  finished_.uneconomic_tokens = cached_.num_left * kernels::kPageTokens;
  learn_pace(finished_.prefill);
  progress_.report_until(resources_.runtime.weights().config.num_layers);
  attention_imbalance_ = finished_.prefill.imbalance.mean;
  return budget_ ? drop_pages() : Result<void>();
}

void PromptRun::fill_report(protocol::LaneReport& report) const {
  if (!went_.ok()) {
    report.mutable_error()->set_code(errc_to_wire(went_.error().code));
    report.mutable_error()->set_message(went_.error().message);
    report.set_on_all_ranks(needs_all_ranks_);
  }
}

int64_t PromptRun::num_prefix_scores(const protocol::LaneReport& report) const {
  if (report.has_error()) return 0;
  const auto& geometry = resources_.store.geometry();
  return int64_t{geometry.num_layers} * geometry.num_kv_heads * cached_.prefix.num_pages();
}

std::span<const float> PromptRun::prefix_scores() const {
  return went_.ok() && prefix_scores_ ? prefix_scores_->scores() : std::span<const float>();
}

void PromptRun::take_report(const protocol::LaneReport& report,
                            std::span<const float> prefix_scores) {
  if (computes()) return;
  if (report.has_error()) {
    went_ = Error(errc_from_wire(report.error().code()), report.error().message());
    needs_all_ranks_ = report.on_all_ranks();
    return;
  }
  if (!pages_) return;
  scores_set_ = set_prefix_scores(resources_.store, prompt_.request_id(), cached_.prefix,
                                  resources_.grid.cp().rank(), prefix_scores);
}

void PromptRun::cancel() {
  if (!went_.ok() && !needs_all_ranks_) return;
  needs_all_ranks_ = false;
  went_ = error(Errc::kCancelled, "request {} was cancelled while it ran side by side",
                prompt_.request_id());
}

Result<void> PromptRun::close() {
  auto described = went_.ok() ? finish() : Result<protocol::Manifest>(went_.error());
  pages_.reset();  // after a failure, the pages are gone before it is reported
  const auto outcome = described.status();
  log_end(outcome);
  if (!outcome.ok()) {
    auto met = resources_.sync.meet_after(outcome.error(), resources_.sync.timeouts().command);
    if (is_first_of_computing() && !needs_all_ranks_) {
      resources_.reporter.failed(prompt_.request_id(), met.ok() ? outcome.error() : met.error());
    }
    return met;
  }
  if (!is_first_of_computing()) return {};
  auto done = done_message(finished_, prompt_, std::move(*described),
                           resources_.store.geometry().page_bytes(),
                           resources_.lane ? stage_seconds_ : stages_.stop());
  done.set_in_lane(resources_.lane.has_value());
  resources_.reporter.done(std::move(done));
  return {};
}

Result<protocol::Manifest> PromptRun::finish() {
  MR_RETURN_IF_ERROR(seal());
  if (pages_) pages_->keep();
  remember();
  counts_ = {.cache_queried_tokens = reads_cache(prompt_) ? num_tokens_ : 0,
             .cache_hit_tokens = finished_.cached_tokens,
             .cache_uneconomic_tokens = finished_.uneconomic_tokens};
  return manifest(&finished_);
}

// A streaming request may not: its client knows where the pages of the prefix are, and may have
// pulled some.
bool PromptRun::may_start_again(const Error& failure) const {
  return failure.code == Errc::kCorrupt && cached_.prefix.num_pages() > 0 && !streams(prompt_);
}

Result<engine::PrefillResult> PromptRun::prefill(engine::PrefixSource* prefix,
                                                 engine::PromptPrefix described) {
  engine::KvSink* sink = pages_ ? &pages_->sink() : nullptr;
  prefix_scores_.reset();
  if (resources_.lane && prefix != nullptr) {
    sink = &prefix_scores_.emplace(cached_.prefix.num_pages(), sink);
  }
  budget_.reset();
  if (has_budget(prompt_)) {
    sink = &budget_.emplace(prompt_.options().kv_budget(), resources_.runtime.weights(),
                            num_tokens_, sink);
  }
  return resources_.engine.prefill(
      {.token_ids = input_->token_ids,
       .plan = &input_->plan,
       .recall_by_head = prompt_.options().recall_by_head(),
       .sink = sink,
       .prefix = std::move(described),
       .prefix_source = prefix,
       .at_boundary = [this](const engine::LayerReport& report) { return after_layer(report); },
       .stages = &stages_},
      resources_.options.layer_timeout);
}

// The lease may be over already; then there is nothing to remember.
void PromptRun::remember() {
  if (!pages_ || !writes_cache(prompt_) || input_->page_keys.empty()) return;
  const auto remembered = pages_->remember(
      input_->page_keys,
      plan::column_cost(resources_.runtime.weights().config, num_tokens_,
                        finished_.prefill.density),
      resources_.on_cached ? std::make_shared<const kvstore::CachedPrompt>(cached_prompt())
                           : nullptr);
  if (!remembered.ok()) log::debug("{}", remembered.error().to_string());
  if (resources_.on_cached) resources_.on_cached();
}

// If another rank could not remember its pages, that rank's store says that they are gone.
kvstore::CachedPrompt PromptRun::cached_prompt() const {
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

// A prompt may fit without its prefix where it does not fit behind it, since the prefix need not
// lie evenly on the ranks. A page of the prefix may also give way between the two steps, though not
// while the ranks have one prompt at a time.
Result<void> PromptRun::find_prefix_and_room(kvstore::CacheCheck check) {
  const int64_t most = kernels::first_dense_position(num_tokens_) / kernels::kPageTokens;
  const auto wanted = std::span(input_->page_keys)
                          .first(std::min(input_->page_keys.size(), static_cast<size_t>(most)));
  // Only the lane knows which pages a budget drops, so all pages must be its own.
  const bool lane_alone = resources_.lane && (!resources_.lane->reads_peers || has_budget(prompt_));
  if (reads_cache(prompt_) && !wanted.empty()) {
    MR_ASSIGN_OR_RETURN(cached_,
                        agree_on_prefix(resources_.store, resources_.grid, wanted,
                                        Deadline::after(resources_.options.layer_timeout),
                                        {.pages = check,
                                         .num_threads = resources_.runtime.cores().num_threads,
                                         .num_tokens = num_tokens_,
                                         .rows = resources_.pace.of(input_->plan_identity),
                                         .loads_beside = resources_.reader.runs_beside(),
                                         .lane = resources_.lane ? resources_.lane->number : -1,
                                         .lane_alone = lane_alone}));
  }
  if (resources_.lane &&
      num_tokens_ - cached_.prefix.num_tokens() > resources_.lane->most_new_tokens) {
    needs_all_ranks_ = true;
    return error(Errc::kUnavailable, "{} tokens to compute in a lane, at most {}",
                 num_tokens_ - cached_.prefix.num_tokens(), resources_.lane->most_new_tokens);
  }
  auto made = make_room();
  if (made.ok() || cached_.prefix.num_pages() == 0 ||
      (made.error().code != Errc::kUnavailable && made.error().code != Errc::kExhausted)) {
    return made;
  }
  pages_.reset();
  cached_ = {};
  return make_room();
}

Result<void> PromptRun::check_place() const {
  return check_between_layers({.num_tokens = num_tokens_,
                               .cached_tokens = cached_.prefix.num_tokens(),
                               .other_tokens = resources_.beside_tokens,
                               .other_suspended = resources_.beside_suspended,
                               .most_new_tokens = resources_.options.max_preempting_tokens,
                               .memory_bytes = resources_.runtime.limits().memory_bytes,
                               .prompt_bytes = [this](int64_t num_tokens) {
                                 return resources_.runtime.prompt_bytes(num_tokens);
                               }});
}

// Phases are measured on the device: they do not include prompts that ran between two layers of
// this one, and they are the same on all ranks.
void PromptRun::learn_pace(const engine::PrefillResult& prefill) {
  double computing_s = 0;
  for (const double phase_s : prefill.phases.seconds()) computing_s += phase_s;
  resources_.pace.observe(input_->plan_identity, cached_.prefix.num_tokens(), num_tokens_,
                          computing_s);
}

Result<void> PromptRun::make_room() {
  Result<void> own;
  if (resources_.runtime.weights().shard.kv_replica == 0) {
    pages_.emplace(resources_.runtime.device(), resources_.store, resources_.writer,
                   resources_.reader, prompt_.request_id(),
                   partition().pages(resources_.grid.cp().rank()), cached_.own);
    own = pages_->begin(num_tokens_);
    if (own.ok() && streams(prompt_)) own = pages_->open(prompt_.lease_id());
  }
  return resources_.sync.all_agree(own);
}

Result<void> PromptRun::after_layer(const engine::LayerReport& report) {
  progress_.computed(report.density);
  MR_ASSIGN_OR_RETURN(const int32_t end_layer, num_reportable());
  progress_.report_until(end_layer);
  MR_RETURN_IF_ERROR(at_boundary_(report));
  return {};
}

// A device with memory of its own is a layer ahead of the store. So the layers reported of a
// streaming request, which may be pulled, are those that all ranks say are complete. Of other
// requests, they are those that are computed.
Result<int32_t> PromptRun::num_reportable() {
  const int32_t num_computed = progress_.num_computed();
  if (!streams(prompt_)) return num_computed;
  const int32_t own = pages_ ? pages_->sink().num_complete() : num_computed;
  MR_ASSIGN_OR_RETURN(const auto complete,
                      engine::gather_values(resources_.engine_sync.world(), own,
                                            Deadline::after(resources_.options.layer_timeout)));
  return *std::min_element(complete.begin(), complete.end());
}

Result<void> PromptRun::drop_pages() {
  resources_.engine_sync.expect("dropping pages", 2 * resources_.options.layer_timeout);
  MR_ASSIGN_OR_RETURN(
      finished_.budget,
      budget_->choose(resources_.grid.tp(), Deadline::after(resources_.options.layer_timeout)));
  return resources_.engine_sync.all_agree(pages_ ? pages_->drop_all_but(finished_.budget->kept)
                                                 : Result<void>());
}

Result<void> PromptRun::seal() {
  resources_.sync.expect("sealing the cache",
                         2 * resources_.options.layer_timeout);  // and gathering the manifest
  Result<StoredBytes> own = StoredBytes();
  if (!scores_set_.ok()) {
    own = scores_set_.error();
  } else if (pages_) {
    const auto placed = pages_->seal(
        prompt_.lease_id(), granted_lease(resources_.options, prompt_.options().lease_ms()));
    own = placed.ok() ? pages_->sink().stored() : Result<StoredBytes>(placed.error());
    if (placed.ok()) finished_.placement = *placed;
  }
  MR_ASSIGN_OR_RETURN(const auto stored, engine::all_agree_on_values(
                                             resources_.sync.world(), own,
                                             Deadline::after(resources_.options.layer_timeout)));
  finished_.stored = sum_of(stored);
  return {};
}

Result<protocol::Manifest> PromptRun::manifest(const FinishedPrompt* finished) const {
  MR_ASSIGN_OR_RETURN(
      auto ranks, gather_shards(resources_.sync.world(), resources_.server.address(),
                                finished == nullptr ? kvstore::Placement() : finished->placement,
                                Deadline::after(resources_.options.layer_timeout)));
  if (!computes()) return protocol::Manifest();
  return make_manifest({.request_id = prompt_.request_id(),
                        .lease_id = prompt_.lease_id(),
                        .lease = granted_lease(resources_.options, prompt_.options().lease_ms()),
                        .epoch = resources_.options.epoch,
                        .result = finished == nullptr ? nullptr : &finished->prefill,
                        .kept = finished == nullptr ? nullptr : finished->kept_in_part(),
                        .float8 = resources_.runtime.kv_scales().get(),
                        .ranks = ranks},
                       resources_.runtime.weights(), partition(), cached_.prefix,
                       resources_.grid.shape());
}

// Logs one line a request, on the first of the ranks that compute it.
void PromptRun::log_end(const Result<void>& outcome) const {
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
              needs_all_ranks_ ? "; on all ranks instead" : "");
  }
}

}  // namespace millrace::worker
