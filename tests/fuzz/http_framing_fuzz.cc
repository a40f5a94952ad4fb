// SPDX-License-Identifier: Apache-2.0
// Whole connections: requests one after another, in pieces as a network may cut them. The first
// byte says how long the pieces are. What is read must not depend on how it was cut, and what a
// connection holds must stay within its bounds. http_framing.dict has the words.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "common/check.h"
#include "coordinator/http/request_reader.h"

using namespace millrace;
using namespace millrace::coordinator;

namespace {

// Small, so that short inputs reach them.
constexpr uint32_t kMaxHeaderBytes = 96;
constexpr uint64_t kMaxBodyBytes = 64;
// Of a line that has not ended.
constexpr size_t kMaxUnfinishedBytes = kMaxHeaderBytes + 32;
constexpr std::string_view kChunked =
    "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";

std::string text_of(const RequestReader::Request& request) {
  std::string out(request.method_string());
  out.append(" ").append(request.target()).append(std::to_string(request.version())).append("\n");
  for (const auto& field : request) {
    out.append(field.name_string()).append(": ").append(field.value()).append("\n");
  }
  return out + "\n" + request.body();
}

// What was read of each request. Where one is refused or has no end, those before it: how soon it is
// seen that one is wrong depends on what has come of it.
std::vector<std::string> read_all(std::string_view text, size_t piece_bytes) {
  std::vector<std::string> out;
  ReadBuffer buffer;
  for (;;) {
    RequestReader reader(kMaxHeaderBytes, buffer);
    bool limited = false;
    size_t header_bytes = 0;
    while (!reader.done()) {
      if (reader.starved()) {
        const size_t count = std::min({piece_bytes, text.size(), buffer.room()});
        MR_CHECK(buffer.room() > 0, "a full buffer that says nothing");
        if (count == 0) return out;
        std::memcpy(buffer.bytes().prepare(count).data(), text.data(), count);
        buffer.bytes().commit(count);
        text.remove_prefix(count);
      }
      const bool in_header = !reader.has_header();
      const size_t bytes_before = buffer.bytes().size();
      if (const auto wrong = reader.take()) {
        MR_CHECK(wrong->http_status() >= 400 && wrong->http_status() < 500, "refusal");
        return out;
      }
      if (in_header) header_bytes += bytes_before - buffer.bytes().size();
      MR_CHECK(header_bytes <= kMaxHeaderBytes, "{} bytes of header", header_bytes);
      MR_CHECK(!reader.starved() || buffer.bytes().size() <= kMaxUnfinishedBytes,
               "{} bytes wait for more", buffer.bytes().size());
      if (reader.has_header() && !limited) {
        if (reader.announced_bytes() > kMaxBodyBytes) return out;
        reader.limit_body(kMaxBodyBytes);
        limited = true;
      }
      MR_CHECK(!reader.has_header() || reader.body_bytes() <= kMaxBodyBytes, "{} bytes of body",
               reader.body_bytes());
    }
    out.push_back(text_of(reader.release()));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data + 1), size - 1);
  // Few inputs announce chunks: half of the work is behind a header that does.
  for (const auto header : {std::string_view(), kChunked}) {
    const std::string text = std::string(header) + std::string(bytes);
    const auto whole = read_all(text, SIZE_MAX);
    const auto pieces = read_all(text, data[0] + 1u);
    MR_CHECK(whole == pieces, "{} and {} requests, cut at {}", whole.size(), pieces.size(),
             data[0] + 1u);
  }
  return 0;
}
