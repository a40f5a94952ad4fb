// SPDX-License-Identifier: Apache-2.0
#include "worker/prompt/finished_prompt.h"

#include <string>
#include <utility>

namespace millrace::worker {

namespace {

void set_head_recalls(protocol::HeadRecalls& message, const engine::HeadRecalls& recalls) {
  message.set_num_heads(static_cast<uint32_t>(recalls.num_heads()));
  for (const engine::HeadRecall& head : recalls.all()) {
    message.add_mean(static_cast<float>(head.mean()));
    message.add_least(head.least);
    message.add_density(static_cast<float>(head.density()));
  }
}

void set_dropped(protocol::DroppedPages& message, const BudgetChoice& budget, int64_t page_bytes) {
  const int64_t pages = budget.kept.count_dropped();
  message.set_pages(static_cast<uint64_t>(pages));
  message.set_bytes(static_cast<uint64_t>(pages * page_bytes));
  message.set_mass(budget.dropped_mass);
}

}  // namespace

protocol::PrefillDone done_message(
    const FinishedPrompt& finished, const protocol::RunPrompt& prompt, protocol::Manifest manifest,
    int64_t page_bytes, std::span<const double, engine::kStageNames.size()> stage_seconds) {
  protocol::PrefillDone done;
  done.set_owner(prompt.owner());
  done.set_request_id(manifest.request_id());
  done.set_cached_tokens(static_cast<uint64_t>(finished.cached_tokens));
  if (finished.budget) {
    set_dropped(*done.mutable_dropped(), *finished.budget, page_bytes);
  }
  *done.mutable_manifest() = std::move(manifest);
  for (size_t i = 0; i < engine::kPhaseNames.size(); ++i) {
    if (finished.prefill.phases.seconds()[i] == 0) continue;  // not a phase of this request
    auto& phase = *done.add_phases();
    phase.set_phase(std::string(engine::kPhaseNames[i]));
    phase.set_seconds(finished.prefill.phases.seconds()[i]);
  }
  for (size_t i = 0; i < engine::kStageNames.size(); ++i) {
    auto& stage = *done.add_stages();
    stage.set_stage(std::string(engine::kStageNames[i]));
    stage.set_seconds(stage_seconds[i]);
  }
  done.mutable_stored()->set_bytes(static_cast<uint64_t>(finished.stored.total));
  done.mutable_stored()->set_while_computing(
      static_cast<uint64_t>(finished.stored.while_computing));
  if (!finished.prefill.recall_by_head.empty()) {
    set_head_recalls(*done.mutable_head_recalls(), finished.prefill.recall_by_head);
  }
  return done;
}

}  // namespace millrace::worker
