// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/mpi_session.h"

#include <mpi.h>

#include <numeric>
#include <stdexcept>

#include "comm/mpi/mpi_communicator.h"
#include "common/check.h"
#include "common/log.h"
#include "common/system/cpu.h"

namespace millrace::comm {
namespace {

// Enough for the splits of one world, and 127 worlds below 32767, the smallest upper bound of tags
// that MPI permits.
constexpr int kTagsPerWorld = 256;
constexpr int kNumTags = 32767;

// Longer than ranks of GPUs are apart at the end of a layer of a short prompt.
constexpr auto kAwakeOnOwnCores = std::chrono::milliseconds(5);

// Number of ranks of the job on this machine. Collective.
int num_ranks_here() {
  MPI_Comm here = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, /*key=*/0, MPI_INFO_NULL, &here);
  int size = 0;
  MPI_Comm_size(here, &size);
  MPI_Comm_free(&here);
  return size;
}

// A rank has other threads besides the one that waits (the KV server's, a GPU's page writers), so
// it needs at least two cores to itself.
Duration awake_here() {
  const int num_ranks = num_ranks_here();
  return usable_cores() >= 2 * num_ranks ? Duration(kAwakeOnOwnCores) : Duration::zero();
}

}  // namespace

MpiSession::MpiSession(int& argc, char**& argv)
    : broken_(std::make_shared<std::atomic<bool>>(false)) {
  int provided = MPI_THREAD_SINGLE;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  if (provided < MPI_THREAD_MULTIPLE) {
    MPI_Finalize();
    throw std::runtime_error("MPI does not provide MPI_THREAD_MULTIPLE");
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  awake_ = awake_here();
}

MpiSession::~MpiSession() {
  if (broken()) {
    log::warn("MPI: a communicator failed; exiting without MPI_Finalize");
    return;
  }
  MPI_Finalize();
}

std::unique_ptr<Communicator> MpiSession::world(MpiOptions options) {
  MR_CHECK(options.max_message_bytes > 0 && options.max_message_bytes < (int64_t{1} << 31),
           "messages of {} bytes", options.max_message_bytes);
  const int first_tag = num_worlds_++ * kTagsPerWorld;
  const int last_tag = first_tag + kTagsPerWorld - 1;
  MR_CHECK(last_tag <= kNumTags, "{} worlds in one session", num_worlds_);

  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  std::vector<int> processes(static_cast<size_t>(size));
  std::iota(processes.begin(), processes.end(), 0);
  auto family = std::make_shared<MpiFamily>(first_tag + 1, last_tag, options.max_message_bytes,
                                            awake_, broken_);
  return std::make_unique<MpiCommunicator>(std::move(family), first_tag, std::move(processes),
                                           rank);
}

}  // namespace millrace::comm
