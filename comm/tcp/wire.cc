// SPDX-License-Identifier: Apache-2.0
#include "comm/tcp/wire.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "comm/api/transport.h"
#include "common/check.h"

namespace millrace::comm {

namespace {

static_assert(std::endian::native == std::endian::little,
              "integers are sent as they lie in memory");

// No text of another protocol begins like this, nor does a TLS record.
constexpr std::string_view kClientMagic = "\x8dMRKVC\r\n";
constexpr std::string_view kServerMagic = "\x8dMRKVS\r\n";
constexpr uint32_t kRequestMagic = 0x3152'524d;  // "MRR1"
constexpr uint32_t kReplyMagic = 0x3150'524d;    // "MRP1"

constexpr size_t kVersionAt = 8;
constexpr size_t kCapabilityBytesAt = 12;
constexpr size_t kCapabilityAt = 16;
static_assert(kCapabilityAt + kMaxCapabilityBytes == kClientHelloBytes);

template <typename T>
void put(std::span<std::byte> bytes, size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof(T));
}

template <typename T>
T get(std::span<const std::byte> bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

bool begins_with(std::span<const std::byte> bytes, std::string_view magic) {
  return std::memcmp(bytes.data(), magic.data(), std::min(bytes.size(), magic.size())) == 0;
}

}  // namespace

ClientHelloBytes write_client_hello(std::string_view capability) {
  MR_CHECK(capability.size() <= kMaxCapabilityBytes, "{} bytes", capability.size());
  ClientHelloBytes bytes{};
  std::memcpy(bytes.data(), kClientMagic.data(), kClientMagic.size());
  put(std::span(bytes), kVersionAt, kTcpWireVersion);
  put(std::span(bytes), kCapabilityBytesAt, static_cast<uint32_t>(capability.size()));
  std::copy_n(reinterpret_cast<const std::byte*>(capability.data()), capability.size(),
              bytes.begin() + kCapabilityAt);
  return bytes;
}

bool may_be_client_hello(std::span<const std::byte> first) {
  return begins_with(first, kClientMagic);
}

uint32_t version_of_hello(std::span<const std::byte> first) {
  return get<uint32_t>(first, kVersionAt);
}

std::optional<std::string_view> read_client_hello(const ClientHelloBytes& bytes) {
  const auto count = get<uint32_t>(bytes, kCapabilityBytesAt);
  if (!may_be_client_hello(bytes) || version_of_hello(bytes) != kTcpWireVersion ||
      count > kMaxCapabilityBytes) {
    return std::nullopt;
  }
  return std::string_view(reinterpret_cast<const char*>(bytes.data()) + kCapabilityAt, count);
}

ServerHelloBytes write_server_hello(const ServerHello& hello) {
  ServerHelloBytes bytes{};
  std::memcpy(bytes.data(), kServerMagic.data(), kServerMagic.size());
  put(std::span(bytes), kVersionAt, hello.version);
  put(std::span(bytes), kVersionAt + 4, hello.errc);
  return bytes;
}

std::optional<ServerHello> read_server_hello(const ServerHelloBytes& bytes) {
  if (!begins_with(bytes, kServerMagic)) return std::nullopt;
  return ServerHello{.version = version_of_hello(bytes),
                     .errc = get<int32_t>(bytes, kVersionAt + 4)};
}

RequestFrameBytes write_request_frame(const RequestFrame& frame) {
  RequestFrameBytes bytes{};
  put(std::span(bytes), 0, kRequestMagic);
  put(std::span(bytes), 4, frame.header_bytes);
  put(std::span(bytes), 8, frame.call);
  put(std::span(bytes), 16, frame.destination_bytes);
  return bytes;
}

std::optional<RequestFrame> read_request_frame(const RequestFrameBytes& bytes) {
  const RequestFrame frame{.header_bytes = get<uint32_t>(bytes, 4),
                           .call = get<uint64_t>(bytes, 8),
                           .destination_bytes = get<int64_t>(bytes, 16)};
  if (get<uint32_t>(bytes, 0) != kRequestMagic || frame.header_bytes > kMaxTransportHeaderBytes ||
      frame.destination_bytes < 0) {
    return std::nullopt;
  }
  return frame;
}

ReplyFrameBytes write_reply_frame(const ReplyFrame& frame) {
  ReplyFrameBytes bytes{};
  put(std::span(bytes), 0, kReplyMagic);
  put(std::span(bytes), 4, frame.errc);
  put(std::span(bytes), 8, frame.header_bytes);
  put(std::span(bytes), 16, frame.call);
  put(std::span(bytes), 24, frame.payload_bytes);
  return bytes;
}

std::optional<ReplyFrame> read_reply_frame(const ReplyFrameBytes& bytes) {
  const ReplyFrame frame{.errc = get<int32_t>(bytes, 4),
                         .header_bytes = get<uint32_t>(bytes, 8),
                         .call = get<uint64_t>(bytes, 16),
                         .payload_bytes = get<int64_t>(bytes, 24)};
  if (get<uint32_t>(bytes, 0) != kReplyMagic || frame.header_bytes > kMaxTransportHeaderBytes ||
      frame.payload_bytes < 0 || (frame.errc != 0 && frame.header_bytes != 0)) {
    return std::nullopt;
  }
  return frame;
}

}  // namespace millrace::comm
