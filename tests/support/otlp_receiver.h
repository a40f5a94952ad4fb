// SPDX-License-Identifier: Apache-2.0
// A collector of traces played by a test: it takes one request and answers it when the test says so,
// so that one that hangs is simply not answered. Written from the specifications instead of with the
// libraries that exporters use. Every wait fails the test after 10 s.
#pragma once

#include <boost/json/value.hpp>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace millrace::testing {

class OtlpReceiver {
 public:
  struct Request {
    std::string line;                            // "POST /v1/traces HTTP/1.1"
    std::map<std::string, std::string> headers;  // names in lower case
    std::string body;
  };

  OtlpReceiver();
  ~OtlpReceiver();
  OtlpReceiver(const OtlpReceiver&) = delete;
  OtlpReceiver& operator=(const OtlpReceiver&) = delete;

  uint16_t port() const { return port_; }
  // Takes the next connection, and a whole request from it.
  Request receive();
  // Answers it and closes the connection.
  void answer(int status, const std::string& body = "{}");
  // From now on connections are refused.
  void close();

 private:
  std::string read_more();

  int listener_ = -1;
  int connection_ = -1;
  uint16_t port_ = 0;
};

// A span of a request's body, with what its place in it says.
struct ReceivedSpan {
  // The value of an attribute, without its type; null if there is none.
  boost::json::value attribute(const std::string& wanted) const;
  std::string id() const { return text("spanId"); }
  std::string parent() const { return text("parentSpanId"); }
  std::string trace() const { return text("traceId"); }
  int64_t begin() const { return std::stoll(text("startTimeUnixNano")); }
  int64_t end() const { return std::stoll(text("endTimeUnixNano")); }
  // A member that is a string; "" if there is none.
  std::string text(const std::string& member) const;

  std::string service;
  std::string instance;
  std::string name;
  boost::json::object json;
};

// The value of one of OTLP's lists of attributes; null if there is none.
boost::json::value attribute_of(const boost::json::value& attributes, const std::string& name);

std::vector<ReceivedSpan> received_spans(const std::string& body);

// The one with that name; the test fails unless there is exactly one.
ReceivedSpan span_named(const std::vector<ReceivedSpan>& spans, const std::string& name);

}  // namespace millrace::testing
