// SPDX-License-Identifier: Apache-2.0
// One rank of a local group; made by LocalGroup.
#pragma once

#include <memory>
#include <string_view>

#include "comm/api/communicator.h"
#include "comm/local/local_exchange.h"

namespace millrace::comm {

class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator(std::shared_ptr<LocalExchange> exchange, int rank);
  // The other ranks' calls fail with kPeerLost from here on.
  ~LocalCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return exchange_->size(); }

  Result<void> barrier(Deadline deadline) override;
  Result<void> broadcast(std::span<std::byte> data, int root, Deadline deadline) override;
  Result<void> all_reduce_sum(std::span<float> data, Deadline deadline) override;
  Result<void> all_reduce_sum(std::span<double> data, Deadline deadline) override;
  Result<void> all_gather(std::span<const std::byte> send, std::span<std::byte> receive,
                          std::span<const int64_t> counts, Deadline deadline) override;
  Result<std::unique_ptr<Communicator>> split(int color, int key, Deadline deadline) override;
  void abort() noexcept override { exchange_->abort(rank_); }
  CommStats stats() const override { return stats_; }

 private:
  using Round = LocalExchange::Round;
  Result<std::shared_ptr<const Round>> exchange(LocalExchange::Contribution mine,
                                                Deadline deadline);
  template <typename T>
  Result<void> all_reduce(std::span<T> data, Deadline deadline);

  const std::shared_ptr<LocalExchange> exchange_;
  const int rank_;
  CommStats stats_;
};

}  // namespace millrace::comm
