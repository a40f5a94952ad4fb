// SPDX-License-Identifier: Apache-2.0
#include "comm/ucx/outgoing_message.h"

#include <utility>

#include "comm/ucx/ucx_error.h"

namespace millrace::comm {
namespace {

// Smaller payloads travel with their message; larger ones wait at the sender until the receiver has
// named the place where they land. 8 KiB is UCX's own limit for shared memory.
constexpr int64_t kRendezvousBytes = 8 << 10;

}  // namespace

void OutgoingMessage::add_piece(std::span<const std::byte> piece) {
  if (piece.empty()) return;
  pieces_.push_back({const_cast<std::byte*>(piece.data()), piece.size()});
  num_bytes_ += static_cast<int64_t>(piece.size());
}

Result<void> OutgoingMessage::send(std::unique_ptr<OutgoingMessage> message, ucp_ep_h endpoint,
                                   unsigned message_id, std::shared_ptr<int> num_in_flight) {
  const bool rendezvous = message->bulk_ && message->num_bytes_ >= kRendezvousBytes;
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_DATATYPE;
  params.cb.send = &OutgoingMessage::on_sent;
  params.user_data = message.get();
  params.flags =
      UCP_AM_SEND_FLAG_REPLY | (rendezvous ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER);
  const bool contiguous = message->pieces_.size() <= 1;
  params.datatype = contiguous ? ucp_dt_make_contig(1) : ucp_dt_make_iov();

  const void* data = message->pieces_.data();
  size_t count = message->pieces_.size();
  if (contiguous) {
    data = message->pieces_.empty() ? nullptr : message->pieces_.front().buffer;
    count = static_cast<size_t>(message->num_bytes_);
  }
  const ucs_status_ptr_t request = ucp_am_send_nbx(endpoint, message_id, message->frame_.data(),
                                                   message->frame_bytes_, data, count, &params);
  if (UCS_PTR_IS_ERR(request)) return ucx_error(UCS_PTR_STATUS(request), "sending");
  if (request == nullptr) return {};  // sent already
  ++*num_in_flight;
  message->num_in_flight_ = std::move(num_in_flight);
  (void)message.release();  // on_sent takes it back
  return {};
}

void OutgoingMessage::on_sent(void* request, ucs_status_t, void* self) {
  // The endpoint reports the error.
  const std::unique_ptr<OutgoingMessage> message(static_cast<OutgoingMessage*>(self));
  --*message->num_in_flight_;
  ucp_request_free(request);
}

}  // namespace millrace::comm
