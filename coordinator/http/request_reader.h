// SPDX-License-Identifier: Apache-2.0
// Parses one HTTP request from the bytes of a connection. Limits the header, the body, and the
// framing of a chunked body, and refuses what others might read differently (framing_rules.h).
// Trailer fields of a chunked body are dropped, because they arrive after the request has been let
// in and routed. Pure: bytes in, a request or an error out; the owner of the connection reads and
// waits.
//
//   RequestReader reader(16 << 10, buffer);
//   while (!reader.has_header()) {
//     read_into(buffer);  // at most RequestReader::kBufferBytes
//     if (auto wrong = reader.take()) return refuse(*wrong);
//   }
#pragma once

#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

#include "coordinator/api/api_error.h"

namespace millrace::coordinator {

namespace beast = boost::beast;
namespace http = boost::beast::http;

// Bytes that a connection has read and no request has taken yet.
class ReadBuffer {
 public:
  // More than any header, line or trailer may have: one that fills the buffer is too long.
  static constexpr size_t kMaxBytes = 64 << 10;

  beast::flat_buffer& bytes() { return bytes_; }
  size_t room() const { return kMaxBytes - bytes_.size(); }

 private:
  beast::flat_buffer bytes_{kMaxBytes};
};

class RequestReader {
 public:
  using Request = http::request<http::string_body>;
  using Header = http::header</*isRequest=*/true>;

  // `max_header_bytes`: less than half of a ReadBuffer. It bounds the header, and separately all
  // framing of chunks beyond their sizes and line ends: extensions, leading zeros, trailers.
  RequestReader(uint32_t max_header_bytes, ReadBuffer& buffer);
  RequestReader(const RequestReader&) = delete;
  RequestReader& operator=(const RequestReader&) = delete;

  // Takes the next piece: up to the end of the header, or a part of the body. If starved()
  // afterwards, the buffer needs more bytes before the next call.
  std::optional<ApiError> take();
  bool starved() const { return starved_; }
  bool has_header() const { return parser_.is_header_done(); }
  bool done() const { return parser_.is_done(); }
  const Header& header() const { return header_ ? *header_ : parser_.get().base(); }
  // According to the header; 0 for a chunked body.
  uint64_t announced_bytes() const { return parser_.content_length().value_or(0); }
  void limit_body(uint64_t max_body_bytes);
  uint64_t body_bytes() const { return parser_.get().body().size(); }
  // The memory that the body takes.
  uint64_t held_bytes() const { return parser_.get().body().capacity(); }
  Request release();

 private:
  std::optional<ApiError> end_header();
  ApiError unreadable(boost::system::error_code why) const;
  std::optional<ApiError> check_framing() const;

  const uint32_t max_header_bytes_;
  uint64_t max_body_bytes_ = 0;
  ReadBuffer& buffer_;
  http::request_parser<http::string_body> parser_;
  std::function<void(uint64_t, beast::string_view, boost::system::error_code&)> on_chunk_;
  std::optional<Header>
      header_;  // of a body in chunks: the parser adds the fields behind it to its own
  uint64_t header_bytes_ = 0;
  uint64_t num_chunks_ = 0;
  uint64_t excess_bytes_ = 0;  // of framing, beyond what the chunks need
  bool starved_ = true;
};

}  // namespace millrace::coordinator
