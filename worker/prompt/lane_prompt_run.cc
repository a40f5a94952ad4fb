// SPDX-License-Identifier: Apache-2.0
#include "worker/prompt/lane_prompt_run.h"

#include <numeric>
#include <vector>

#include "common/errc_wire.h"
#include "worker/staging/store_prefix.h"

namespace millrace::worker {

void LanePromptRun::open() {
  end_.went = find_room();
}

Result<void> LanePromptRun::find_room() {
  const auto& prompt = state_.prompt();
  MR_RETURN_IF_ERROR(state_.agree_on_input());
  // Only the lane knows which pages a budget drops, so all pages must be its own.
  MR_RETURN_IF_ERROR(
      state_.find_prefix(streams(prompt) ? kvstore::CacheCheck::kAll : kvstore::CacheCheck::kDisk,
                         /*lane_alone=*/!limits_.reads_peers || has_budget(prompt)));
  const int64_t new_tokens = state_.num_tokens() - state_.cached().prefix.num_tokens();
  if (new_tokens > limits_.most_new_tokens) {
    needs_all_ranks_ = true;
    return error(Errc::kUnavailable, "{} tokens to compute in a lane, at most {}", new_tokens,
                 limits_.most_new_tokens);
  }
  MR_RETURN_IF_ERROR(state_.make_room());
  return state_.announce();
}

void LanePromptRun::compute(Result<PrefixPins*> pins) {
  end_.went = compute_layers(std::move(pins));
  // What follows waits for other prompts, and does not count for this one.
  end_.stage_seconds = state_.stages().stop();
}

// The lane treats all pages of the prefix as its own. Where some cannot be reached, or one is
// damaged, all ranks begin the prompt anew: the coordinator has not been told of this attempt yet.
Result<void> LanePromptRun::compute_layers(Result<PrefixPins*> pins) {
  const auto& prefix = state_.cached().prefix;
  if (prefix.num_pages() == 0) {
    return state_.conclude(state_.prefill({.sink = state_.sink(), .at_boundary = at_boundary_}));
  }
  needs_all_ranks_ = true;
  MR_RETURN_IF_ERROR(ranks_.sync.all_agree(pins.status()));
  std::vector<int64_t> pages(static_cast<size_t>(prefix.num_pages()));
  std::iota(pages.begin(), pages.end(), int64_t{0});
  StorePrefix source(context_.runtime.device(), reader_, **pins, std::move(pages));
  auto computed = state_.prefill(
      {.source = &source,
       .prefix = {.owners = std::vector<int>(prefix.owners.size()), .float8 = prefix.float8},
       .sink = &prefix_scores_.emplace(prefix.num_pages(), state_.sink()),
       .at_boundary = at_boundary_});
  needs_all_ranks_ = !computed.ok() && computed.error().code == Errc::kCorrupt;
  return state_.conclude(std::move(computed));
}

void LanePromptRun::fill_report(protocol::LaneReport& report) const {
  if (end_.went.ok()) return;
  report.mutable_error()->set_code(errc_to_wire(end_.went.error().code));
  report.mutable_error()->set_message(end_.went.error().message);
  report.set_on_all_ranks(needs_all_ranks_);
}

int64_t LanePromptRun::num_prefix_scores(const protocol::LaneReport& report) const {
  if (report.has_error()) return 0;
  const auto& geometry = context_.store.geometry();
  return int64_t{geometry.num_layers} * geometry.num_kv_heads * state_.cached().prefix.num_pages();
}

std::span<const float> LanePromptRun::prefix_scores() const {
  return end_.went.ok() && prefix_scores_ ? prefix_scores_->scores() : std::span<const float>();
}

void LanePromptRun::take_report(const protocol::LaneReport& report,
                                std::span<const float> prefix_scores) {
  if (state_.computes()) return;
  if (report.has_error()) {
    end_.went = Error(errc_from_wire(report.error().code()), report.error().message());
    needs_all_ranks_ = report.on_all_ranks();
    return;
  }
  if (state_.sink() == nullptr) return;
  end_.own = set_prefix_scores(context_.store, state_.prompt().request_id(), state_.cached().prefix,
                               context_.runtime.grid().cp().rank(), prefix_scores);
}

void LanePromptRun::cancel() {
  if (!end_.went.ok() && !needs_all_ranks_) return;
  needs_all_ranks_ = false;
  end_.went = error(Errc::kCancelled, "request {} was cancelled while it ran side by side",
                    state_.prompt().request_id());
}

Result<void> LanePromptRun::close() {
  end_.runs_again = needs_all_ranks_;
  return state_.close(end_);
}

}  // namespace millrace::worker
