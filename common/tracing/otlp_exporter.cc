// SPDX-License-Identifier: Apache-2.0
#include "common/tracing/otlp_exporter.h"

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <deque>
#include <mutex>
#include <thread>

#include "common/log.h"
#include "common/logging/paced_line.h"
#include "common/logging/printable.h"
#include "common/net/http_message.h"
#include "common/net/net_stream.h"

namespace millrace::tracing {

namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::awaitable;
using asio::ip::tcp;

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
// A collector's answer is a few hundred bytes.
constexpr uint64_t kMaxAnswerBytes = 64 << 10;

// What became of a batch.
struct Outcome {
  bool sent = false;
  bool again = false;    // it may be taken later
  int64_t rejected = 0;  // of a batch that was sent
  std::string why;
};

// These the specification names as worth another try.
bool is_passing(unsigned status) {
  return status == 429 || status == 502 || status == 503 || status == 504;
}

// One request on a connection of its own.
class Post {
 public:
  Post(asio::io_context& io, const OtlpSettings& settings)
      : settings_(settings),
        stream_(tcp::socket(io), settings.endpoint.encrypted ? settings.tls : TlsContext()),
        resolver_(io) {}

  awaitable<Outcome> run(std::string body) {
    const auto& [host, port] = settings_.endpoint.server;
    stream_.expires_after(settings_.timeout);
    auto [resolve_ec, found] = co_await resolver_.async_resolve(host, std::to_string(port), kAwait);
    if (resolve_ec) co_return failed(host, resolve_ec);
    stream_.expires_after(settings_.timeout);
    auto [connect_ec, endpoint] = co_await stream_.tcp().async_connect(found, kAwait);
    if (connect_ec) co_return failed("connect", connect_ec);
    if (const auto tls_ec = co_await stream_.connect_tls(host)) {
      co_return Outcome{.again = true, .why = "TLS: " + stream_.reason(tls_ec)};
    }
    http::request<http::string_body> request(http::verb::post, settings_.endpoint.target, 11,
                                             std::move(body));
    request.set(http::field::host, settings_.endpoint.server.to_string());
    request.set(http::field::user_agent, "millrace/" + settings_.sender.version);
    request.set(http::field::content_type, "application/json");
    request.keep_alive(false);
    request.prepare_payload();
    // A refusal may come before the whole body is sent: read the answer even if the write failed.
    http::request_serializer<http::string_body> serializer(request);
    co_await write_message(stream_, serializer);
    co_return co_await read();
  }

 private:
  awaitable<Outcome> read() {
    beast::flat_buffer buffer;
    http::response_parser<http::string_body> parser;
    parser.body_limit(kMaxAnswerBytes);
    boost::system::error_code ec;
    while (!ec && !parser.is_done()) ec = co_await read_more(stream_, buffer, parser);
    if (ec) co_return failed("answer", ec);
    const auto status = parser.get().result_int();
    if (status / 100 == 2) {
      co_return Outcome{.sent = true, .rejected = rejected_spans(parser.get().body())};
    }
    co_return Outcome{.again = is_passing(status), .why = fmt::format("HTTP status {}", status)};
  }

  static Outcome failed(const std::string& what, const boost::system::error_code& ec) {
    const bool late = ec == beast::error::timeout;
    return {.again = true, .why = what + ": " + (late ? "it took too long" : ec.message())};
  }

  const OtlpSettings& settings_;
  NetStream stream_;
  tcp::resolver resolver_;
};

struct Dropped {
  explicit Dropped(metrics::Registry& registry)
      : queue_full(counter(registry, "queue_full")),
        rejected(counter(registry, "rejected")),
        shutdown(counter(registry, "shutdown")) {}

  static metrics::Counter counter(metrics::Registry& registry, const std::string& reason) {
    return registry.counter("millrace_trace_spans_dropped_total",
                            "Spans that were recorded and not exported", {{"reason", reason}});
  }

  metrics::Counter queue_full, rejected, shutdown;
};

}  // namespace

class OtlpExporter::Sending {
 public:
  Sending(OtlpSettings settings, metrics::Registry& registry)
      : settings_(std::move(settings)),
        exported_(registry.counter("millrace_trace_spans_exported_total",
                                   "Spans that the collector has taken")),
        failures_(registry.counter("millrace_trace_export_failures_total",
                                   "Requests to the collector that failed")),
        dropped_(registry) {
    asio::co_spawn(io_, run(), asio::detached);
    thread_ = std::thread([this] { work(); });
  }

  ~Sending() {
    asio::post(io_, [this] { finish(); });
    thread_.join();
    dropped_.shutdown.add(static_cast<double>(std::ssize(queue_) + std::ssize(batch_)));
  }

  void add(std::vector<Span>& spans) {
    const auto count = std::ssize(spans);
    {
      const std::lock_guard lock(mutex_);
      if (std::ssize(queue_) + count > settings_.max_queued_spans) {
        dropped_.queue_full.add(static_cast<double>(count));
        return;
      }
      std::ranges::move(spans, std::back_inserter(queue_));
      const auto waiting = std::ssize(queue_);
      // Its sleep ends with the first span, and with a whole batch.
      if (waiting != count && waiting < settings_.batch_spans) return;
    }
    asio::post(io_, [this] { wake_.cancel(); });
  }

  void count_lost(int64_t spans) { dropped_.queue_full.add(static_cast<double>(spans)); }

 private:
  // Handlers of the library's own may throw (memory); the rest goes on.
  void work() {
    for (bool ended = false; !ended;) {
      try {
        io_.run();
        ended = true;
      } catch (const std::exception& e) {
        log::error("traces: exception: {}", e.what());
      }
    }
  }

  awaitable<void> run() {
    for (bool more = true; more;) {
      try {
        more = co_await send_batch();
      } catch (const std::exception& e) {
        log::error("traces: exception: {}", e.what());
        dropped_.rejected.add(static_cast<double>(std::ssize(batch_)));
        batch_.clear();
      }
    }
    last_.cancel();
  }

  // False once the end has come.
  awaitable<bool> send_batch() {
    co_await collect();
    take_batch();
    if (batch_.empty()) co_return false;
    co_await deliver();
    const bool all_sent = batch_.empty();
    co_return all_sent;
  }

  void take_batch() {
    const std::lock_guard lock(mutex_);
    const auto end = queue_.begin() + std::min<int64_t>(std::ssize(queue_), settings_.batch_spans);
    batch_.assign(std::move_iterator(queue_.begin()), std::move_iterator(end));
    queue_.erase(queue_.begin(), end);
  }

  // Until there is a batch, or the end has come.
  awaitable<void> collect() {
    while (!finishing_ && waiting() == 0) co_await sleep(std::chrono::minutes(1));
    const TimePoint due = Clock::steady().now() + settings_.batch_time;
    while (!finishing_ && waiting() < settings_.batch_spans) {
      const Duration left = due - Clock::steady().now();
      if (left <= Duration::zero()) break;
      co_await sleep(left);
    }
  }

  // Leaves the batch where it is only if the end has come.
  awaitable<void> deliver() {
    while (true) {
      Post post(io_, settings_);
      // Named, because g++ 12 destroys a temporary that a coroutine takes by value twice.
      std::string body = otlp_json(batch_, settings_.sender, ClockPair::now());
      const Outcome outcome = co_await post.run(std::move(body));
      const auto count = std::ssize(batch_);
      if (outcome.sent) {
        const auto rejected = std::clamp<int64_t>(outcome.rejected, 0, count);
        exported_.add(static_cast<double>(count - rejected));
        dropped_.rejected.add(static_cast<double>(rejected));
        pause_ = settings_.first_pause;
        break;
      }
      failures_.add();
      report(outcome);
      if (!outcome.again) {
        dropped_.rejected.add(static_cast<double>(count));
        break;
      }
      if (finishing_) co_return;
      const TimePoint due = Clock::steady().now() + pause_;
      pause_ = std::min(2 * pause_, settings_.longest_pause);
      while (!finishing_ && Clock::steady().now() < due) {
        co_await sleep(due - Clock::steady().now());
      }
    }
    batch_.clear();
  }

  // Until then, or until somebody cancels it.
  awaitable<void> sleep(Duration time) {
    wake_.expires_after(time);
    co_await wake_.async_wait(kAwait);
  }

  void finish() {
    finishing_ = true;
    wake_.cancel();
    last_.expires_after(settings_.last_time);
    last_.async_wait([this](const boost::system::error_code& ec) {
      if (!ec) io_.stop();
    });
  }

  void report(const Outcome& outcome) {
    if (const auto times = line_.due()) {
      log::warn("traces to {}: {}{}", settings_.endpoint.to_string(), printable(outcome.why),
                PacedLine::others(*times));
    }
  }

  int64_t waiting() const {
    const std::lock_guard lock(mutex_);
    return std::ssize(queue_);
  }

  const OtlpSettings settings_;
  metrics::Counter exported_;
  metrics::Counter failures_;
  Dropped dropped_;

  mutable std::mutex mutex_;
  std::deque<Span> queue_;  // guarded by mutex_

  // Of the thread alone, until it has ended.
  asio::io_context io_{1};
  asio::steady_timer wake_{io_};
  asio::steady_timer last_{io_};
  std::vector<Span> batch_;
  Duration pause_ = settings_.first_pause;
  bool finishing_ = false;
  PacedLine line_{{.pause = std::chrono::minutes(1), .burst = 1}};
  std::thread thread_;
};

OtlpExporter::OtlpExporter(OtlpSettings settings, metrics::Registry& registry)
    : sending_(std::make_unique<Sending>(std::move(settings), registry)) {}
OtlpExporter::~OtlpExporter() = default;

void OtlpExporter::add(std::vector<Span> spans) noexcept {
  if (spans.empty()) return;
  const auto count = std::ssize(spans);
  try {
    sending_->add(spans);
  } catch (...) {
    sending_->count_lost(count);
  }
}

}  // namespace millrace::tracing
