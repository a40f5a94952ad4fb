// SPDX-License-Identifier: Apache-2.0
// Owner of a ucp_context_h: which transports may be used, and how.
#pragma once

#include <ucp/api/ucp.h>

#include <memory>

#include "comm/ucx/ucx_transport.h"
#include "common/result.h"

namespace millrace::comm {

class UcxContext {
 public:
  static Result<std::shared_ptr<UcxContext>> create(const UcxOptions& options);
  UcxContext(const UcxContext&) = delete;
  UcxContext& operator=(const UcxContext&) = delete;
  ~UcxContext() { ucp_cleanup(context_); }

  ucp_context_h handle() const { return context_; }

 private:
  explicit UcxContext(ucp_context_h context) : context_(context) {}

  ucp_context_h context_;
};

}  // namespace millrace::comm
