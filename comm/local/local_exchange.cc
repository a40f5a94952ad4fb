// SPDX-License-Identifier: Apache-2.0
#include "comm/local/local_exchange.h"

#include <utility>

namespace millrace::comm {

LocalExchange::LocalExchange(std::shared_ptr<LocalHub> hub, std::vector<int> members)
    : hub_(std::move(hub)), members_(std::move(members)), left_(members_.size(), false) {}

Result<std::shared_ptr<const LocalExchange::Round>> LocalExchange::exchange(int rank,
                                                                            Contribution mine,
                                                                            Deadline deadline) {
  const std::string_view call = mine.call;
  std::unique_lock lock(hub_->mutex);
  const uint64_t this_round = num_rounds_done_;
  MR_RETURN_IF_ERROR(join(rank, std::move(mine)));
  const std::shared_ptr<const Round> round = round_;
  if (num_joined_ == size()) {
    round_.reset();
    num_joined_ = 0;
    ++num_rounds_done_;
    hub_->changed.notify_all();
    return round;
  }

  // A complete round counts even if a rank has left since: it left after its last call.
  const auto done = [&] { return num_rounds_done_ != this_round; };
  const bool awake = hub_->changed.wait_until(lock, deadline.when(), [&] {
    return done() || failure(rank).has_value() || lost_rank() >= 0;
  });
  if (done()) return round;
  if (!awake) {
    return fail(rank, error(Errc::kDeadlineExceeded, "{} on rank {} of {}: only {} ranks joined",
                            call, rank, size(), num_joined_));
  }
  return fail(rank, error(Errc::kPeerLost, "{} on rank {} of {}: rank {} is gone", call, rank,
                          size(), lost_rank()));
}

Result<void> LocalExchange::join(int rank, Contribution mine) {
  if (failure(rank)) return *failure(rank);
  if (const int lost = lost_rank(); lost >= 0) {
    return fail(rank, error(Errc::kPeerLost, "{} on rank {} of {}: rank {} is gone", mine.call,
                            rank, size(), lost));
  }
  if (!round_) round_ = std::make_shared<Round>(members_.size());
  for (const Contribution& other : *round_) {
    MR_CHECK(other.call.empty() || other.call == mine.call,
             "ranks called different collectives: rank {} is in {}, another in {}", rank, mine.call,
             other.call);
  }
  (*round_)[static_cast<size_t>(rank)] = std::move(mine);
  ++num_joined_;
  return {};
}

Error LocalExchange::fail(int rank, Error first_error) {
  if (!failure(rank)) {
    failure(rank) = std::move(first_error);
    hub_->changed.notify_all();
  }
  return *failure(rank);
}

int LocalExchange::lost_rank() {
  for (int rank = 0; rank < size(); ++rank) {
    if (left_[static_cast<size_t>(rank)] || failure(rank)) return rank;
  }
  return -1;
}

void LocalExchange::abort(int rank) noexcept {
  std::lock_guard lock(hub_->mutex);
  (void)fail(rank, error(Errc::kCancelled, "rank {} of {} was aborted", rank, size()));
}

void LocalExchange::leave(int rank) noexcept {
  std::lock_guard lock(hub_->mutex);
  left_[static_cast<size_t>(rank)] = true;
  hub_->changed.notify_all();
}

}  // namespace millrace::comm
