// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/nccl_communicator.h"

namespace millrace::comm {

bool built_with_nccl() {
  return false;
}

void prepare_nccl() {}

Result<std::unique_ptr<DeviceCommunicator>> make_nccl_communicator(Communicator&,
                                                                   const NcclOptions&, Deadline) {
  return error(Errc::kUnsupported, "built without NCCL");
}

}  // namespace millrace::comm
