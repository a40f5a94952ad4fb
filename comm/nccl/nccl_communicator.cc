#include "comm/nccl/nccl_communicator.h"

#include <nccl.h>

#include <cstdlib>
#include <thread>
#include <utility>

#include "comm/nccl/collective_queue.h"
#include "comm/nccl/cuda_failure.h"

namespace millrace::comm {
namespace {

// While NCCL sets up connections; nothing a layer waits for.
constexpr auto kPause = std::chrono::microseconds(100);

class NcclCommunicator final : public DeviceCommunicator {
 public:
  NcclCommunicator(int rank, int size, const NcclOptions& options)
      : rank_(rank),
        size_(size),
        queue_(options.gpu, static_cast<cudaStream_t>(options.operations)) {}
  // Not ncclCommDestroy, which waits for the peers without a deadline.
  ~NcclCommunicator() override { NcclCommunicator::abort(); }

  Result<void> init(const ncclUniqueId& id, Deadline deadline) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    return run("init", deadline,
               [&] { return ncclCommInitRankConfig(&comm_, size_, id, rank_, &config); });
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void follow() override { queue_.follow(); }
  CollectiveMark mark() override { return queue_.mark(); }
  void join(CollectiveMark mark) override { queue_.join(mark); }

  Result<void> all_gather(std::span<const Gather> gathers, Deadline deadline) override {
    for (const auto& gather : gathers) stats_.bytes_received += (size_ - 1) * gather.bytes;
    return timed("all_gather", deadline, [&] {
      ncclGroupStart();
      for (const auto& gather : gathers) {
        ncclAllGather(gather.send, gather.receive, static_cast<size_t>(gather.bytes), ncclInt8,
                      comm_, queue_.stream());
      }
      return ncclGroupEnd();
    });
  }

  Result<void> broadcast(void* data, int64_t bytes, int root, Deadline deadline) override {
    if (rank_ != root) stats_.bytes_received += bytes;
    return timed("broadcast", deadline, [&] {
      return ncclBroadcast(data, data, static_cast<size_t>(bytes), ncclInt8, root, comm_,
                           queue_.stream());
    });
  }

  Result<void> all_reduce_sum(float* data, int64_t count, Deadline deadline) override {
    stats_.bytes_received += 2 * (size_ - 1) * count * int64_t{sizeof(float)} / size_;
    return timed("all_reduce", deadline, [&] {
      return ncclAllReduce(data, data, static_cast<size_t>(count), ncclFloat32, ncclSum, comm_,
                           queue_.stream());
    });
  }

  void abort() noexcept override {
    if (comm_ != nullptr) ncclCommAbort(comm_);
    comm_ = nullptr;
  }

  CommStats stats() const override {
    CommStats stats = stats_;
    stats.seconds = queue_.busy_s();
    return stats;
  }

 private:
  template <typename Call>
  Result<void> timed(const char* name, Deadline deadline, Call&& call) {
    if (comm_ == nullptr) return error(Errc::kPeerLost, "NCCL {}: aborted", name);
    ++stats_.calls;
    queue_.begin();
    MR_RETURN_IF_ERROR(run(name, deadline, std::forward<Call>(call)));
    queue_.end();
    return {};
  }

  // NCCL may return before the call is in the stream, the first time that ranks talk for instance.
  template <typename Call>
  Result<void> run(const char* name, Deadline deadline, Call&& call) {
    ncclResult_t status = call();
    while (status == ncclInProgress) {
      if (deadline.passed()) {
        return error(Errc::kPeerLost, "NCCL {}: not all of {} ranks came", name, size_);
      }
      const ncclResult_t asked = ncclCommGetAsyncError(comm_, &status);
      if (asked != ncclSuccess) status = asked;
      if (status == ncclInProgress) std::this_thread::sleep_for(kPause);
    }
    if (status == ncclSuccess) return {};
    return error(Errc::kPeerLost, "NCCL {}, rank {} of {}: {} ({})", name, rank_, size_,
                 ncclGetErrorString(status), ncclGetLastError(comm_));
  }

  int rank_;
  int size_;
  nccl::CollectiveQueue queue_;
  ncclComm_t comm_ = nullptr;
  CommStats stats_;
};

}  // namespace

bool built_with_nccl() {
  return true;
}

Result<std::unique_ptr<DeviceCommunicator>> make_nccl_communicator(Communicator& bootstrap,
                                                                   const NcclOptions& options,
                                                                   Deadline deadline) {
  setenv("NCCL_NVLS_ENABLE", "0", /*overwrite=*/0);
  struct Invitation {
    ncclUniqueId id{};
    ncclResult_t status = ncclSuccess;
  } invitation;
  if (bootstrap.rank() == 0) invitation.status = ncclGetUniqueId(&invitation.id);
  MR_RETURN_IF_ERROR(bootstrap.broadcast(std::as_writable_bytes(std::span(&invitation, 1)),
                                         /*root=*/0, deadline));
  if (invitation.status != ncclSuccess) {
    return error(Errc::kUnavailable, "NCCL: no id for the ranks: {}",
                 ncclGetErrorString(invitation.status));
  }
  auto communicator =
      std::make_unique<NcclCommunicator>(bootstrap.rank(), bootstrap.size(), options);
  MR_RETURN_IF_ERROR(communicator->init(invitation.id, deadline));
  return std::unique_ptr<DeviceCommunicator>(std::move(communicator));
}

}  // namespace millrace::comm
