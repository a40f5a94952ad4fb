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

void set_error(const Error& from, protocol::ErrorInfo& to) {
  to.set_code(errc_to_wire(from.code));
  to.set_message(from.message);
}

}  // namespace

protocol::GroupCommand CommandSource::next() {
  if (inbox_.empty() && !inbox_.suspended_have_news()) read(kCommandInterval);
  look_for_drain();
  refuse_those_over();
  protocol::GroupCommand command;
  add_lease_changes(command);
  end_suspended(command);
  if (!resume_next(command)) start_next(command);
  if (running_.empty() && set_aside_.empty() && inbox_.draining()) command.set_stop(drain_.done());
  return command;
}

protocol::GroupCommand CommandSource::at_boundary(const engine::LayerReport& report) {
  read(Duration::zero());
  look_for_drain();
  protocol::GroupCommand command;
  add_lease_changes(command);
  end_suspended(command);
  if (running_.empty()) return command;
  Running& request = running_.back().front();
  request.last_layer = report;
  const auto may_continue = check_may_continue(request, inbox_.running_cancelled());
  const bool is_outermost = running_.size() == 1;
  if (!may_continue.ok()) {
    set_error(may_continue.error(), *command.mutable_end_running());
  } else if (is_outermost && running_.back().size() == 1 && inbox_.running_suspended()) {
    command.set_suspended(true);
  } else if (is_outermost && options_.max_preempting_tokens > 0) {
    refuse_those_over();
    start_next(command, options_.max_preempting_tokens);
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

void CommandSource::set_running_aside() {
  inbox_.set_running_aside();
  set_aside_.push_back(std::move(running_.back().front()));
  running_.pop_back();
}

void CommandSource::end_suspended(protocol::GroupCommand& command) {
  std::erase_if(set_aside_, [&](const Running& request) {
    const auto may_continue = check_may_continue(request, inbox_.suspended_cancelled(request.id));
    if (may_continue.ok()) return false;
    inbox_.finish_suspended(request.id);
    auto& ended = *command.add_end_suspended();
    ended.set_request_id(request.id);
    set_error(may_continue.error(), *ended.mutable_error());
    return true;
  });
}

// False: none is to go on.
bool CommandSource::resume_next(protocol::GroupCommand& command) {
  const auto id = inbox_.resume_next();
  if (!id) return false;
  command.set_resumed(*id);
  const auto resumed = std::ranges::find(set_aside_, *id, &Running::id);
  running_.push_back({std::move(*resumed)});
  set_aside_.erase(resumed);
  return true;
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

Result<void> CommandSource::check_may_continue(const Running& request, bool cancelled) const {
  const auto& [id, deadline, last] = request;
  if (cancelled) {
    return error(Errc::kCancelled, "request {} was cancelled after layer {} of {}", id,
                 last.layer + 1, last.num_layers);
  }
  if (clock_.now() >= deadline) {
    return error(Errc::kDeadlineExceeded, "request {}: the deadline passed in layer {} of {}", id,
                 last.layer + 1, last.num_layers);
  }
  return {};
}

}  // namespace millrace::worker
