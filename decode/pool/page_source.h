// Where pages come from that are not in a pool.
#pragma once

#include <cstdint>
#include <span>

#include "common/clock.h"
#include "common/result.h"
#include "kvclient/pull_request.h"

namespace millrace::decode {

// Who waits for pages: the more urgent go first.
enum class FetchUrgency : int32_t {
  kFill = 0,        // nobody yet
  kPrediction = 1,  // a layer that comes next, if the prediction is right
  kNeed = 2,        // a layer that is being computed
};

// Thread-safe.
class PageSource {
 public:
  virtual ~PageSource() = default;
  // All of them, each checked against its checksum, or an error; nothing is written to them once it
  // returns. They ascend by name.
  virtual Result<void> fetch(std::span<const kvclient::NamedPage> pages, FetchUrgency urgency,
                             Deadline deadline) = 0;
};

}  // namespace millrace::decode
