// One HTTP connection: reads requests within limits and deadlines, answers them one after another.
#pragma once

#include <boost/asio/thread_pool.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <memory>
#include <optional>
#include <string>

#include "coordinator/body_budget.h"
#include "coordinator/change_hub.h"
#include "coordinator/http_reply.h"
#include "coordinator/lease_body.h"
#include "coordinator/probes.h"
#include "coordinator/route.h"
#include "coordinator/scheduler.h"
#include "coordinator/server_options.h"

namespace millrace::coordinator {

namespace beast = boost::beast;
namespace http = boost::beast::http;

// What all connections of a server share.
struct HttpShared {
  const ServerOptions& options;
  Scheduler& scheduler;
  ChangeHub& changes;
  Probes& probes;
  BodyBudget& bodies;
  // Large bodies are parsed here, so that heartbeats are not held up.
  asio::thread_pool& parsers;
};

class HttpSession : public std::enable_shared_from_this<HttpSession> {
 public:
  // kProbe: above the bound on connections. Whoever watches this process still gets an answer, one
  // a connection; all else is turned away.
  enum class Kind { kAny, kProbe };

  HttpSession(tcp::socket socket, HttpShared& shared, Kind kind);

  awaitable<void> run();
  void close();
  Kind kind() const { return kind_; }
  // Between receiving a request and having sent its answer.
  bool answering() const { return answering_; }

 private:
  using Request = http::request<http::string_body>;
  using Parser = http::request_parser<http::string_body>;

  // Those that are awaitable<bool> and answer: true when the connection can take another request.
  awaitable<bool> serve_one();
  std::optional<ApiError> check_header(const Parser& parser, const Route& route);
  // True when the body is there; else the client has been told why not, if it can be.
  awaitable<bool> read_body(Parser& parser);
  awaitable<bool> refuse(error_code why);
  awaitable<bool> turn_away(ApiError why);
  awaitable<bool> answer(Request& request, const Route& route);
  awaitable<bool> prefill(Request& request, const Route& route);
  awaitable<bool> refuse_prefill(const Request& request, const ApiError& why);
  awaitable<bool> stream_prefill(const Request& request,
                                 std::shared_ptr<const coordinator::Request> record);
  awaitable<bool> wait_prefill(const Request& request,
                               std::shared_ptr<const coordinator::Request> record);
  awaitable<ParsedPrefillBody> parse(const Request& request, const Route& route);
  awaitable<HttpReply> lease_call(const Request& request, const Route& route);
  awaitable<Result<void>> renew_lease(std::shared_ptr<const coordinator::Request> record,
                                      const LeaseBody& body);
  HttpReply simple_reply(const Route& route);
  // With the id of the request being answered.
  HttpReply refusal(const ApiError& why) const { return error_reply(why, request_id_); }

  awaitable<bool> send(const Request& request, HttpReply reply);
  awaitable<bool> send_chunk(const std::string& text);
  // Lets the client read the answer to a request whose body was not read.
  awaitable<void> linger();

  HttpShared& shared_;
  const Kind kind_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;
  std::string request_id_;       // of the request being answered: for X-Request-Id
  uint64_t max_body_bytes_ = 0;  // of the request being read
  BodyBudget::Share body_share_;
  bool answering_ = false;
};

}  // namespace millrace::coordinator
