// One HTTP connection: reads requests within limits and deadlines, answers them one after another.
#pragma once

#include <boost/asio/thread_pool.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <memory>
#include <optional>
#include <string>

#include "coordinator/api/lease_body.h"
#include "coordinator/http/body_budget.h"
#include "coordinator/http/connection_table.h"
#include "coordinator/http/http_reply.h"
#include "coordinator/http/request_reader.h"
#include "coordinator/http/route.h"
#include "coordinator/http/server_options.h"
#include "coordinator/net/change_hub.h"
#include "coordinator/schedule/probes.h"
#include "coordinator/schedule/scheduler.h"

namespace millrace::coordinator {

// What all connections of a server share.
struct HttpShared {
  const ServerOptions& options;
  Scheduler& scheduler;
  ChangeHub& changes;
  Probes& probes;
  BodyBudget& bodies;
  // Large bodies are parsed here, so that heartbeats are not held up.
  asio::thread_pool& parsers;
  // And large answers are written here, large messages of groups read.
  asio::thread_pool& writers;
  BodyBudget& replies;
};

class HttpSession : public std::enable_shared_from_this<HttpSession> {
 public:
  // What is not of the kind kAny gets one answer a connection, to a probe; all else is turned away.
  HttpSession(tcp::socket socket, HttpShared& shared, ConnectionTable::Admission admission);

  awaitable<void> run();
  void close();
  // Between receiving a request and having sent its answer.
  bool answering() const { return answering_; }

 private:
  using Request = RequestReader::Request;

  // Those that are awaitable<bool> and answer: true when the connection can take another request.
  awaitable<bool> serve_one();
  std::optional<ApiError> check_header(const RequestReader& reader, const Route& route);
  // Both: true when it is there; else the client has been told why not, if there is one to tell.
  awaitable<bool> read_body(RequestReader& reader, const Route& route);
  awaitable<bool> read_more(RequestReader& reader);
  awaitable<void> turn_away(ApiError why);
  void log_too_slow(const RequestReader& reader) const;
  std::string request_name() const;
  bool for_probes() const { return admission_.only_probes.has_value(); }
  uint64_t max_body_bytes(const Route& route) const;
  std::optional<ApiError> hold_body(uint64_t bytes);
  awaitable<bool> answer(Request& request, const Route& route);
  awaitable<bool> prefill(Request& request, const Route& route);
  awaitable<bool> refuse_prefill(const Request& request, const ApiError& why);
  // Whether the request is cancelled when the client leaves: it is whose prompt it is.
  enum class Leaving { kCancels, kChangesNothing };
  awaitable<bool> stream_prefill(const Request& request,
                                 std::shared_ptr<const coordinator::Request> record,
                                 Leaving leaving);
  awaitable<bool> follow_prefill(const Request& request, const Route& route);
  awaitable<bool> wait_prefill(const Request& request,
                               std::shared_ptr<const coordinator::Request> record);
  awaitable<ParsedPrefillBody> parse(const Request& request, const Route& route);
  awaitable<HttpReply> lease_call(const Request& request, const Route& route);
  awaitable<Result<void>> renew_lease(std::shared_ptr<const coordinator::Request> record,
                                      const LeaseBody& body);
  HttpReply simple_reply(const Route& route);
  awaitable<HttpReply> status_reply(const Route& route);
  awaitable<std::string> write_manifest(std::shared_ptr<const protocol::Manifest> manifest,
                                        bool is_done);
  awaitable<std::string> write_manifest(const coordinator::Request& record);
  awaitable<HttpReply> final_reply(std::shared_ptr<const coordinator::Request> record);
  awaitable<bool> see_who_listens(const Request& request);
  std::optional<ApiError> hold_reply(uint64_t bytes);
  // With the id of the request being answered.
  HttpReply refusal(const ApiError& why) const { return error_reply(why, request_id_); }

  awaitable<bool> send(const Request& request, HttpReply reply);
  awaitable<bool> send_chunk(std::string text);
  // Lets the client read the answer to a request whose body was not read.
  awaitable<void> linger();

  HttpShared& shared_;
  const ConnectionTable::Admission admission_;
  beast::tcp_stream stream_;
  ReadBuffer buffer_;
  std::string request_id_;  // of the request being answered: for X-Request-Id
  BodyBudget::Share body_share_;
  BodyBudget::Share reply_share_;
  bool answering_ = false;
};

}  // namespace millrace::coordinator
