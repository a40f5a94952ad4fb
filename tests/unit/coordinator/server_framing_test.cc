// SPDX-License-Identifier: Apache-2.0
// Messages in which another reader might find other requests than the coordinator does (RFC 9112):
// each is refused, and nothing behind it is answered.
#include <gmock/gmock.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <regex>
#include <vector>

#include "coordinator/server/server.h"
#include "tests/unit/coordinator/fake_group.h"
#include "tests/unit/coordinator/loopback.h"
#include "tests/unit/coordinator/raw_http.h"
#include "tests/unit/coordinator/running_server.h"

namespace millrace::coordinator {
namespace {

using ::testing::ElementsAre;

constexpr const char* kSmuggled = "GET /version HTTP/1.1\r\nHost: x\r\n\r\n";

// The statuses of all answers, until the server ends the connection.
std::vector<std::string> statuses_of(const std::string& requests) {
  RunningServer server;
  const int socket = connect_loopback(server.http_port());
  EXPECT_TRUE(send_all(socket, requests));
  std::string heard;
  std::array<char, 4096> bytes{};
  ssize_t count = 0;
  while ((count = ::read(socket, bytes.data(), bytes.size())) > 0) {
    heard.append(bytes.data(), static_cast<size_t>(count));
  }
  EXPECT_EQ(count, 0) << "the connection goes on";
  ::close(socket);
  static const std::regex kStatusLine("HTTP/1\\.[01] ([0-9]{3}) ");
  std::vector<std::string> out;
  for (std::sregex_iterator at(heard.begin(), heard.end(), kStatusLine), end; at != end; ++at) {
    out.push_back((*at)[1]);
  }
  return out;
}

void expect_refused(const std::string& request) {
  EXPECT_THAT(statuses_of(request + kSmuggled), ElementsAre("400")) << request;
}

// A request to a target that takes any body.
std::string with_header(const std::string& fields, const std::string& body) {
  return "POST /nothing HTTP/1.1\r\nHost: x\r\n" + fields + "\r\n" + body;
}
std::string chunked(const std::string& body) {
  return with_header("Transfer-Encoding: chunked\r\n", body);
}

TEST(ServerFraming, ABodyHasOneLength) {
  expect_refused(with_header("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"));
  expect_refused(with_header("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", "0\r\n\r\n"));
  expect_refused(with_header("Content-Length: 2\r\nContent-Length: 3\r\n", "abc"));
  expect_refused(with_header("Content-Length: 2\r\nContent-Length: 2\r\n", "ab"));
  expect_refused(with_header("Content-Length: 2, 2\r\n", "ab"));
  for (const char* length : {"", "+2", "-2", "0x2", "2 2", "2;", "18446744073709551618", "\"2\""}) {
    expect_refused(with_header(fmt::format("Content-Length: {}\r\n", length), "ab"));
  }
}

TEST(ServerFraming, TheOnlyTransferEncodingIsChunked) {
  for (const char* fields :
       {"Transfer-Encoding: gzip, chunked\r\n", "Transfer-Encoding: chunked, chunked\r\n",
        "Transfer-Encoding: chunked, identity\r\n", "Transfer-Encoding: chunked,\r\n",
        "Transfer-Encoding: xchunked\r\n", "Transfer-Encoding: \"chunked\"\r\n",
        "Transfer-Encoding: chunked;q=1\r\n", "Transfer-Encoding: \r\n",
        "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"}) {
    expect_refused(with_header(fields, "0\r\n\r\n"));
  }
  EXPECT_THAT(statuses_of(with_header("Transfer-Encoding:\tCHUNKED \r\nConnection: close\r\n",
                                      "0\r\n\r\n")),
              ElementsAre("404"));
}

TEST(ServerFraming, ChunksAreNotForHttp10) {
  for (const char* connection : {"", "Connection: keep-alive\r\n"}) {
    expect_refused(fmt::format(
        "POST /nothing HTTP/1.0\r\n{}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", connection));
  }
}

TEST(ServerFraming, AClientOfHttp10IsNotToldToContinue) {
  EXPECT_THAT(statuses_of("POST /nothing HTTP/1.0\r\nExpect: 100-continue\r\n"
                          "Content-Length: 2\r\n\r\nab"),
              ElementsAre("404"));
}

TEST(ServerFraming, LinesEndInCrLf) {
  expect_refused("POST /nothing HTTP/1.1\nHost: x\r\n\r\n");
  for (const char* fields : {"A: b\nContent-Length: 5\r\n", "A: b\rContent-Length: 5\r\n",
                             "A: b\r\rC: d\r\n", "A: b\n\r\nC: d\r\n"}) {
    expect_refused(with_header(fields, ""));
  }
  for (const char* body :
       {"2\nab\r\n0\r\n\r\n", "2\rab\r\n0\r\n\r\n", "2\r\nab\n0\r\n\r\n", "2\r\nabc\r\n0\r\n\r\n",
        "2;a\nb\r\nab\r\n0\r\n\r\n", "2;a=\"\n\"\r\nab\r\n0\r\n\r\n", "0;a=\"\n\"\r\n\r\n",
        "0\r\nA: b\nC: d\r\n\r\n"}) {
    expect_refused(chunked(body));
  }
}

TEST(ServerFraming, AFieldIsOneLineAndItsNameEndsAtTheColon) {
  for (const char* fields :
       {"A: b\r\n c\r\n", "A: b\r\n\tc\r\n", "A:\r\n b\r\n", "Transfer-Encoding:\r\n chunked\r\n",
        "Content-Length : 2\r\n", "Content-Length\t: 2\r\n", " Content-Length: 2\r\n", ": 2\r\n",
        "Content-Length\r\n"}) {
    expect_refused(with_header(fields, ""));
  }
  expect_refused("POST /nothing HTTP/1.1\r\n Content-Length: 2\r\nHost: x\r\n\r\n");
  expect_refused(chunked("0\r\nA: b\r\n c\r\n\r\n"));
}

TEST(ServerFraming, ASizeOfAChunkIsHexadecimalAndNothingElse) {
  for (const char* size : {"+2", "-2", "0x2", " 2", "2 ", "2,", "g", "", "2;", "fffffffffffffffff",
                           "10000000000000002"}) {
    expect_refused(chunked(fmt::format("{}\r\nab\r\n0\r\n\r\n", size)));
  }
}

TEST(ServerFraming, ThereIsOneHost) {
  expect_refused("GET /version HTTP/1.1\r\n\r\n");
  expect_refused("GET /version HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n");
  expect_refused("GET /version HTTP/1.0\r\nHost: x\r\nHost: y\r\n\r\n");
  for (const char* host : {"x y", "x/y", "user@x", "\"x\"", "x\\y"}) {
    expect_refused(fmt::format("GET /version HTTP/1.1\r\nHost: {}\r\n\r\n", host));
  }
  for (const char* host : {"", "x", "a.b-c_d:80", "[::1]:8000", "127.0.0.1"}) {
    EXPECT_THAT(statuses_of(fmt::format(
                    "GET /version HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", host)),
                ElementsAre("200"))
        << host;
  }
  EXPECT_THAT(statuses_of("GET /version HTTP/1.0\r\n\r\n"), ElementsAre("200"));
}

TEST(ServerFraming, ATargetIsAPath) {
  for (const char* target : {"http://x/version", "http://y/version", "x:80", "*", "version"}) {
    expect_refused(fmt::format("GET {} HTTP/1.1\r\nHost: x\r\n\r\n", target));
  }
}

TEST(ServerFraming, ARequestLineIsThreeWords) {
  for (const char* line :
       {"GET  /version HTTP/1.1", "GET /version  HTTP/1.1", "GET\t/version HTTP/1.1",
        "GET /ver sion HTTP/1.1", " GET /version HTTP/1.1", "GET /version", "GET /version HTTP/1.2",
        "GET /version HTTP/1.1 ", "GET /version http/1.1", "GET /version HTTP/2.0"}) {
    expect_refused(fmt::format("{}\r\nHost: x\r\n\r\n", line));
  }
}

TEST(ServerFraming, NoByteIsZero) {
  const std::string zero(1, '\0');
  expect_refused("GE" + zero + "T /version HTTP/1.1\r\nHost: x\r\n\r\n");
  expect_refused("GET /version" + zero + " HTTP/1.1\r\nHost: x\r\n\r\n");
  expect_refused("GET /version HTTP/1.1\r\nHost: x" + zero + "\r\n\r\n");
  expect_refused(with_header("A" + zero + ": b\r\n", ""));
  expect_refused(with_header("A: b" + zero + "c\r\n", ""));
  expect_refused(chunked("2" + zero + "\r\nab\r\n0\r\n\r\n"));
  expect_refused(chunked("2;a=\"" + zero + "\"\r\nab\r\n0\r\n\r\n"));
  expect_refused(chunked("0\r\nA: b" + zero + "\r\n\r\n"));
}

TEST(ServerFraming, FieldsBehindABodyDoNotChangeItsFraming) {
  for (const char* field : {"Content-Length: 5", "Transfer-Encoding: chunked"}) {
    expect_refused(chunked(fmt::format("0\r\n{}\r\n\r\n", field)));
  }
}

TEST(ServerFraming, FieldsBehindABodySayNothingOfTheRequest) {
  RunningServer server;
  FakeGroup group(server.group_port());
  group.join(FakeGroup::description("group-0", "g0"));
  RawHttp client(server.http_port());
  const std::string body = R"({"model":"tiny","prompt_token_ids":[1]})";
  for (int i = 0; i < 2; ++i) {
    client.send(fmt::format(
        "POST /v1/prefill HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        "{:x}\r\n{}\r\n0\r\nContent-Type: application/octet-stream\r\nConnection: close\r\n"
        "X-Request-Id: forged\r\nHost: y\r\nAuthorization: Bearer other\r\n\r\n",
        body.size(), body));
    const auto request = group.receive_request();
    EXPECT_NE(request.request_id(), "forged");
    group.serve(request);
    EXPECT_EQ(client.read_reply().status, 200);
  }
}

}  // namespace
}  // namespace millrace::coordinator
