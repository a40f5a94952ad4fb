// SPDX-License-Identifier: Apache-2.0
#include "comm/ucx/ucx_error.h"

namespace millrace::comm {
namespace {

Errc errc_of(ucs_status_t status) {
  switch (status) {
    case UCS_ERR_UNREACHABLE:
    case UCS_ERR_CONNECTION_RESET:
    case UCS_ERR_NOT_CONNECTED:
    case UCS_ERR_REJECTED:
    case UCS_ERR_ENDPOINT_TIMEOUT:
    case UCS_ERR_TIMED_OUT:
    case UCS_ERR_CANCELED:
    case UCS_ERR_IO_ERROR:
      return Errc::kPeerLost;
    case UCS_ERR_BUSY:
      return Errc::kExhausted;
    default:
      return Errc::kInternal;
  }
}

}  // namespace

Error ucx_error(ucs_status_t status, std::string_view doing, std::source_location where) {
  return Error(errc_of(status), fmt::format("UCX, {}: {}", doing, ucs_status_string(status)),
               where);
}

}  // namespace millrace::comm
