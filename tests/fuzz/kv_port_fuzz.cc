// What a KV server reads of one connection, hello and requests, in pieces as a network may cut them. The
// first byte says how long the pieces are. What is read must not depend on how it was cut, and a
// connection holds no more than its bounds.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "comm/api/transport.h"
#include "comm/tcp/request_reader.h"
#include "comm/tcp/wire.h"
#include "common/check.h"

using namespace millrace;
using namespace millrace::comm;

namespace {

using Bytes = std::span<const std::byte>;

// The capability, or why there is none. Takes the hello's bytes, as the gate does.
std::string read_hello(Bytes& bytes, size_t piece_bytes) {
  ClientHelloBytes hello{};
  size_t filled = 0;
  while (filled < hello.size()) {
    const size_t count = std::min({piece_bytes, bytes.size(), hello.size() - filled});
    if (count == 0) return "unfinished";
    std::memcpy(hello.data() + filled, bytes.data(), count);
    bytes = bytes.subspan(count);
    filled += count;
    const auto come = Bytes(hello).first(filled);
    if (!may_be_client_hello(come)) return "refused";
    if (filled >= kHelloPrefixBytes && version_of_hello(come) != kTcpWireVersion) return "refused";
  }
  const auto capability = read_client_hello(hello);
  if (!capability) return "refused";
  MR_CHECK(capability->size() <= kMaxCapabilityBytes, "{} bytes", capability->size());
  MR_CHECK(write_client_hello(*capability).size() == hello.size(), "another size");
  return "capability " + std::string(*capability);
}

std::vector<std::string> read_all(Bytes bytes, size_t piece_bytes) {
  std::vector<std::string> out{read_hello(bytes, piece_bytes)};
  // What is refused is refused at the same place; the rest of it is not read.
  if (!out.back().starts_with("capability")) {
    if (out.back() == "unfinished") out.back() = "refused";
    return out;
  }
  RequestReader reader;
  while (!bytes.empty()) {
    const auto room = reader.room();
    MR_CHECK(!room.empty(), "no room for a request that goes on");
    MR_CHECK(reader.held_bytes() <= kMaxTransportHeaderBytes + 64, "{} bytes", reader.held_bytes());
    const size_t count = std::min({piece_bytes, bytes.size(), room.size()});
    std::memcpy(room.data(), bytes.data(), count);
    bytes = bytes.subspan(count);
    auto request = reader.took(count);
    if (!request.ok()) {
      out.push_back("refused");
      return out;
    }
    if (!*request) continue;
    MR_CHECK(!reader.in_request(), "a request that is complete goes on");
    const auto& [frame, header] = **request;
    MR_CHECK(header.size() == frame.header_bytes && frame.destination_bytes >= 0, "its frame");
    out.push_back(fmt::format("{} {} {}", frame.call, frame.destination_bytes, header));
  }
  return out;
}

// What a client reads of a server is as little to be trusted.
void read_as_client(Bytes bytes) {
  ServerHelloBytes hello{};
  std::memcpy(hello.data(), bytes.data(), std::min(bytes.size(), hello.size()));
  (void)read_server_hello(hello);
  ReplyFrameBytes reply{};
  std::memcpy(reply.data(), bytes.data(), std::min(bytes.size(), reply.size()));
  const auto frame = read_reply_frame(reply);
  MR_CHECK(!frame || (frame->header_bytes <= kMaxTransportHeaderBytes && frame->payload_bytes >= 0),
           "a reply beyond its bounds");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const Bytes bytes = std::as_bytes(std::span(data + 1, size - 1));
  read_as_client(bytes);
  for (const bool with_hello : {false, true}) {
    // Few inputs find the magic of a hello: half of the work is behind one that is right.
    std::vector<std::byte> said;
    if (with_hello) {
      const auto hello = write_client_hello("0123456789abcdef0123456789abcdef");
      said.assign(hello.begin(), hello.end());
    }
    said.insert(said.end(), bytes.begin(), bytes.end());
    const auto whole = read_all(said, SIZE_MAX);
    const auto pieces = read_all(said, data[0] + 1u);
    MR_CHECK(whole == pieces, "{} and {} requests, cut at {}", whole.size(), pieces.size(),
             data[0] + 1u);
  }
  return 0;
}
