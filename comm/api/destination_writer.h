// SPDX-License-Identifier: Apache-2.0
// Fills a Destination from the front with bytes that arrive in pieces of other sizes.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>

#include "comm/api/transport.h"

namespace millrace::comm {

class DestinationWriter {
 public:
  explicit DestinationWriter(Destination pieces) : pieces_(pieces) {}

  // The destination must have room for `bytes`.
  void write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const auto room = pieces_.front().subspan(at_);
      const size_t count = std::min(room.size(), bytes.size());
      if (count > 0) std::memcpy(room.data(), bytes.data(), count);
      bytes = bytes.subspan(count);
      at_ += count;
      if (at_ < pieces_.front().size()) continue;
      pieces_ = pieces_.subspan(1);
      at_ = 0;
    }
  }

 private:
  Destination pieces_;
  size_t at_ = 0;  // in the first of pieces_
};

}  // namespace millrace::comm
