// SPDX-License-Identifier: Apache-2.0
#include "worker/group/lease_commands.h"

#include "engine/ranks/agreement.h"

namespace millrace::worker {

Result<void> LeaseCommands::apply(const protocol::LeaseChange& change) {
  const Duration timeout = sync_.timeouts().command;
  sync_.expect("a lease change", timeout);
  const Duration lease =
      change.has_renew() ? granted_lease(options_, change.renew().lease_ms()) : Duration::zero();
  const auto own = apply_here(change, lease);
  const auto agreed = engine::all_agree(sync_.world(), own, Deadline::after(timeout));
  if (!agreed.ok()) {
    // Leases end a moment apart on the ranks. Some ranks grant a renewal in that moment, and their
    // pages would stay for a lease that nobody has; so they release it here. If it has already
    // ended again, expire_leases() frees the pages.
    if (change.has_renew() && own.ok() && store_ != nullptr) {
      (void)store_->release_lease(change.renew().request_id(), change.renew().lease_id());
    }
    MR_RETURN_IF_ERROR(sync_.meet_after(agreed.error(), timeout));
  }
  reporter_.lease_changed(change, lease, agreed);
  return {};
}

Result<void> LeaseCommands::apply_here(const protocol::LeaseChange& change, Duration lease) {
  if (store_ == nullptr) return {};
  if (change.has_renew()) {
    return store_->renew_lease(change.renew().request_id(), change.renew().lease_id(), lease,
                               std::chrono::milliseconds(change.waited_ms()));
  }
  return store_->release_lease(change.release().request_id(), change.release().lease_id());
}

}  // namespace millrace::worker
