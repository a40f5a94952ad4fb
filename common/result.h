// SPDX-License-Identifier: Apache-2.0
// Result<T>: a value or an Error. Every operation whose failure is an expected outcome (a peer is
// gone, a deadline passed, a file is invalid, a pool is full) returns one. Broken invariants are
// MR_CHECK (common/check.h); vendor failures that leave the process unusable throw.
//
//   Result<Config> parse(std::string_view text) {
//     MR_ASSIGN_OR_RETURN(auto json, parse_json(text));
//     if (!json.is_object()) return Error(Errc::kInvalidArgument, "config.json: not an object");
//     ...
//   }
#pragma once

#include <fmt/core.h>

#include <source_location>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "common/check.h"

namespace millrace {

// What the receiver of an error can do about it. The HTTP status and whether to retry follow from
// it (protocol/errc.h). One small set for the whole tree; Error::message has the details.
enum class Errc {
  kInvalidArgument = 1,   // the request is wrong and will stay wrong
  kUnsupported = 2,       // well formed, but not something this build or model can do
  kNotFound = 3,          // no such request, page, lease, model
  kTooLarge = 4,          // over a configured limit; the message has both numbers
  kExhausted = 5,         // a pool or queue is full now; later may work
  kUnavailable = 6,       // no one to do it now (no group, draining)
  kDeadlineExceeded = 7,  // the deadline passed
  kCancelled = 8,         // the caller asked for the end
  kPeerLost = 9,          // the other side died or went silent
  kCorrupt = 10,          // data does not match its checksum or its own description
  kIo = 11,               // the operating system said no (disk full, permission)
  kInternal = 12,         // anything else; a bug or an unknown code from a newer peer
  kDenied = 13,           // not for this caller, who has to show something else
};

std::string_view errc_name(Errc code);

struct [[nodiscard]] Error {
  Error(Errc error_code, std::string error_message,
        std::source_location location = std::source_location::current())
      : code(error_code), message(std::move(error_message)), where(location) {}

  Errc code;
  std::string message;  // what, where and the numbers, for a human
  std::source_location where;

  // "deadline_exceeded: all_reduce on rank 3 after 2000 ms (comm/mpi/mpi_communicator.cc:88)"
  std::string to_string() const;
};

template <typename T>
class Result;

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : state_(std::move(error)) {}  // NOLINT: implicit by design

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  const Error& error() const& { return std::get<1>(state_); }
  Error&& error() && { return std::get<1>(std::move(state_)); }

 private:
  std::variant<std::monostate, Error> state_;
};

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value)
      : state_(std::in_place_index<0>, std::move(value)) {}  // NOLINT: implicit by design
  Result(Error error)
      : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT: implicit by design

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& value() & {
    MR_CHECK(ok(), "value() called on an error: {}", error().to_string());
    return std::get<0>(state_);
  }
  const T& value() const& {
    MR_CHECK(ok(), "value() called on an error: {}", error().to_string());
    return std::get<0>(state_);
  }
  T&& value() && {
    MR_CHECK(ok(), "value() called on an error: {}", error().to_string());
    return std::get<0>(std::move(state_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  // Whether it has a value, without the value.
  Result<void> status() const { return ok() ? Result<void>() : Result<void>(error()); }

  const Error& error() const& { return std::get<1>(state_); }
  Error&& error() && { return std::get<1>(std::move(state_)); }

 private:
  std::variant<T, Error> state_;
};

// error(Errc::kTooLarge, "prompt of {} tokens, limit {}", n, limit)
template <typename... Args>
struct error : Error {
  error(Errc error_code, fmt::format_string<Args...> format, Args&&... args,
        std::source_location location = std::source_location::current())
      : Error(error_code, fmt::format(format, std::forward<Args>(args)...), location) {}
};
template <typename... Args>
error(Errc, fmt::format_string<Args...>, Args&&...) -> error<Args...>;

}  // namespace millrace

#define MR_CONCAT_INNER(a, b) a##b
#define MR_CONCAT(a, b) MR_CONCAT_INNER(a, b)

#define MR_RETURN_IF_ERROR(expr)                    \
  do {                                              \
    if (auto mr_result = (expr); !mr_result.ok()) { \
      return std::move(mr_result).error();          \
    }                                               \
  } while (false)

#define MR_ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                             \
  if (!tmp.ok()) return std::move(tmp).error();  \
  lhs = std::move(tmp).value()
#define MR_ASSIGN_OR_RETURN(lhs, expr) \
  MR_ASSIGN_OR_RETURN_IMPL(MR_CONCAT(mr_result_, __LINE__), lhs, expr)
