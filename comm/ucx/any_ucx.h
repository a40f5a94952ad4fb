// SPDX-License-Identifier: Apache-2.0
// Lets an AnyTransport connect to ucx:// addresses.
#pragma once

#include "comm/any/any_transport.h"
#include "comm/ucx/ucx_transport.h"

namespace millrace::comm {

// UCX is set up when the first such address is met.
inline void add_ucx(AnyTransport& to, const UcxOptions& options) {
  to.add("ucx", [options]() -> Result<std::unique_ptr<Transport>> {
    MR_ASSIGN_OR_RETURN(auto made, UcxTransport::create(options));
    return std::unique_ptr<Transport>(std::move(made));
  });
}

}  // namespace millrace::comm
