// SPDX-License-Identifier: Apache-2.0
#include "comm/ucx/ucx_endpoint.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "comm/ucx/bulk_lane.h"
#include "comm/ucx/ucx_error.h"
#include "common/log.h"

namespace millrace::comm {
namespace {

// The transport promises this in comm/api/transport.h.
constexpr std::chrono::seconds kCloseLimit{2};

}  // namespace

Result<std::unique_ptr<UcxEndpoint>> UcxEndpoint::connect(UcxWorker& worker,
                                                          const SocketAddress& address) {
  std::unique_ptr<UcxEndpoint> endpoint(new UcxEndpoint(worker));
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr.addr = address.data();
  params.sockaddr.addrlen = address.size();
  MR_RETURN_IF_ERROR(endpoint->create(params, "connecting"));
  return endpoint;
}

Result<std::unique_ptr<UcxEndpoint>> UcxEndpoint::accept(UcxWorker& worker,
                                                         ucp_conn_request_h request) {
  std::unique_ptr<UcxEndpoint> endpoint(new UcxEndpoint(worker));
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
  params.conn_request = request;
  MR_RETURN_IF_ERROR(endpoint->create(params, "accepting"));
  return endpoint;
}

Result<void> UcxEndpoint::create(ucp_ep_params_t params, std::string_view doing) {
  params.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &UcxEndpoint::on_error;
  params.err_handler.arg = this;
  if (const auto status = ucp_ep_create(worker_.handle(), &params, &endpoint_); status != UCS_OK) {
    endpoint_ = nullptr;
    return ucx_error(status, doing);
  }
  return {};
}

UcxEndpoint::~UcxEndpoint() {
  if (endpoint_ == nullptr) return;
  start_close();
  if (!worker_.progress_until([&] { return closed(); }, close_deadline())) {
    log::warn("UCX: an endpoint did not close within {} s", kCloseLimit.count());
    ucp_request_free(closing_);
  }
}

void UcxEndpoint::on_error(void* self, ucp_ep_h, ucs_status_t status) {
  static_cast<UcxEndpoint*>(self)->status_ = status;
}

Result<void> UcxEndpoint::flush(Deadline deadline) {
  const ucp_request_param_t params{};
  const ucs_status_ptr_t request = ucp_ep_flush_nbx(endpoint_, &params);
  if (request == nullptr) return {};
  if (UCS_PTR_IS_ERR(request)) return ucx_error(UCS_PTR_STATUS(request), "flushing");
  const bool done = worker_.progress_until(
      [&] { return ucp_request_check_status(request) != UCS_INPROGRESS; }, deadline);
  const ucs_status_t status = ucp_request_check_status(request);
  ucp_request_free(request);
  if (!done) return Error(Errc::kDeadlineExceeded, "the peer did not answer");
  if (status != UCS_OK) return ucx_error(status_ != UCS_OK ? status_ : status, "flushing");
  return {};
}

void UcxEndpoint::start_close() {
  if (close_deadline_) return;
  close_deadline_ = Deadline::after(kCloseLimit);
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_EP_CLOSE_FLAG_FORCE;
  closing_ = ucp_ep_close_nbx(endpoint_, &params);
  if (UCS_PTR_IS_ERR(closing_)) closing_ = nullptr;
}

bool UcxEndpoint::closed() {
  if (!close_deadline_) return false;
  if (closing_ != nullptr && ucp_request_check_status(closing_) != UCS_INPROGRESS) {
    ucp_request_free(closing_);
    closing_ = nullptr;
  }
  return closing_ == nullptr;
}

std::string UcxEndpoint::transport_name() const {
  char* text = nullptr;
  size_t size = 0;
  FILE* stream = open_memstream(&text, &size);
  if (stream == nullptr) return "unknown";
  ucp_ep_print_info(endpoint_, stream);
  std::fclose(stream);
  const std::unique_ptr<char, decltype(&std::free)> owner(text, std::free);
  return transport_of_bulk_lane(std::string_view(text, size));
}

}  // namespace millrace::comm
