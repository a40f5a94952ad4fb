// A small blocking HTTP/1.1 client for tests, written against the RFC rather than with the library
// that the server uses. It can send nonsense.
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
  // Of {"error": {...}}; "" if there is none.
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
  // False where the server takes no more.
  bool try_send(const std::string& bytes);
  void send_request(const std::string& method, const std::string& target,
                    const std::string& body = {}, const std::string& more_headers = {});
  // A whole reply, body by Content-Length or chunks.
  RawReply read_reply();
  // Only status and headers; then the stream's events one by one ("event: x\ndata: y").
  RawReply read_head();
  std::string read_event();
  bool closed_by_peer();
  void hang_up();
  // Ends the connection to the server, not the one from it.
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

// One request on a connection of its own.
RawReply http_call(uint16_t port, const std::string& method, const std::string& target,
                   const std::string& body = {}, const std::string& more_headers = {});

}  // namespace millrace::coordinator
