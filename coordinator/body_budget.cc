#include "coordinator/body_budget.h"

#include "common/units.h"

namespace millrace::coordinator {

namespace {

std::string in_units(uint64_t bytes) {
  return format_bytes(static_cast<int64_t>(bytes));
}

}  // namespace

Result<void> BodyBudget::Share::grow_to(uint64_t bytes) {
  if (bytes <= bytes_) return {};
  const uint64_t others_bytes = budget_.used_bytes_ - bytes_;
  if (bytes > budget_.max_bytes_ - others_bytes) {
    return error(Errc::kExhausted,
                 "no room for a body of {} now: others have {}, the limit of all is {}",
                 in_units(bytes), in_units(others_bytes), in_units(budget_.max_bytes_));
  }
  budget_.used_bytes_ = others_bytes + bytes;
  bytes_ = bytes;
  return {};
}

void BodyBudget::Share::give_back() {
  budget_.used_bytes_ -= bytes_;
  bytes_ = 0;
}

}  // namespace millrace::coordinator
