// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/coordinator/raw_http.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>

#include "tests/unit/coordinator/loopback.h"

namespace millrace::coordinator {

namespace json = boost::json;

json::value RawReply::json() const {
  boost::system::error_code ec;
  auto value = json::parse(body, ec);
  EXPECT_FALSE(ec) << "not JSON: " << body;
  return value;
}

std::string RawReply::error_message() const {
  const auto value = json();
  return value.at("error").at("message").as_string().c_str();
}

std::string RawReply::error_param() const {
  const auto value = json();
  const auto& param = value.at("error").at("param");
  return param.is_string() ? param.as_string().c_str() : "";
}

RawHttp::RawHttp(uint16_t port) : socket_(connect_loopback(port)) {}
RawHttp::~RawHttp() {
  hang_up();
}
void RawHttp::hang_up() {
  if (socket_ >= 0) ::close(socket_);
  socket_ = -1;
}

void RawHttp::finish_sending() {
  ::shutdown(socket_, SHUT_WR);
}

void RawHttp::send(const std::string& bytes) {
  ASSERT_TRUE(send_all(socket_, bytes));
}

bool RawHttp::try_send(const std::string& bytes) {
  return send_all(socket_, bytes);
}

void RawHttp::send_request(const std::string& method, const std::string& target,
                           const std::string& body, const std::string& more_headers) {
  send(fmt::format("{} {} HTTP/1.1\r\nHost: test\r\nContent-Length: {}\r\n{}\r\n", method, target,
                   body.size(), more_headers) +
       body);
}

bool RawHttp::fill() {
  char scratch[16384];
  const ssize_t got = ::read(socket_, scratch, sizeof scratch);
  if (got <= 0) return false;
  buffer_.append(scratch, static_cast<size_t>(got));
  return true;
}

std::string RawHttp::read_line() {
  size_t end = 0;
  while ((end = buffer_.find("\r\n")) == std::string::npos) {
    if (!fill()) return {};
  }
  std::string line = buffer_.substr(0, end);
  buffer_.erase(0, end + 2);
  return line;
}

std::string RawHttp::read_bytes(size_t count) {
  while (buffer_.size() < count) {
    if (!fill()) return {};
  }
  std::string out = buffer_.substr(0, count);
  buffer_.erase(0, count);
  return out;
}

bool RawHttp::read_chunk(std::string* out) {
  const std::string size = read_line();
  if (size.empty()) return false;
  *out += read_bytes(std::stoul(size, nullptr, 16));
  read_line();
  return size != "0";
}

RawReply RawHttp::read_head() {
  RawReply reply;
  const std::string first = read_line();
  EXPECT_TRUE(first.starts_with("HTTP/1.1 ")) << "status line: '" << first << "'";
  if (first.size() < 12) return reply;
  reply.status = std::stoi(first.substr(9, 3));
  for (std::string line = read_line(); !line.empty(); line = read_line()) {
    const size_t colon = line.find(':');
    std::string name = line.substr(0, colon);
    std::transform(name.begin(), name.end(), name.begin(), ::tolower);
    reply.headers[name] = line.substr(line.find_first_not_of(' ', colon + 1));
  }
  return reply;
}

RawReply RawHttp::read_reply() {
  RawReply reply = read_head();
  if (reply.headers.count("transfer-encoding") != 0) {
    while (read_chunk(&reply.body)) {
    }
  } else if (const auto length = reply.headers.find("content-length");
             length != reply.headers.end()) {
    reply.body = read_bytes(std::stoul(length->second));
  }
  return reply;
}

std::string RawHttp::read_event() {
  size_t end = 0;
  while ((end = events_.find("\n\n")) == std::string::npos) {
    if (!read_chunk(&events_)) return {};
  }
  std::string event = events_.substr(0, end);
  events_.erase(0, end + 2);
  return event;
}

bool RawHttp::closed_by_peer() {
  return read_until_closed(socket_);
}

RawReply http_call(uint16_t port, const std::string& method, const std::string& target,
                   const std::string& body, const std::string& more_headers) {
  RawHttp http(port);
  http.send_request(method, target, body, more_headers);
  return http.read_reply();
}

}  // namespace millrace::coordinator
