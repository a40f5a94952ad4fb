// SPDX-License-Identifier: Apache-2.0
// A small blocking HTTP/1.1 client for tests, written from the RFC instead of with the library that
// the server uses. It can send malformed requests.
#pragma once

#include <boost/json/value.hpp>
#include <cstdint>
#include <map>
#include <string>

namespace millrace::coordinator {

struct RawReply {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;

  boost::json::value json() const;
  // The message in {"error": {...}}; "" if there is none.
  std::string error_message() const;
  std::string error_param() const;
};

class RawHttp {
 public:
  explicit RawHttp(uint16_t port);
  ~RawHttp();
  RawHttp(const RawHttp&) = delete;
  RawHttp& operator=(const RawHttp&) = delete;

  void send(const std::string& bytes);
  // False if the server accepts no more.
  bool try_send(const std::string& bytes);
  void send_request(const std::string& method, const std::string& target,
                    const std::string& body = {}, const std::string& more_headers = {});
  // Reads a whole reply, with a body by Content-Length or in chunks.
  RawReply read_reply();
  // read_head() reads only status and headers. Then the stream's events are read one by one
  // ("event: x\ndata: y").
  RawReply read_head();
  std::string read_event();
  bool closed_by_peer();
  void hang_up();
  // Shuts down sending to the server; it can still receive.
  void finish_sending();

 private:
  bool fill();
  std::string read_line();
  std::string read_bytes(size_t count);
  bool read_chunk(std::string* out);

  int socket_ = -1;
  std::string buffer_;
  std::string events_;
};

// Sends one request on a new connection.
RawReply http_call(uint16_t port, const std::string& method, const std::string& target,
                   const std::string& body = {}, const std::string& more_headers = {});

}  // namespace millrace::coordinator
