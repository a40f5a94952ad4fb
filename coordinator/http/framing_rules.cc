// SPDX-License-Identifier: Apache-2.0
#include "coordinator/http/framing_rules.h"

#include <algorithm>

#include "common/quote.h"

namespace millrace::coordinator {

namespace http = boost::beast::http;

namespace {

using Header = http::header<true>;

constexpr unsigned kHttp11 = 11;

std::string_view value_of(const Header& header, http::field name) {
  const auto value = header[name];
  return {value.data(), value.size()};
}

template <typename... Values>
std::optional<Error> refuse(fmt::format_string<Values...> why, Values&&... values) {
  return error(Errc::kInvalidArgument, "cannot read the request: {}",
               fmt::format(why, std::forward<Values>(values)...));
}

// RFC 9112, 6.1 and 6.3: parsers may disagree where the body ends, and the next request might begin
// inside it.
std::optional<Error> check_transfer_encoding(const Header& header) {
  const size_t count = header.count(http::field::transfer_encoding);
  if (count == 0) return std::nullopt;
  if (header.version() < kHttp11) return refuse("HTTP/1.0 has no Transfer-Encoding");
  const std::string_view value = value_of(header, http::field::transfer_encoding);
  if (count == 1 && boost::beast::iequals(value, "chunked")) return std::nullopt;
  return refuse("its Transfer-Encoding is not chunked and nothing else");
}

// The parser accepts several equal values, which other parsers may treat as an error.
std::optional<Error> check_content_length(const Header& header) {
  const bool is_one = header.count(http::field::content_length) <= 1 &&
                      value_of(header, http::field::content_length).find(',') == std::string::npos;
  if (is_one) return std::nullopt;
  return refuse("more than one Content-Length");
}

// As in RFC 3986, 3.2.2 and 3.2.3, without checking the order of the characters.
bool is_host(std::string_view text) {
  constexpr std::string_view kBesideLettersAndDigits = "-._~%!$&'()*+,;=:[]";
  return std::all_of(text.begin(), text.end(), [&](char c) {
    return ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z') || ('0' <= c && c <= '9') ||
           kBesideLettersAndDigits.find(c) != std::string_view::npos;
  });
}

// RFC 9112, 3.2.
std::optional<Error> check_host(const Header& header) {
  const size_t count = header.count(http::field::host);
  if (count > 1) return refuse("more than one Host");
  if (count == 0 && header.version() >= kHttp11) return refuse("no Host");
  const std::string_view host = value_of(header, http::field::host);
  if (!is_host(host)) return refuse("a Host of {}", quote(host));
  return std::nullopt;
}

// A target with its own host would be a different request to a server that goes by Host.
std::optional<Error> check_target(const Header& header) {
  if (header.target().starts_with('/')) return std::nullopt;
  const std::string_view target(header.target().data(), header.target().size());
  return refuse("its target {} is no path", quote(target));
}

}  // namespace

std::optional<Error> check_header(const Header& header) {
  if (auto wrong = check_target(header)) return wrong;
  if (auto wrong = check_host(header)) return wrong;
  if (auto wrong = check_content_length(header)) return wrong;
  return check_transfer_encoding(header);
}

bool has_folded_line(std::string_view fields) {
  return fields.find("\r\n ") != std::string_view::npos ||
         fields.find("\r\n\t") != std::string_view::npos;
}

bool has_control_character(std::string_view extensions) {
  return std::any_of(extensions.begin(), extensions.end(), [](char c) {
    const auto code = static_cast<unsigned char>(c);
    return (code < ' ' && c != '\t') || code == 0x7f;
  });
}

}  // namespace millrace::coordinator
