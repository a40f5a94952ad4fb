// SPDX-License-Identifier: Apache-2.0
#include "tests/support/otlp_receiver.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <cctype>
#include <sstream>

namespace millrace::testing {

namespace json = boost::json;

namespace {

constexpr int kPatienceMs = 10'000;

bool is_readable(int socket) {
  pollfd waiting{.fd = socket, .events = POLLIN, .revents = 0};
  return ::poll(&waiting, 1, kPatienceMs) == 1;
}

// "Name: value" with the name in lower case.
std::pair<std::string, std::string> header_of(const std::string& line) {
  const size_t colon = line.find(": ");
  std::string name = line.substr(0, colon);
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
  return {name, line.substr(colon + 2)};
}

}  // namespace

OtlpReceiver::OtlpReceiver() {
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(::listen(listener_, 8), 0);
  EXPECT_EQ(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), 0);
  port_ = ntohs(address.sin_port);
}

OtlpReceiver::~OtlpReceiver() {
  close();
  if (connection_ >= 0) ::close(connection_);
}

void OtlpReceiver::close() {
  if (listener_ >= 0) ::close(listener_);
  listener_ = -1;
}

std::string OtlpReceiver::read_more() {
  std::array<char, 4096> bytes;
  if (!is_readable(connection_)) return "";
  const ssize_t got = ::read(connection_, bytes.data(), bytes.size());
  return {bytes.data(), static_cast<size_t>(std::max<ssize_t>(got, 0))};
}

OtlpReceiver::Request OtlpReceiver::receive() {
  Request request;
  if (!is_readable(listener_)) {
    ADD_FAILURE() << "no request has come";
    return request;
  }
  if (connection_ >= 0) ::close(connection_);
  connection_ = ::accept(listener_, nullptr, nullptr);
  std::string bytes;
  size_t head_end = std::string::npos;
  while ((head_end = bytes.find("\r\n\r\n")) == std::string::npos) {
    const std::string more = read_more();
    if (more.empty()) {
      ADD_FAILURE() << "no whole header: " << bytes;
      return request;
    }
    bytes += more;
  }
  std::istringstream head(bytes.substr(0, head_end));
  std::getline(head, request.line);
  request.line.pop_back();  // \r
  for (std::string line; std::getline(head, line);) {
    if (line.ends_with('\r')) line.pop_back();
    request.headers.insert(header_of(line));
  }
  request.body = bytes.substr(head_end + 4);
  const size_t length = std::stoul(request.headers.at("content-length"));
  while (request.body.size() < length) {
    const std::string more = read_more();
    if (more.empty()) {
      ADD_FAILURE() << "no whole body: " << request.body;
      break;
    }
    request.body += more;
  }
  return request;
}

void OtlpReceiver::answer(int status, const std::string& body) {
  std::ostringstream text;
  text << "HTTP/1.1 " << status
       << " X\r\nContent-Type: application/json\r\nContent-Length: " << body.size() << "\r\n\r\n"
       << body;
  const std::string bytes = text.str();
  EXPECT_EQ(::send(connection_, bytes.data(), bytes.size(), MSG_NOSIGNAL), std::ssize(bytes));
  ::close(connection_);
  connection_ = -1;
}

json::value attribute_of(const json::value& attributes, const std::string& name) {
  json::value found;
  for (const json::value& one : attributes.as_array()) {
    if (one.at("key").as_string() != name) continue;
    EXPECT_TRUE(found.is_null()) << "twice: " << name;
    const json::object& value = one.at("value").as_object();
    EXPECT_EQ(value.size(), 1u);
    found = value.begin()->value();
  }
  return found;
}

json::value ReceivedSpan::attribute(const std::string& wanted) const {
  return attribute_of(json.at("attributes"), wanted);
}

std::string ReceivedSpan::text(const std::string& member) const {
  const auto* found = json.if_contains(member);
  return found == nullptr ? "" : std::string(found->as_string());
}

std::vector<ReceivedSpan> received_spans(const std::string& body) {
  std::vector<ReceivedSpan> spans;
  const json::value parsed = json::parse(body);
  for (const json::value& resource : parsed.at("resourceSpans").as_array()) {
    const json::value& attributes = resource.at("resource").at("attributes");
    for (const json::value& scope : resource.at("scopeSpans").as_array()) {
      for (const json::value& span : scope.at("spans").as_array()) {
        spans.push_back(
            {.service = std::string(attribute_of(attributes, "service.name").as_string()),
             .instance = std::string(attribute_of(attributes, "service.instance.id").as_string()),
             .name = std::string(span.at("name").as_string()),
             .json = span.as_object()});
      }
    }
  }
  return spans;
}

ReceivedSpan span_named(const std::vector<ReceivedSpan>& spans, const std::string& name) {
  const auto is_it = [&](const ReceivedSpan& span) { return span.name == name; };
  EXPECT_EQ(std::ranges::count_if(spans, is_it), 1) << name;
  const auto found = std::ranges::find_if(spans, is_it);
  return found == spans.end() ? ReceivedSpan() : *found;
}

}  // namespace millrace::testing
