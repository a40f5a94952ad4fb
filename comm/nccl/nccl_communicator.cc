// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/nccl_communicator.h"

#include <nccl.h>

#include <cstdlib>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "comm/nccl/collective_queue.h"
#include "comm/nccl/cuda_failure.h"
#include "common/units.h"

namespace millrace::comm {
namespace {

// A non-blocking communicator has a thread of its own that puts each call into the stream some tens
// of microseconds later, while the host has a next layer to enqueue. So the host polls without a
// pause until it is clear that NCCL is setting up connections.
constexpr auto kLookTime = std::chrono::microseconds(500);
constexpr auto kPause = std::chrono::microseconds(100);

constexpr const char* kMulticast = "NCCL_NVLS_ENABLE";

class NcclCommunicator final : public DeviceCommunicator {
 public:
  NcclCommunicator(int rank, int size, const NcclOptions& options)
      : rank_(rank), size_(size), queue_(options.gpu, options.operations) {}
  // Not ncclCommDestroy, which waits for the peers without a deadline. Windows are destroyed after
  // it without being deregistered, because that would talk to the peers too.
  ~NcclCommunicator() override {
    if (ncclComm_t comm = std::exchange(comm_, nullptr)) ncclCommAbort(comm);
  }

  Result<void> init(const ncclUniqueId& id, Deadline deadline) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    // Uses copy engines if the memory is a Window. A kernel would take multiprocessors from
    // products that fill the GPU completely, and each product would need one more round: measured
    // in docs/notebook/gpus.md.
    config.CTAPolicy = NCCL_CTA_POLICY_ZERO;
    return run("init", deadline,
               [&] { return ncclCommInitRankConfig(&comm_, size_, id, rank_, &config); });
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void follow() override { queue_.follow(); }
  CollectiveMark mark() override { return queue_.mark(); }
  void join(CollectiveMark mark) override { queue_.join(mark); }

  Result<std::unique_ptr<CollectiveBuffer>> allocate(int64_t bytes) override {
    MR_ASSIGN_OR_RETURN(auto window, take_window(bytes));
    return std::unique_ptr<CollectiveBuffer>(
        std::make_unique<Allocation>(*this, std::move(window)));
  }

  Result<void> connect(CollectiveBuffer& buffer, Deadline deadline) override {
    Window& window = dynamic_cast<Allocation&>(buffer).window();
    if (window.handle != nullptr) return {};
    return run("window", deadline, [&] {
      return ncclCommWindowRegister(comm_, window.data, window.size, &window.handle,
                                    NCCL_WIN_COLL_SYMMETRIC);
    });
  }

  void trim() override { kept_.clear(); }

  Result<void> all_gather(std::string_view what, void* data, int64_t bytes,
                          Deadline deadline) override {
    return counted(what, (size_ - 1) * bytes, deadline, [&] {
      return ncclAllGather(static_cast<std::byte*>(data) + rank_ * bytes, data,
                           static_cast<size_t>(bytes), ncclInt8, comm_, queue_.stream());
    });
  }

  Result<void> broadcast(std::string_view what, void* data, int64_t bytes, int root,
                         Deadline deadline) override {
    return counted(what, rank_ == root ? 0 : bytes, deadline, [&] {
      return ncclBroadcast(data, data, static_cast<size_t>(bytes), ncclInt8, root, comm_,
                           queue_.stream());
    });
  }

  Result<void> all_reduce_sum(std::string_view what, float* data, int64_t count,
                              Deadline deadline) override {
    const int64_t bytes = 2 * (size_ - 1) * count * int64_t{sizeof(float)} / size_;
    return counted(what, bytes, deadline, [&] {
      return ncclAllReduce(data, data, static_cast<size_t>(count), ncclFloat32, ncclSum, comm_,
                           queue_.stream());
    });
  }

  Result<void> check() const override {
    ncclResult_t status = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(comm_, &status);
    if (asked != ncclSuccess) status = asked;
    if (status == ncclSuccess || status == ncclInProgress) return {};
    return failure("running collective", status);
  }

  CommStatsByName stats() const override {
    queue_.settle();
    return stats_;
  }

 private:
  // Memory that the ranks map into each other, so that copy engines reach it.
  struct Window {
    explicit Window(NcclCommunicator& owner) : communicator(owner) {}
    Window(const Window&) = delete;
    Window& operator=(const Window&) = delete;
    ~Window() {
      if (handle != nullptr && communicator.comm_ != nullptr) {
        ncclCommWindowDeregister(communicator.comm_, handle);
      }
      if (data != nullptr) ncclMemFree(data);
    }

    NcclCommunicator& communicator;
    void* data = nullptr;
    size_t size = 0;
    ncclWindow_t handle = nullptr;
  };

  class Allocation final : public CollectiveBuffer {
   public:
    Allocation(NcclCommunicator& communicator, std::unique_ptr<Window> window)
        : communicator_(communicator), window_(std::move(window)) {}
    // A window that one rank could not allocate is of no use to the others.
    ~Allocation() override {
      if (window_->handle != nullptr) communicator_.kept_.push_back(std::move(window_));
    }
    void* data() const override { return window_->data; }
    Window& window() const { return *window_; }

   private:
    NcclCommunicator& communicator_;
    std::unique_ptr<Window> window_;
  };

  // Mapping memory among ranks takes tens of milliseconds. So a window that a request gives back is
  // kept for the next request, also for one that needs less: with everything else that this request
  // takes, it is less than what the earlier one had. A window that is too small is freed first. All
  // ranks ask for the same sizes, so all free the same windows.
  Result<std::unique_ptr<Window>> take_window(int64_t bytes) {
    const auto size = static_cast<size_t>(round_up(bytes, NCCL_WIN_REQUIRED_ALIGNMENT));
    while (!kept_.empty()) {
      auto window = std::move(kept_.back());
      kept_.pop_back();
      if (size <= window->size) return window;
    }
    auto window = std::make_unique<Window>(*this);
    queue_.use();
    if (ncclMemAlloc(&window->data, size) != ncclSuccess) {
      return error(Errc::kExhausted,
                   "NCCL: cannot allocate {} of GPU memory to share with {} ranks",
                   format_bytes(bytes), size_);
    }
    window->size = size;
    return window;
  }

  template <typename Call>
  Result<void> counted(std::string_view what, int64_t bytes_received, Deadline deadline,
                       Call&& call) {
    auto found = stats_.find(what);
    if (found == stats_.end()) found = stats_.emplace(what, CommStats()).first;
    CommStats& stats = found->second;
    ++stats.calls;
    stats.bytes_received += bytes_received;
    queue_.begin(stats.seconds);
    MR_RETURN_IF_ERROR(run(what, deadline, std::forward<Call>(call)));
    queue_.end();
    return {};
  }

  // A call may return before it is in the stream, for example the first time that ranks talk. Not
  // all calls say so (ncclCommWindowRegister of 2.28.3 does not), so the communicator is always
  // asked.
  template <typename Call>
  Result<void> run(std::string_view name, Deadline deadline, Call&& call) {
    ncclResult_t status = call();
    const auto looking = Deadline::after(kLookTime);
    while (status == ncclSuccess || status == ncclInProgress) {
      const ncclResult_t asked = ncclCommGetAsyncError(comm_, &status);
      if (asked != ncclSuccess) status = asked;
      if (status != ncclInProgress) break;
      if (deadline.passed()) {
        return error(Errc::kPeerLost, "NCCL {}: not all of {} ranks joined in time", name, size_);
      }
      if (looking.passed()) {
        std::this_thread::sleep_for(kPause);
      } else {
        std::this_thread::yield();
      }
    }
    if (status == ncclSuccess) return {};
    return failure(name, status);
  }

  Error failure(std::string_view name, ncclResult_t status) const {
    return error(Errc::kPeerLost, "NCCL {}, rank {} of {}: {} ({})", name, rank_, size_,
                 ncclGetErrorString(status), ncclGetLastError(comm_));
  }

  int rank_;
  int size_;
  CollectiveQueue queue_;
  ncclComm_t comm_ = nullptr;
  CommStatsByName stats_;
  std::vector<std::unique_ptr<Window>> kept_;
};

}  // namespace

bool built_with_nccl() {
  return true;
}

void prepare_nccl() {
  setenv(kMulticast, "0", /*overwrite=*/0);
}

Result<std::unique_ptr<DeviceCommunicator>> make_nccl_communicator(Communicator& bootstrap,
                                                                   const NcclOptions& options,
                                                                   Deadline deadline) {
  MR_CHECK(std::getenv(kMulticast) != nullptr, "main did not call prepare_nccl()");
  struct Invitation {
    ncclUniqueId id{};
    ncclResult_t status = ncclSuccess;
  } invitation;
  if (bootstrap.rank() == 0) invitation.status = ncclGetUniqueId(&invitation.id);
  MR_RETURN_IF_ERROR(bootstrap.broadcast(std::as_writable_bytes(std::span(&invitation, 1)),
                                         /*root=*/0, deadline));
  if (invitation.status != ncclSuccess) {
    return error(Errc::kUnavailable, "NCCL: cannot create an id for the ranks: {}",
                 ncclGetErrorString(invitation.status));
  }
  auto communicator =
      std::make_unique<NcclCommunicator>(bootstrap.rank(), bootstrap.size(), options);
  MR_RETURN_IF_ERROR(communicator->init(invitation.id, deadline));
  return std::unique_ptr<DeviceCommunicator>(std::move(communicator));
}

}  // namespace millrace::comm
