// SPDX-License-Identifier: Apache-2.0
// Turns UCX statuses into Millrace's errors.
#pragma once

#include <ucs/type/status.h>

#include <string_view>

#include "common/result.h"

namespace millrace::comm {

// A vanished, refusing or unreachable peer is kPeerLost; everything else is kInternal.
Error ucx_error(ucs_status_t status, std::string_view doing,
                std::source_location where = std::source_location::current());

}  // namespace millrace::comm
