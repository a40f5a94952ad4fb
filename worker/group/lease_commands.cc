#include "worker/group/lease_commands.h"

#include "worker/control/lane_lease.h"
#include "worker/ranks/agreement.h"

namespace millrace::worker {

Result<void> LeaseCommands::apply(const protocol::LeaseChange& change) {
  const Duration timeout = sync_.timeouts().command;
  sync_.expect("a lease change", timeout);
  const Duration lease =
      change.has_renew() ? granted_lease(options_, change.renew().lease_ms()) : Duration::zero();
  const auto own = apply_here(change, lease);
  const auto agreed = all_agree(sync_.world(), own, Deadline::after(timeout));
  if (!agreed.ok()) {
    // Leases end a moment apart on the ranks. A renewal in that moment is granted by some, whose
    // pages would stay for a lease that nobody has. One that is over again is the sweep's.
    if (change.has_renew() && own.ok() && store_ != nullptr) {
      (void)store_->release_lease(change.renew().request_id(), change.renew().lease_id());
    }
    MR_RETURN_IF_ERROR(sync_.meet_after(agreed.error(), timeout));
  }
  reporter_.lease_changed(change, lease, agreed);
  return {};
}

Result<bool> LeaseCommands::concerns(const std::string& lease_id) const {
  const auto lane = lane_of_lease(lease_id);
  if (lane && *lane >= grid_.shape().cp) {
    return error(Errc::kNotFound, "lease '{}' is of none of {} lanes", lease_id, grid_.shape().cp);
  }
  return !lane || *lane == grid_.cp().rank();
}

Result<void> LeaseCommands::apply_here(const protocol::LeaseChange& change, Duration lease) {
  const bool renews = change.has_renew();
  MR_ASSIGN_OR_RETURN(const bool concerned,
                      concerns(renews ? change.renew().lease_id() : change.release().lease_id()));
  if (store_ == nullptr || !concerned) return {};
  if (change.has_renew()) {
    return store_->renew_lease(change.renew().request_id(), change.renew().lease_id(), lease);
  }
  return store_->release_lease(change.release().request_id(), change.release().lease_id());
}

}  // namespace millrace::worker
