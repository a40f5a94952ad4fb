// SPDX-License-Identifier: Apache-2.0
#include "common/system/guarded_range.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <csignal>
#include <cstdint>
#include <mutex>

namespace millrace {

// Slots are reused and never freed, so that the handler may walk their list at any time.
struct GuardedRange::Slot {
  std::atomic<bool> taken{true};
  std::atomic<uintptr_t> begin{0};  // 0: guards nothing
  std::atomic<uintptr_t> end{0};    // a multiple of the page size
  std::atomic<bool> torn{false};
  Slot* next = nullptr;  // not changed once the slot is in the list
};

namespace {

std::atomic<GuardedRange::Slot*> slots{nullptr};
struct sigaction previous_action {};
uintptr_t page_bytes = 0;

// Only what a signal handler may do. Mapping memory is not on POSIX's list of such calls, but on
// Linux it is one system call.
void on_bus_error(int /*signal*/, siginfo_t* info, void* /*context*/) {
  const auto address = std::bit_cast<uintptr_t>(info->si_addr);
  for (auto* slot = slots.load(); slot != nullptr; slot = slot->next) {
    const uintptr_t begin = slot->begin.load(), end = slot->end.load();
    if (begin == 0 || address < begin || address >= end) continue;
    const uintptr_t page = address / page_bytes * page_bytes;
    void* const zeros = ::mmap(std::bit_cast<void*>(page), end - page, PROT_READ,
                               MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (zeros == MAP_FAILED) break;
    slot->torn.store(true);
    return;
  }
  ::sigaction(SIGBUS, &previous_action, nullptr);  // the read fails again, and goes there
}

void install_handler() {
  static std::once_flag once;
  std::call_once(once, [] {
    page_bytes = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
    struct sigaction action {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    ::sigaction(SIGBUS, &action, &previous_action);
  });
}

GuardedRange::Slot* take_slot() {
  for (auto* slot = slots.load(); slot != nullptr; slot = slot->next) {
    bool taken = false;
    if (slot->taken.compare_exchange_strong(taken, true)) return slot;
  }
  auto* const made = new GuardedRange::Slot;
  made->next = slots.load();
  while (!slots.compare_exchange_weak(made->next, made)) {
  }
  return made;
}

}  // namespace

GuardedRange::GuardedRange(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  install_handler();
  slot_ = take_slot();
  const auto begin = std::bit_cast<uintptr_t>(bytes.data());
  slot_->torn.store(false);
  slot_->end.store((begin + bytes.size() + page_bytes - 1) / page_bytes * page_bytes);
  slot_->begin.store(begin);
}

GuardedRange::~GuardedRange() {
  if (slot_ == nullptr) return;
  slot_->begin.store(0);
  slot_->taken.store(false);
}

bool GuardedRange::torn() const {
  return slot_ != nullptr && slot_->torn.load();
}

}  // namespace millrace
