// SPDX-License-Identifier: Apache-2.0
#include "coordinator/tracing/request_tracer.h"

#include <exception>

#include "common/log.h"

namespace millrace::coordinator {

RequestTracer::Answering::~Answering() {
  if (!trace_) return;
  try {
    trace_->answered(status_, tracer_.clock_.now());
    tracer_.send(*trace_);
  } catch (const std::exception& e) {
    log::error("trace {}: exception: {}", trace_id_, e.what());
  }
}

RequestTracer::Answering RequestTracer::begin(Call call) {
  const auto given = tracing::parse_traceparent(call.traceparent);
  tracing::TraceContext own{
      .trace_id = given ? given->trace_id : "", .span_id = "", .sampled = given && given->sampled};
  if (exporter_ != nullptr && !given) {
    own.trace_id = tracing::make_trace_id();
    own.sampled = tracing::is_in_share(own.trace_id, share_);
  }
  if (exporter_ == nullptr || !own.sampled) {
    return {*this, given ? std::move(own.trace_id) : "", nullptr};
  }
  own.span_id = tracing::make_span_id();
  const std::string trace_id = own.trace_id;
  auto trace =
      std::make_shared<RequestTrace>(RequestTrace::Call{.own = std::move(own),
                                                        .parent_id = given ? given->span_id : "",
                                                        .method = std::move(call.method),
                                                        .path = std::move(call.path),
                                                        .operation = std::move(call.operation),
                                                        .received = clock_.now()});
  return {*this, trace_id, std::move(trace)};
}

// Whatever goes wrong here (memory) is no matter of the request.
void RequestTracer::changed(const Request& request) {
  if (!request.trace) return;
  try {
    request.trace->changed(request, clock_.now());
    send(*request.trace);
  } catch (const std::exception& e) {
    log::error("trace {}: exception: {}", request.trace_id, e.what());
  }
}

void RequestTracer::send(RequestTrace& trace) {
  exporter_->add(trace.take());
}

}  // namespace millrace::coordinator
