// SPDX-License-Identifier: Apache-2.0
// One rank of an MPI job; made by MpiSession. Every collective is built from non-blocking sends and
// receives, because MPI's own collectives know neither deadlines nor abort, and promise no order
// of summation.
//
// Cost for P ranks and n bytes (per rank, on the wire): barrier log2(P) empty rounds; broadcast
// log2(P) n from the root; all_gather sends its own count P-1 times; all_reduce 2 n (P-1)/P, and
// below 16 KiB n (P-1) in a single step.
//
// After an error MPI may still use the call's buffers. The process should report and exit, and
// leave those buffers alone until then.
//
// Threads: different communicators may be used by different threads, except that a process splits
// one communicator at a time.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "comm/api/communicator.h"
#include "comm/mpi/mpi_family.h"

namespace millrace::comm {

class MpiCommunicator final : public Communicator {
 public:
  // processes[r]: rank r's rank in MPI_COMM_WORLD.
  MpiCommunicator(std::shared_ptr<MpiFamily> family, int tag, std::vector<int> processes, int rank);
  ~MpiCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(processes_.size()); }

  Result<void> barrier(Deadline deadline) override;
  Result<void> broadcast(std::span<std::byte> data, int root, Deadline deadline) override;
  Result<void> all_reduce_sum(std::span<float> data, Deadline deadline) override;
  Result<void> all_reduce_sum(std::span<double> data, Deadline deadline) override;
  Result<void> all_gather(std::span<const std::byte> send, std::span<std::byte> receive,
                          std::span<const int64_t> counts, Deadline deadline) override;
  Result<std::unique_ptr<Communicator>> split(int color, int key, Deadline deadline) override;
  void abort() noexcept override { family_->abort(); }
  CommStats stats() const override { return stats_; }

 private:
  // Wraps every call: fails at once if broken, breaks on error, keeps the statistics.
  template <typename Body>
  Result<void> run(const char* call, Body body);

  Result<void> barrier_round(int distance, Deadline deadline);
  Result<void> gather(std::span<const std::byte> send, std::span<std::byte> receive,
                      std::span<const int64_t> counts, Deadline deadline);
  template <typename T>
  Result<void> all_reduce(std::span<T> data, Deadline deadline);
  template <typename T>
  Result<void> reduce_small(std::span<T> data, Deadline deadline);
  template <typename T>
  Result<void> reduce_chunk(std::span<T> data, Deadline deadline);

  int process(int rank) const { return processes_[static_cast<size_t>(rank)]; }
  std::byte* scratch(int64_t num_bytes);

  const std::shared_ptr<MpiFamily> family_;
  const int tag_;
  const std::vector<int> processes_;
  const int rank_;
  std::unique_ptr<std::byte[]> scratch_;
  int64_t scratch_bytes_ = 0;
  CommStats stats_;
};

}  // namespace millrace::comm
