// SPDX-License-Identifier: Apache-2.0
// Where pages come from that are not in a pool.
#pragma once

#include <cstdint>
#include <span>

#include "common/clock.h"
#include "common/result.h"
#include "kvclient/pull_request.h"

namespace millrace::decode {

// Who waits for the pages; the more urgent go first.
enum class FetchUrgency : int32_t {
  kFill = 0,        // nobody yet
  kPrediction = 1,  // the next layer, if the prediction is right
  kNeed = 2,        // the layer being computed
};

// Thread-safe.
class PageSource {
 public:
  virtual ~PageSource() = default;
  // Fetches all pages, which must ascend by name, and checks each against its checksum. After it
  // returns, nothing more is written to them.
  virtual Result<void> fetch(std::span<const kvclient::NamedPage> pages, FetchUrgency urgency,
                             Deadline deadline) = 0;
};

}  // namespace millrace::decode
