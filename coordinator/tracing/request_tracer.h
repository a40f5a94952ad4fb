// SPDX-License-Identifier: Apache-2.0
// Decides which requests are traced, and passes their spans on. Until it is started it only reads
// trace ids for the log. One thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/tracing/otlp_exporter.h"
#include "coordinator/requests/request.h"
#include "coordinator/tracing/request_trace.h"

namespace millrace::coordinator {

class RequestTracer {
 public:
  explicit RequestTracer(const Clock& clock) : clock_(clock) {}

  // `share`: how many are traced of the requests that come without a trace.
  void start(std::unique_ptr<tracing::OtlpExporter> exporter, double share) {
    exporter_ = std::move(exporter);
    share_ = share;
  }

  // One request, while it is answered. The end of this object is the end of the answer.
  class Answering {
   public:
    Answering(RequestTracer& tracer, std::string trace_id, std::shared_ptr<RequestTrace> trace)
        : tracer_(tracer), trace_id_(std::move(trace_id)), trace_(std::move(trace)) {}
    ~Answering();
    Answering(const Answering&) = delete;
    Answering& operator=(const Answering&) = delete;

    // For the log; "" if the request is in nobody's trace.
    const std::string& trace_id() const { return trace_id_; }
    // Null if it is not traced.
    const std::shared_ptr<RequestTrace>& trace() const { return trace_; }
    void set_status(int status) { status_ = status; }

   private:
    RequestTracer& tracer_;
    const std::string trace_id_;
    const std::shared_ptr<RequestTrace> trace_;
    int status_ = 0;
  };

  struct Call {
    std::string method;
    std::string path;
    std::string operation;
    std::string traceparent;  // the header; "" : none, or one that cannot be used
  };
  Answering begin(Call call);
  // For a request that is never traced.
  Answering leave_out() { return {*this, "", nullptr}; }

  // To be called after each change of a record.
  void changed(const Request& request);

 private:
  void send(RequestTrace& trace);

  const Clock& clock_;
  std::unique_ptr<tracing::OtlpExporter> exporter_;
  double share_ = 0;
};

}  // namespace millrace::coordinator
