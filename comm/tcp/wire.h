// SPDX-License-Identifier: Apache-2.0
// What travels on a connection of comm/tcp. Integers are little-endian.
//
//   client                                  server
//   ClientHello (kClientHelloBytes)      ->
//                                        <- ServerHello (kServerHelloBytes); 0: admitted, else the
//                                           end
//   RequestFrame, request header         ->
//                                        <- ReplyFrame, reply header, payload
//   RequestFrame ...
//
// One request at a time. Over TLS the same, within it. The first 16 bytes of both hellos, magic and
// version, are the same in every version, so that a mismatch can be named.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "common/result.h"

namespace millrace::comm {

inline constexpr uint32_t kTcpWireVersion = 1;

inline constexpr size_t kHelloPrefixBytes = 16;
inline constexpr size_t kClientHelloBytes = 80;
inline constexpr size_t kServerHelloBytes = 24;
inline constexpr size_t kRequestFrameBytes = 24;
inline constexpr size_t kReplyFrameBytes = 32;

using ClientHelloBytes = std::array<std::byte, kClientHelloBytes>;
using ServerHelloBytes = std::array<std::byte, kServerHelloBytes>;
using RequestFrameBytes = std::array<std::byte, kRequestFrameBytes>;
using ReplyFrameBytes = std::array<std::byte, kReplyFrameBytes>;

struct ServerHello {
  uint32_t version = kTcpWireVersion;
  int32_t errc = 0;  // 0: admitted, or an Errc
};

struct RequestFrame {
  uint32_t header_bytes = 0;
  uint64_t call = 0;
  int64_t destination_bytes = 0;  // the most that the client can take
};

struct ReplyFrame {
  int32_t errc = 0;  // 0 or an Errc; then there is neither header nor payload
  uint32_t header_bytes = 0;
  uint64_t call = 0;
  int64_t payload_bytes = 0;  // also for a refused payload
};

// `capability`: at most kMaxCapabilityBytes.
ClientHelloBytes write_client_hello(std::string_view capability);
// Whether these first bytes of a connection may be the start of a client's hello.
bool may_be_client_hello(std::span<const std::byte> first);
// Reads the first kHelloPrefixBytes.
uint32_t version_of_hello(std::span<const std::byte> first);
// The capability in a hello of this version, pointing into it; nothing if the hello is malformed.
std::optional<std::string_view> read_client_hello(const ClientHelloBytes& bytes);

ServerHelloBytes write_server_hello(const ServerHello& hello);
// Nothing if the bytes are not the hello of a server of any version.
std::optional<ServerHello> read_server_hello(const ServerHelloBytes& bytes);

RequestFrameBytes write_request_frame(const RequestFrame& frame);
// Nothing if the bytes are not a valid frame, or claim what no client may.
std::optional<RequestFrame> read_request_frame(const RequestFrameBytes& bytes);

ReplyFrameBytes write_reply_frame(const ReplyFrame& frame);
std::optional<ReplyFrame> read_reply_frame(const ReplyFrameBytes& bytes);

}  // namespace millrace::comm
