// SPDX-License-Identifier: Apache-2.0
#include "protocol/codec.h"
#include "common/errc_wire.h"

#include <gtest/gtest.h>

#include "protocol/errc.h"

namespace millrace::protocol {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

TEST(Codec, FrameIsALittleEndianLengthAndTheMessage) {
  Envelope envelope;
  envelope.mutable_cancel()->set_request_id("abc");
  const auto frame = encode_frame(envelope);
  ASSERT_TRUE(frame.ok());
  // Envelope.cancel is field 5, Cancel.request_id field 1, both length delimited.
  EXPECT_EQ(*frame, std::string("\x07\0\0\0\x2a\x05\x0a\x03"
                                "abc",
                                11));
}

TEST(Codec, DecodesWhatItEncodes) {
  Envelope envelope;
  envelope.mutable_layer_done()->set_layer(7);
  envelope.mutable_layer_done()->set_density(0.125);
  const auto frame = encode_frame(envelope);
  ASSERT_TRUE(frame.ok());
  const auto header = bytes_of(*frame).first<kFrameHeaderBytes>();
  const auto length = decode_frame_length(header);
  ASSERT_TRUE(length.ok());
  ASSERT_EQ(*length, static_cast<int64_t>(frame->size()) - kFrameHeaderBytes);
  const auto decoded = decode_frame_body(bytes_of(*frame).subspan(kFrameHeaderBytes));
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->layer_done().layer(), 7u);
  EXPECT_EQ(decoded->layer_done().density(), 0.125);
}

TEST(Codec, AnEmptyFrameIsAMessageWithoutBody) {
  const auto decoded = decode_frame_body({});
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->body_case(), Envelope::BODY_NOT_SET);
}

TEST(Codec, RefusesALengthOverTheLimitBeforeReadingOn) {
  const std::string header("\x01\0\0\x04", 4);  // 64 MiB + 1
  EXPECT_EQ(decode_frame_length(bytes_of(header).first<4>()).error().code, Errc::kTooLarge);
  const std::string most("\0\0\0\x04", 4);
  EXPECT_EQ(*decode_frame_length(bytes_of(most).first<4>()), kMaxFrameBytes);
  const std::string all_ones(4, '\xff');
  EXPECT_EQ(decode_frame_length(bytes_of(all_ones).first<4>()).error().code, Errc::kTooLarge);
}

TEST(Codec, TellsHttpFromAFrame) {
  for (const std::string text : {"HTTP", "GET ", "POST"}) {
    const auto length = decode_frame_length(bytes_of(text).first<4>());
    EXPECT_EQ(length.error().code, Errc::kInvalidArgument);
    EXPECT_NE(length.error().message.find("speaks HTTP"), std::string::npos);
  }
}

TEST(Codec, RefusesToEncodeMoreThanAFrame) {
  Envelope envelope;
  envelope.mutable_prefill_request()->set_prompt_token_ids(
      std::string(static_cast<size_t>(kMaxFrameBytes), 'x'));
  EXPECT_EQ(encode_frame(envelope).error().code, Errc::kTooLarge);
}

TEST(Codec, RefusesATruncatedMessage) {
  Envelope envelope;
  envelope.mutable_cancel()->set_request_id("abcdef");
  const auto frame = encode_frame(envelope);
  const auto body = bytes_of(*frame).subspan(kFrameHeaderBytes);
  EXPECT_FALSE(decode_frame_body(body.first(body.size() - 1)).ok());
}

TEST(Errc, EveryCodeHasAnHttpStatus) {
  for (int code = errc_to_wire(Errc::kInvalidArgument); code <= errc_to_wire(Errc::kDenied);
       ++code) {
    EXPECT_GE(http_status(errc_from_wire(code)), 400) << code;
  }
}

TEST(Errc, OnlyPassingTroubleIsRetriable) {
  EXPECT_TRUE(retriable(Errc::kExhausted));
  EXPECT_TRUE(retriable(Errc::kUnavailable));
  EXPECT_TRUE(retriable(Errc::kPeerLost));
  EXPECT_FALSE(retriable(Errc::kInvalidArgument));
  EXPECT_FALSE(retriable(Errc::kDeadlineExceeded));
}

}  // namespace
}  // namespace millrace::protocol
