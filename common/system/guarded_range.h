// SPDX-License-Identifier: Apache-2.0
// A range of mapped memory whose file may be cut short by somebody else. Reading a page that the
// file no longer has raises SIGBUS, which would end the process without a word. In a guarded range
// such pages become zeros instead, and torn() says so afterwards.
//
// The first range installs a handler of SIGBUS for the process; faults anywhere else go to the
// handler that was there before. Threads: any may read the range, and ask torn(), while another
// makes or ends ranges.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

namespace millrace {

class GuardedRange {
 public:
  GuardedRange() = default;  // guards nothing
  // `bytes` begin at the start of a page. Ends before they are unmapped.
  explicit GuardedRange(std::span<const std::byte> bytes);
  GuardedRange(GuardedRange&& other) noexcept : slot_(std::exchange(other.slot_, nullptr)) {}
  GuardedRange& operator=(GuardedRange&& other) noexcept {
    std::swap(slot_, other.slot_);
    return *this;
  }
  ~GuardedRange();

  // Whether a page of it has become zeros.
  bool torn() const;

  struct Slot;

 private:
  Slot* slot_ = nullptr;
};

}  // namespace millrace
