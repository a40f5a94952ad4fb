// SPDX-License-Identifier: Apache-2.0
// Names for the coroutine vocabulary of the asynchronous shell.
#pragma once

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace millrace::coordinator {

namespace asio = boost::asio;
using asio::awaitable;
using asio::ip::tcp;
using boost::system::error_code;

// co_await op(kAwait) gives a tuple that starts with the error code; nothing throws.
inline constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);

}  // namespace millrace::coordinator
