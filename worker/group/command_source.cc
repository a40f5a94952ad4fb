// SPDX-License-Identifier: Apache-2.0
#include "worker/group/command_source.h"

#include <algorithm>
#include <utility>

#include "common/errc_wire.h"
#include "common/secret.h"
#include "worker/sync/command_channel.h"

namespace millrace::worker {

namespace {

protocol::RunPrompt run_prompt(protocol::PrefillRequest request, std::string lease_id) {
  protocol::RunPrompt run;
  run.set_request_id(request.request_id());
  run.set_prompt_token_ids(std::move(*request.mutable_prompt_token_ids()));
  *run.mutable_options() = std::move(*request.mutable_options());
  run.set_owner(std::move(*request.mutable_owner()));
  run.set_trace_id(std::move(*request.mutable_trace_id()));
  run.set_lease_id(std::move(lease_id));
  return run;
}

}  // namespace

protocol::GroupCommand CommandSource::next() {
  if (inbox_.empty()) read(kCommandInterval);
  look_for_drain();
  refuse_those_over();
  protocol::GroupCommand command;
  add_lease_changes(command);
  start_next(command);
  const bool runs = command.has_run() || command.side_by_side_size() > 0;
  if (!runs && inbox_.draining()) command.set_stop(drain_.done());
  return command;
}

protocol::GroupCommand CommandSource::at_boundary(const engine::LayerReport& report) {
  const bool waits = inbox_.running_suspended() && !inbox_.running_cancelled() && inbox_.empty();
  read(waits ? Duration(kCommandInterval) : Duration::zero());
  look_for_drain();
  protocol::GroupCommand command;
  add_lease_changes(command);
  const auto may_continue = check_may_continue(report);
  if (!may_continue.ok()) {
    command.mutable_end_running()->set_code(errc_to_wire(may_continue.error().code));
    command.mutable_end_running()->set_message(may_continue.error().message);
  } else if (running_.size() == 1 && options_.max_preempting_tokens > 0) {
    refuse_those_over();
    command.set_suspended(inbox_.running_suspended());
    start_next(command, command.suspended() ? std::numeric_limits<int64_t>::max()
                                            : options_.max_preempting_tokens);
  }
  return command;
}

protocol::GroupCommand CommandSource::after_side_by_side() {
  read(Duration::zero());
  protocol::GroupCommand command;
  for (const auto& id : inbox_.cancelled_side_by_side()) command.add_cancelled(id);
  return command;
}

void CommandSource::run_alone(const std::string& request_id) {
  inbox_.run_alone(request_id);
  auto& together = running_.back();
  std::ranges::swap(together.front(), *std::ranges::find(together, request_id, &Running::id));
}

void CommandSource::finish_running() {
  inbox_.finish_running();
  running_.pop_back();
}

void CommandSource::read(Duration longest_wait) {
  auto event = link_.wait(Deadline::after(longest_wait));
  while (event.has_value()) {
    inbox_.take(std::move(*event));
    event = link_.poll();
  }
}

void CommandSource::look_for_drain() {
  if (stop_.load() || !inbox_.refusal().empty()) inbox_.drain();
  if (inbox_.draining()) drain_.announce();
}

void CommandSource::refuse_those_over() {
  for (const auto& id : inbox_.take_cancelled()) {
    reporter_.failed(id, error(Errc::kCancelled, "request {} was cancelled before it started", id));
  }
  for (const auto& id : inbox_.take_expired()) {
    reporter_.failed(id, error(Errc::kDeadlineExceeded,
                               "request {}: the deadline passed before it started", id));
  }
}

void CommandSource::start_next(protocol::GroupCommand& command, int64_t max_new_tokens) {
  auto next = inbox_.start_next(max_new_tokens);
  if (next.empty()) return;
  auto& running = running_.emplace_back();
  for (const auto& pending : next) {
    running.push_back({.id = pending.request.request_id(), .deadline = pending.deadline});
  }
  if (next.size() == 1) {
    *command.mutable_run() = run_prompt(std::move(next.front().request), random_id());
    return;
  }
  command.set_first_lane(static_cast<uint32_t>(next_lane_));
  for (auto& pending : next) {
    *command.add_side_by_side() = run_prompt(std::move(pending.request), random_id());
    next_lane_ = (next_lane_ + 1) % num_lanes_;
  }
}

void CommandSource::add_lease_changes(protocol::GroupCommand& command) {
  for (auto& change : inbox_.take_lease_changes()) {
    *command.add_lease_changes() = std::move(change);
  }
}

Result<void> CommandSource::check_may_continue(const engine::LayerReport& report) const {
  if (running_.empty()) return {};
  const auto& [id, deadline] = running_.back().front();
  if (inbox_.running_cancelled()) {
    return error(Errc::kCancelled, "request {} was cancelled after layer {} of {}", id,
                 report.layer + 1, report.num_layers);
  }
  if (clock_.now() >= deadline) {
    return error(Errc::kDeadlineExceeded, "request {}: the deadline passed in layer {} of {}", id,
                 report.layer + 1, report.num_layers);
  }
  return {};
}

}  // namespace millrace::worker
