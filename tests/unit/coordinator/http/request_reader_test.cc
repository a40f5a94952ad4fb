// SPDX-License-Identifier: Apache-2.0
#include "coordinator/http/request_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

namespace millrace::coordinator {
namespace {

constexpr uint32_t kMaxHeaderBytes = 256;
constexpr std::string_view kChunked =
    "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";

// How reading a request ended.
struct Outcome {
  int status = 0;         // of the refusal; 0: it was taken
  size_t read_bytes = 0;  // until then
};

Outcome read_of(std::string_view text, size_t piece_bytes) {
  ReadBuffer buffer;
  RequestReader reader(kMaxHeaderBytes, buffer);
  size_t read_bytes = 0;
  while (!reader.done()) {
    if (reader.starved()) {
      const size_t count = std::min(piece_bytes, text.size() - read_bytes);
      if (count == 0) return {.status = -1, .read_bytes = read_bytes};
      std::memcpy(buffer.bytes().prepare(count).data(), text.data() + read_bytes, count);
      buffer.bytes().commit(count);
      read_bytes += count;
    }
    if (const auto wrong = reader.take()) {
      return {.status = wrong->http_status(), .read_bytes = read_bytes};
    }
  }
  return {.read_bytes = read_bytes};
}

void expect_however_cut(std::string_view text, int status) {
  for (size_t piece = 1; piece <= text.size(); ++piece) {
    EXPECT_EQ(read_of(text, piece).status, status) << "in pieces of " << piece;
  }
}

// A header of this many bytes in lines of 10, without a body.
std::string header_of(size_t num_bytes) {
  std::string text = "GET / HTTP/1.1\r\nHost: x\r\n";
  while (text.size() + 2 + 20 <= num_bytes) text += "Name: 78\r\n";
  text += "X: ";
  text.append(num_bytes - text.size() - 4, 'x');
  return text + "\r\n\r\n";
}

TEST(RequestReader, LimitsTheHeaderHoweverItIsCut) {
  ASSERT_EQ(header_of(kMaxHeaderBytes).size(), kMaxHeaderBytes);
  expect_however_cut(header_of(kMaxHeaderBytes), 0);
  expect_however_cut(header_of(kMaxHeaderBytes + 1), 431);
  expect_however_cut(header_of(2 * kMaxHeaderBytes), 431);
}

TEST(RequestReader, LimitsAHeaderThatComesLineByLine) {
  // Pieces of one line each, with the first byte of the next line, which shows that the line has
  // ended.
  constexpr size_t kLineBytes = 17;
  std::string text = "GET / HTTP/1.1\r\n";
  ASSERT_EQ(text.size() + 1, kLineBytes);
  while (text.size() < 100 * kMaxHeaderBytes) text += "Name: 789012345\r\n";
  for (const size_t piece : {size_t{1}, kLineBytes, 2 * kLineBytes, text.size()}) {
    const Outcome outcome = read_of(text, piece);
    EXPECT_EQ(outcome.status, 431) << "in pieces of " << piece;
    EXPECT_LE(outcome.read_bytes, kMaxHeaderBytes + piece) << "in pieces of " << piece;
  }
}

// One chunk of a byte, whose line has an extension, and then the last chunk.
std::string chunk_with_excess(size_t num_bytes) {
  constexpr size_t kNeededBytes = 16 + 4;  // a size of 64 bits, two line ends
  std::string line = "1;";
  line.append(kNeededBytes + num_bytes - line.size() - 2, 'a');
  return std::string(kChunked) + line + "\r\nx\r\n0\r\n\r\n";
}

TEST(RequestReader, LimitsTheFramingOfChunksHoweverItIsCut) {
  expect_however_cut(chunk_with_excess(kMaxHeaderBytes), 0);
  for (size_t beyond = 1; beyond <= 24; ++beyond) {
    SCOPED_TRACE(beyond);
    expect_however_cut(chunk_with_excess(kMaxHeaderBytes + beyond), 400);
  }
}

}  // namespace
}  // namespace millrace::coordinator
