// SPDX-License-Identifier: Apache-2.0
#include "comm/ucx/ucx_connection.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "comm/net/address_scheme.h"
#include "comm/net/reply_maker.h"
#include "comm/ucx/outgoing_message.h"
#include "comm/ucx/ucx_error.h"
#include "comm/ucx/wire_frame.h"
#include "common/log.h"

namespace millrace::comm {

bool UcxConnection::Call::done() const {
  if (failure) return true;
  if (!reply) return false;
  return reply_errc != 0 || reply->payload_bytes == 0 || payload_bytes.has_value();
}

Result<std::unique_ptr<UcxConnection>> UcxConnection::open(std::shared_ptr<UcxContext> context,
                                                           const SocketAddress& address,
                                                           Deadline deadline) {
  MR_ASSIGN_OR_RETURN(auto worker, UcxWorker::create(std::move(context)));
  std::unique_ptr<UcxConnection> connection(new UcxConnection(std::move(worker), address));
  MR_RETURN_IF_ERROR(connection->connect(deadline));
  return connection;
}

Error UcxConnection::failed(const Error& why) const {
  return Error(why.code,
               fmt::format("{}: {}", with_scheme(kUcxScheme, address_.to_string()), why.message),
               why.where);
}

Result<void> UcxConnection::connect(Deadline deadline) {
  MR_RETURN_IF_ERROR(worker_->set_handler(kReplyMessage, &UcxConnection::on_reply, this));
  MR_RETURN_IF_ERROR(worker_->set_handler(kPayloadMessage, &UcxConnection::on_payload, this));
  MR_ASSIGN_OR_RETURN(endpoint_, UcxEndpoint::connect(*worker_, address_));
  if (auto ready = endpoint_->flush(deadline); !ready.ok()) {
    return error(ready.error().code, "connecting to {}: {}", address_.to_string(),
                 ready.error().message);
  }
  return {};
}

UcxConnection::~UcxConnection() {
  if (!endpoint_) return;
  // After this nothing touches the destination of an unfinished call or what was sent.
  endpoint_->start_close();
  const auto quiet = [&] { return endpoint_->closed() && *num_sends_ == 0 && !receiving_; };
  if (!worker_->progress_until(quiet, endpoint_->close_deadline())) {
    log::warn("UCX: a connection did not finish its transfers in time");
  }
}

void UcxConnection::interrupt() {
  interrupted_.store(true, std::memory_order_release);
  worker_->wake();
}

Result<TransportConnection::Reply> UcxConnection::call_into(std::string_view request_header,
                                                            Destination destination,
                                                            Deadline deadline) {
  if (broken_) return *broken_;
  if (static_cast<int64_t>(request_header.size()) > kMaxTransportHeaderBytes) {
    return error(Errc::kTooLarge, "request header of {} bytes, limit {}", request_header.size(),
                 kMaxTransportHeaderBytes);
  }
  call_ = Call{.id = call_.id + 1,
               .pieces = {},
               .destination_bytes = total_bytes(destination),
               .reply = {},
               .reply_errc = 0,
               .payload_bytes = {},
               .failure = {}};
  for (const auto piece : destination) {
    if (!piece.empty()) call_.pieces.push_back({piece.data(), piece.size()});
  }
  ++stats_.requests;
  auto result = exchange(request_header, deadline);
  if (!result.ok()) {
    ++stats_.failures;
    broken_ = failed(result.error());
    return *broken_;
  }
  if (call_.reply_errc == 0) return result;
  ++stats_.failures;
  return failed(
      ReplyMaker::refusal(call_.reply_errc, call_.reply->payload_bytes, call_.destination_bytes));
}

Result<TransportConnection::Reply> UcxConnection::exchange(std::string_view request_header,
                                                           Deadline deadline) {
  const Stopwatch watch;
  const RequestFrame frame{.call = call_.id, .destination_bytes = call_.destination_bytes};
  MR_RETURN_IF_ERROR(
      OutgoingMessage::send(OutgoingMessage::with_text(frame, std::string(request_header)),
                            endpoint_->handle(), kRequestMessage, num_sends_));
  stats_.bytes_sent += static_cast<int64_t>(request_header.size());
  const bool in_time = worker_->progress_until(
      [&] {
        return call_.done() || endpoint_->status() != UCS_OK ||
               interrupted_.load(std::memory_order_acquire);
      },
      deadline);
  if (interrupted_) return Error(Errc::kCancelled, "the call was interrupted");
  if (call_.failure) return *call_.failure;
  if (call_.done()) {
    const int64_t arrived = call_.payload_bytes.value_or(0);
    if (call_.reply_errc == 0 && arrived != call_.reply->payload_bytes) {
      return error(Errc::kCorrupt, "payload of {} bytes, but {} were announced", arrived,
                   call_.reply->payload_bytes);
    }
    stats_.bytes_received += static_cast<int64_t>(call_.reply->header.size()) + arrived;
    return *call_.reply;
  }
  if (in_time) return ucx_error(endpoint_->status(), "waiting for a reply");
  if (!call_.reply) {
    return error(Errc::kDeadlineExceeded, "no reply within {:.3f} s", watch.elapsed_s());
  }
  return error(Errc::kDeadlineExceeded,
               "got a reply but not its payload of {} bytes within {:.3f} s",
               call_.reply->payload_bytes, watch.elapsed_s());
}

ucs_status_t UcxConnection::on_reply(void* self, const void* frame_data, size_t frame_bytes,
                                     void* text, size_t text_bytes,
                                     const ucp_am_recv_param_t* params) {
  Call& call = static_cast<UcxConnection*>(self)->call_;
  const auto frame = read_frame<ReplyFrame>(frame_data, frame_bytes);
  const bool valid = frame && !(params->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) &&
                     static_cast<int64_t>(text_bytes) <= kMaxTransportHeaderBytes &&
                     frame->payload_bytes >= 0;
  if (!valid) {
    call.failure =
        error(Errc::kCorrupt, "malformed reply: a frame of {} bytes claims a header of {}",
              frame_bytes, text_bytes);
    return UCS_OK;
  }
  if (frame->call != call.id || call.reply) return UCS_OK;
  call.reply_errc = frame->errc;
  call.reply = Reply{std::string(static_cast<const char*>(text), text_bytes), frame->payload_bytes};
  return UCS_OK;
}

ucs_status_t UcxConnection::on_payload(void* self, const void* frame_data, size_t frame_bytes,
                                       void* data, size_t num_bytes,
                                       const ucp_am_recv_param_t* params) {
  auto& connection = *static_cast<UcxConnection*>(self);
  const auto frame = read_frame<PayloadFrame>(frame_data, frame_bytes);
  if (!frame) {
    connection.call_.failure =
        error(Errc::kCorrupt, "malformed payload: a frame of {} bytes followed by {}", frame_bytes,
              num_bytes);
    return UCS_OK;
  }
  // After a deadline the destination must not be written, even if the payload comes late.
  if (frame->call != connection.call_.id || connection.broken_) return UCS_OK;
  return connection.take_payload(data, num_bytes, params->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV);
}

ucs_status_t UcxConnection::take_payload(void* data, size_t num_bytes, bool rendezvous) {
  if (static_cast<int64_t>(num_bytes) > call_.destination_bytes || receiving_ ||
      call_.payload_bytes) {
    call_.failure = error(Errc::kCorrupt, "payload of {} bytes; {} were requested", num_bytes,
                          call_.destination_bytes);
    return UCS_OK;
  }
  if (rendezvous) return receive(data, num_bytes);
  const auto* from = static_cast<const std::byte*>(data);
  size_t left = num_bytes;
  for (const auto& piece : call_.pieces) {
    const size_t count = std::min(piece.length, left);
    std::memcpy(piece.buffer, from, count);
    from += count;
    left -= count;
  }
  call_.payload_bytes = static_cast<int64_t>(num_bytes);
  return UCS_OK;
}

ucs_status_t UcxConnection::receive(void* data, size_t num_bytes) {
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FLAG_NO_IMM_CMPL | UCP_OP_ATTR_FIELD_DATATYPE;
  params.cb.recv_am = &UcxConnection::on_received;
  params.user_data = this;
  const bool contiguous = call_.pieces.size() == 1;
  params.datatype = contiguous ? ucp_dt_make_contig(1) : ucp_dt_make_iov();
  void* const to = contiguous ? call_.pieces.front().buffer : call_.pieces.data();
  const size_t count = contiguous ? num_bytes : call_.pieces.size();
  receiving_ = true;
  const ucs_status_ptr_t request =
      ucp_am_recv_data_nbx(worker_->handle(), data, to, count, &params);
  if (UCS_PTR_IS_ERR(request)) {
    receiving_ = false;
    call_.failure = ucx_error(UCS_PTR_STATUS(request), "receiving a payload");
    return UCS_OK;
  }
  return UCS_INPROGRESS;
}

void UcxConnection::on_received(void* request, ucs_status_t status, size_t num_bytes, void* self) {
  auto& connection = *static_cast<UcxConnection*>(self);
  connection.receiving_ = false;
  if (status == UCS_OK) {
    connection.call_.payload_bytes = static_cast<int64_t>(num_bytes);
  } else {
    connection.call_.failure = ucx_error(status, "receiving a payload");
  }
  ucp_request_free(request);
}

}  // namespace millrace::comm
