// Whole connections: requests one after another, in pieces as a network may cut them. The first
// byte says how long the pieces are. What is read must not depend on how it was cut, and what a
// connection holds must stay within its bounds.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "common/check.h"
#include "coordinator/http/request_reader.h"

using namespace millrace;
using namespace millrace::coordinator;

namespace {

constexpr uint32_t kMaxHeaderBytes = 256;
constexpr uint64_t kMaxBodyBytes = 512;

// What was read of each request. Where one is refused or has no end, those before it: how soon it is
// seen that one is wrong depends on what has come of it.
std::vector<std::string> read_all(std::string_view text, size_t piece_bytes) {
  std::vector<std::string> out;
  ReadBuffer buffer;
  for (;;) {
    RequestReader reader(kMaxHeaderBytes, buffer);
    bool limited = false;
    while (!reader.done()) {
      if (reader.starved()) {
        const size_t count = std::min({piece_bytes, text.size(), buffer.room()});
        MR_CHECK(buffer.room() > 0, "a full buffer that says nothing");
        if (count == 0) return out;
        std::memcpy(buffer.bytes().prepare(count).data(), text.data(), count);
        buffer.bytes().commit(count);
        text.remove_prefix(count);
      }
      if (const auto wrong = reader.take()) {
        MR_CHECK(wrong->http_status() >= 400 && wrong->http_status() < 500, "refusal");
        return out;
      }
      if (reader.has_header() && !limited) {
        if (reader.announced_bytes() > kMaxBodyBytes) return out;
        reader.limit_body(kMaxBodyBytes);
        limited = true;
      }
      MR_CHECK(!reader.has_header() || reader.body_bytes() <= kMaxBodyBytes, "{} bytes of body",
               reader.body_bytes());
    }
    const auto request = reader.release();
    out.push_back(std::string(request.target()) + "\n" + request.body());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data + 1), size - 1);
  const auto whole = read_all(text, SIZE_MAX);
  const auto pieces = read_all(text, data[0] + 1u);
  MR_CHECK(whole == pieces, "{} and {} requests, cut at {}", whole.size(), pieces.size(),
           data[0] + 1u);
  return 0;
}
