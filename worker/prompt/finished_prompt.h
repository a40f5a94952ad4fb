// SPDX-License-Identifier: Apache-2.0
// What is known of a prompt once it has been computed and sealed, and the message that tells the
// coordinator.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "common/kept_pages.h"
#include "engine/engine.h"
#include "engine/stage_clock.h"
#include "kvstore/kv_store.h"
#include "protocol/control_messages.pb.h"
#include "protocol/group_messages.pb.h"
#include "worker/sinks/budget_sink.h"
#include "worker/staging/store_sink.h"

namespace millrace::worker {

struct FinishedPrompt {
  engine::PrefillResult prefill;
  int64_t cached_tokens = 0;      // of the prompt, not computed
  int64_t uneconomic_tokens = 0;  // cached too, but computed since that was faster
  kvstore::Placement placement;
  StoredBytes stored;                  // by all ranks
  std::optional<BudgetChoice> budget;  // where not all pages are to be kept

  // Null where all pages are kept: a short prompt may have only pages that always stay.
  const KeptPages* kept_in_part() const {
    return budget && budget->kept.count_dropped() > 0 ? &budget->kept : nullptr;
  }
};

// `page_bytes`: the size of a page of one layer and kv head.
protocol::PrefillDone done_message(
    const FinishedPrompt& finished, const protocol::RunPrompt& prompt, protocol::Manifest manifest,
    int64_t page_bytes, std::span<const double, engine::kStageNames.size()> stage_seconds);

}  // namespace millrace::worker
