// SPDX-License-Identifier: Apache-2.0
#include "coordinator/http/request_reader.h"

#include <utility>

#include "coordinator/http/framing_rules.h"

namespace millrace::coordinator {

namespace {

using boost::system::error_code;

// The framing of a chunk without extensions: 64 bits of size in hexadecimal, and two line ends.
constexpr uint64_t kChunkFramingBytes = 16 + 4;

}  // namespace

RequestReader::RequestReader(uint32_t max_header_bytes, ReadBuffer& buffer)
    : max_header_bytes_(max_header_bytes),
      buffer_(buffer),
      on_chunk_([this](uint64_t, beast::string_view extensions, error_code& ec) {
        ++num_chunks_;
        if (has_control_character({extensions.data(), extensions.size()})) {
          ec = http::error::bad_chunk_extension;
        }
      }),
      starved_(buffer.bytes().size() == 0) {
  MR_CHECK(max_header_bytes < ReadBuffer::kMaxBytes / 2, "a header limit of {} bytes",
           max_header_bytes);
  parser_.eager(false);
  parser_.header_limit(max_header_bytes);
  parser_.body_limit(boost::none);  // until it is known
  parser_.on_chunk_header(on_chunk_);
}

void RequestReader::limit_body(uint64_t max_body_bytes) {
  max_body_bytes_ = max_body_bytes;
  parser_.body_limit(max_body_bytes);
}

std::optional<ApiError> RequestReader::take() {
  const bool in_body = has_header();
  const uint64_t content_before = body_bytes();
  const uint64_t chunks_before = num_chunks_;
  error_code ec;
  const auto bytes = buffer_.bytes().cdata();
  const size_t taken = parser_.put(bytes, ec);
  // Of a body's pieces, only the last one has fields, and it comes as a whole.
  const bool is_folded = (!in_body || (parser_.chunked() && done())) &&
                         has_folded_line({static_cast<const char*>(bytes.data()), taken});
  buffer_.bytes().consume(taken);
  starved_ = ec == http::error::need_more || buffer_.bytes().size() == 0;
  if (ec && ec != http::error::need_more) return unreadable(ec);
  if (is_folded) {
    return ApiError(
        error(Errc::kInvalidArgument, "cannot read the request: a field goes on in a second line"));
  }
  if (!in_body) {
    header_bytes_ += taken;
    // The parser's own limit applies only to what it has not taken yet, and it takes line by line.
    const uint64_t unfinished_bytes = has_header() ? 0 : buffer_.bytes().size();
    if (header_bytes_ + unfinished_bytes > max_header_bytes_) {
      return unreadable(http::error::header_limit);
    }
  }
  if (!in_body && has_header()) return end_header();
  if (!in_body || !parser_.chunked()) return std::nullopt;
  const uint64_t framing_bytes = taken - (body_bytes() - content_before);
  const uint64_t needed_bytes = (num_chunks_ - chunks_before) * kChunkFramingBytes;
  excess_bytes_ += framing_bytes > needed_bytes ? framing_bytes - needed_bytes : 0;
  return check_framing();
}

std::optional<ApiError> RequestReader::end_header() {
  if (auto wrong = check_header(header())) return ApiError(*std::move(wrong));
  if (parser_.chunked()) header_ = parser_.get().base();
  return std::nullopt;
}

RequestReader::Request RequestReader::release() {
  Request request = parser_.release();
  if (header_) request.base() = *std::exchange(header_, std::nullopt);
  return request;
}

std::optional<ApiError> RequestReader::check_framing() const {
  // An unfinished piece is a line or a trailer, never content. Up to kChunkFramingBytes of it may
  // be what a chunk needs.
  const uint64_t unfinished_bytes = starved_ ? buffer_.bytes().size() : 0;
  const uint64_t unfinished_excess =
      unfinished_bytes > kChunkFramingBytes ? unfinished_bytes - kChunkFramingBytes : 0;
  if (excess_bytes_ + unfinished_excess <= max_header_bytes_) return std::nullopt;
  return ApiError(error(Errc::kInvalidArgument,
                        "chunk extensions and trailers exceed the limit of {} bytes",
                        max_header_bytes_));
}

ApiError RequestReader::unreadable(error_code why) const {
  if (why == http::error::body_limit) {
    return ApiError(
        error(Errc::kTooLarge, "the body exceeds the limit of {} bytes", max_body_bytes_));
  }
  if (why == http::error::header_limit) {
    constexpr int kHeaderFieldsTooLarge = 431;
    return ApiError(
        error(Errc::kTooLarge, "the header exceeds the limit of {} bytes", max_header_bytes_),
        kHeaderFieldsTooLarge);
  }
  return ApiError(error(Errc::kInvalidArgument, "cannot read the request: {}", why.message()));
}

}  // namespace millrace::coordinator
