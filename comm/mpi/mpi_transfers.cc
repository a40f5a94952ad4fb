// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/mpi_transfers.h"

#include <algorithm>
#include <string>

#include "comm/mpi/backoff.h"

namespace millrace::comm {
namespace {

// MPI moves a large message piece by piece, as often as it is polled. Four ranks of one host
// exchange 36 MB in 5 ms while all poll, but took 60 ms when they slept between polls
// (docs/notebook/prefix-on-gpus.md). So ranks stay awake for as long as their bytes take at this
// rate.
constexpr double kSlowestBytesPerS = 1e9;

Error mpi_error(int status) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(status, text, &length);
  return error(Errc::kPeerLost, "MPI: {}", std::string_view(text, static_cast<size_t>(length)));
}

}  // namespace

MpiTransfers::~MpiTransfers() {
  if (!sends_and_receives_.empty()) give_up();
}

void MpiTransfers::send(int process, std::span<const std::byte> data) {
  const auto limit = static_cast<size_t>(family_.max_message_bytes());
  num_bytes_ += data.size();
  for (; !data.empty() && post_status_ == MPI_SUCCESS;
       data = data.subspan(std::min(limit, data.size()))) {
    MPI_Request request = MPI_REQUEST_NULL;
    post_status_ = MPI_Isend(data.data(), static_cast<int>(std::min(limit, data.size())), MPI_BYTE,
                             process, tag_, MPI_COMM_WORLD, &request);
    sends_and_receives_.push_back(request);
    is_receive_.push_back(false);
  }
}

void MpiTransfers::receive(int process, std::span<std::byte> data) {
  const auto limit = static_cast<size_t>(family_.max_message_bytes());
  num_bytes_ += data.size();
  for (; !data.empty() && post_status_ == MPI_SUCCESS;
       data = data.subspan(std::min(limit, data.size()))) {
    MPI_Request request = MPI_REQUEST_NULL;
    post_status_ = MPI_Irecv(data.data(), static_cast<int>(std::min(limit, data.size())), MPI_BYTE,
                             process, tag_, MPI_COMM_WORLD, &request);
    sends_and_receives_.push_back(request);
    is_receive_.push_back(true);
  }
}

Result<void> MpiTransfers::wait(Deadline deadline) {
  auto result = poll_until_done(deadline);
  if (!result.ok()) give_up();
  sends_and_receives_.clear();
  is_receive_.clear();
  num_bytes_ = 0;
  return result;
}

Result<void> MpiTransfers::poll_until_done(Deadline deadline) {
  if (post_status_ != MPI_SUCCESS) return mpi_error(post_status_);
  Backoff backoff(awake());
  while (true) {
    int done = 0;
    const int status = MPI_Testall(static_cast<int>(sends_and_receives_.size()),
                                   sends_and_receives_.data(), &done, MPI_STATUSES_IGNORE);
    if (status != MPI_SUCCESS) return mpi_error(status);
    if (done) return {};
    if (family_.aborted()) return Error(Errc::kCancelled, "the communicator was aborted");
    if (deadline.passed()) {
      return error(Errc::kDeadlineExceeded, "waiting for {} messages from other ranks",
                   std::count_if(sends_and_receives_.begin(), sends_and_receives_.end(),
                                 [](MPI_Request request) { return request != MPI_REQUEST_NULL; }));
    }
    backoff.pause(deadline);
  }
}

Duration MpiTransfers::awake() const {
  const Duration without_bytes = family_.awake();
  if (without_bytes == Duration::zero()) return without_bytes;  // the cores are shared
  const std::chrono::duration<double> bytes_s(static_cast<double>(num_bytes_) / kSlowestBytesPerS);
  return without_bytes + std::chrono::duration_cast<Duration>(bytes_s);
}

void MpiTransfers::give_up() {
  for (size_t i = 0; i < sends_and_receives_.size(); ++i) {
    MPI_Request& request = sends_and_receives_[i];
    if (request == MPI_REQUEST_NULL) continue;
    if (is_receive_[i]) MPI_Cancel(&request);
    int done = 0;
    MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (done || request == MPI_REQUEST_NULL) continue;
    MPI_Request_free(&request);
    family_.abandon_transfers();
  }
}

}  // namespace millrace::comm
