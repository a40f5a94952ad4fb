// SPDX-License-Identifier: Apache-2.0
#include "comm/local/local_communicator.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/api/split_order.h"
#include "common/check.h"

namespace millrace::comm {
namespace {

std::vector<std::byte> copy_of(std::span<const std::byte> bytes) {
  return {bytes.begin(), bytes.end()};
}

void copy_bytes(std::span<const std::byte> from, std::span<std::byte> to) {
  MR_CHECK(from.size() == to.size(), "ranks disagree on a size: {} and {} bytes", from.size(),
           to.size());
  if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
}

}  // namespace

LocalCommunicator::LocalCommunicator(std::shared_ptr<LocalExchange> exchange, int rank)
    : exchange_(std::move(exchange)), rank_(rank) {}

LocalCommunicator::~LocalCommunicator() {
  exchange_->leave(rank_);
}

Result<std::shared_ptr<const LocalExchange::Round>> LocalCommunicator::exchange(
    LocalExchange::Contribution mine, Deadline deadline) {
  const Stopwatch stopwatch;
  auto round = exchange_->exchange(rank_, std::move(mine), deadline);
  stats_.calls += 1;
  stats_.seconds += stopwatch.elapsed_s();
  if (!round.ok()) return round;
  for (int rank = 0; rank < size(); ++rank) {
    if (rank == rank_) continue;
    stats_.bytes_received +=
        static_cast<int64_t>((**round)[static_cast<size_t>(rank)].bytes.size());
  }
  return round;
}

Result<void> LocalCommunicator::barrier(Deadline deadline) {
  MR_RETURN_IF_ERROR(exchange({.call = "barrier", .bytes = {}, .child = {}}, deadline));
  return {};
}

Result<void> LocalCommunicator::broadcast(std::span<std::byte> data, int root, Deadline deadline) {
  MR_CHECK(root >= 0 && root < size(), "root {} of {} ranks", root, size());
  auto bytes = rank_ == root ? copy_of(data) : std::vector<std::byte>();
  MR_ASSIGN_OR_RETURN(
      const auto round,
      exchange({.call = "broadcast", .bytes = std::move(bytes), .child = {}}, deadline));
  copy_bytes((*round)[static_cast<size_t>(root)].bytes, data);
  return {};
}

template <typename T>
Result<void> LocalCommunicator::all_reduce(std::span<T> data, Deadline deadline) {
  MR_ASSIGN_OR_RETURN(
      const auto round,
      exchange({.call = "all_reduce_sum", .bytes = copy_of(std::as_bytes(data)), .child = {}},
               deadline));
  copy_bytes(round->front().bytes, std::as_writable_bytes(data));
  for (size_t rank = 1; rank < round->size(); ++rank) {
    const std::span<const std::byte> bytes = (*round)[rank].bytes;
    MR_CHECK(bytes.size() == data.size_bytes(), "ranks disagree on a size: {} and {} bytes",
             bytes.size(), data.size_bytes());
    const T* addend = reinterpret_cast<const T*>(bytes.data());
    for (size_t i = 0; i < data.size(); ++i) data[i] += addend[i];
  }
  return {};
}

Result<void> LocalCommunicator::all_reduce_sum(std::span<float> data, Deadline deadline) {
  return all_reduce(data, deadline);
}

Result<void> LocalCommunicator::all_reduce_sum(std::span<double> data, Deadline deadline) {
  return all_reduce(data, deadline);
}

Result<void> LocalCommunicator::all_gather(std::span<const std::byte> send,
                                           std::span<std::byte> receive,
                                           std::span<const int64_t> counts, Deadline deadline) {
  MR_CHECK(static_cast<int>(counts.size()) == size(), "got {} counts for {} ranks", counts.size(),
           size());
  MR_ASSIGN_OR_RETURN(
      const auto round,
      exchange({.call = "all_gather", .bytes = copy_of(send), .child = {}}, deadline));
  size_t offset = 0;
  for (size_t rank = 0; rank < round->size(); ++rank) {
    const auto count = static_cast<size_t>(counts[rank]);
    MR_CHECK(offset + count <= receive.size(), "all_gather of {} bytes or more into {}",
             offset + count, receive.size());
    copy_bytes((*round)[rank].bytes, receive.subspan(offset, count));
    offset += count;
  }
  return {};
}

Result<std::unique_ptr<Communicator>> LocalCommunicator::split(int color, int key,
                                                               Deadline deadline) {
  std::vector<SplitChoice> choices(static_cast<size_t>(size()));
  const SplitChoice mine{color, key};
  std::vector<int64_t> counts(choices.size(), sizeof(SplitChoice));
  MR_RETURN_IF_ERROR(all_gather(std::as_bytes(std::span(&mine, 1)),
                                std::as_writable_bytes(std::span(choices)), counts, deadline));
  const std::vector<int> chosen = split_order(choices, color);

  const bool leader = chosen.front() == rank_;
  std::shared_ptr<LocalExchange> child;
  if (leader) {
    std::vector<int> members;
    for (const int rank : chosen) members.push_back(exchange_->member(rank));
    child = std::make_shared<LocalExchange>(exchange_->hub(), std::move(members));
  }
  MR_ASSIGN_OR_RETURN(
      const auto round,
      exchange({.call = "split", .bytes = {}, .child = std::move(child)}, deadline));
  const auto place = std::find(chosen.begin(), chosen.end(), rank_) - chosen.begin();
  return std::unique_ptr<Communicator>(std::make_unique<LocalCommunicator>(
      (*round)[static_cast<size_t>(chosen.front())].child, static_cast<int>(place)));
}

}  // namespace millrace::comm
