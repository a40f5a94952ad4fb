// SPDX-License-Identifier: Apache-2.0
// The answers that need no prefill and no waiting: models, health, readiness, metrics, version, the
// overview, and errors for paths and methods that do not exist.
#pragma once

#include <string_view>

#include "coordinator/api/shown_names.h"
#include "coordinator/http/http_reply.h"
#include "coordinator/http/model_tokenizers.h"
#include "coordinator/http/route.h"
#include "coordinator/requests/coordinator_metrics.h"
#include "coordinator/schedule/scheduler.h"

namespace millrace::coordinator {

// `names`: of the overview, as the caller may see them.
HttpReply service_reply(const Route& route, const Scheduler& scheduler, CoordinatorMetrics& metrics,
                        ModelTokenizers& tokenizers, const ShownNames& names,
                        std::string_view request_id);

}  // namespace millrace::coordinator
