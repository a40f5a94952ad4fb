// SPDX-License-Identifier: Apache-2.0
#include "coordinator/access/token_file.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <set>

#include "common/quote.h"

namespace millrace::coordinator {

namespace {

constexpr size_t kMaxNameChars = 64;

std::vector<std::string_view> words_of(std::string_view line) {
  constexpr std::string_view kBlanks = " \t\r";
  std::vector<std::string_view> words;
  for (;;) {
    line.remove_prefix(std::min(line.find_first_not_of(kBlanks), line.size()));
    if (line.empty()) return words;
    const size_t end = std::min(line.find_first_of(kBlanks), line.size());
    words.push_back(line.substr(0, end));
    line.remove_prefix(end);
  }
}

bool is_alphanumeric(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

Result<std::string> parse_name(std::string_view text) {
  const auto fits = [](char c) { return is_alphanumeric(c) || c == '.' || c == '_' || c == '-'; };
  if (text.size() <= kMaxNameChars && std::all_of(text.begin(), text.end(), fits)) {
    return std::string(text);
  }
  return error(Errc::kInvalidArgument, "the name {} is not 1 to {} letters, digits and '._-'",
               quote(text), kMaxNameChars);
}

// A value that is not a digest may be the token itself, put here by mistake: it is not quoted.
Result<std::string> parse_sha256(std::string_view text) {
  std::string digest(text);
  std::transform(digest.begin(), digest.end(), digest.begin(), [](char c) {
    return c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  const auto is_hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  if (digest.size() == 64 && std::all_of(digest.begin(), digest.end(), is_hex)) return digest;
  return error(Errc::kInvalidArgument,
               "the second word has {} characters and is not a SHA-256, which has 64 hex digits",
               text.size());
}

Result<Scope> parse_scopes(std::string_view text) {
  static const std::map<std::string_view, Scope> kNames = {
      {"read", Scope::kRead}, {"prefill", Scope::kPrefill}, {"admin", Scope::kAdmin}};
  Scope most = Scope::kRead;
  for (;;) {
    const size_t comma = std::min(text.find(','), text.size());
    const auto found = kNames.find(text.substr(0, comma));
    if (found == kNames.end()) {
      return error(Errc::kInvalidArgument, "the scope {} is not read, prefill or admin",
                   quote(text.substr(0, comma)));
    }
    most = std::max(most, found->second);
    if (comma == text.size()) return most;
    text.remove_prefix(comma + 1);
  }
}

template <typename Number>
Result<void> take_number(std::string_view text, Number& out) {
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (ec == std::errc() && end == text.data() + text.size() && out > 0) return {};
  return error(Errc::kInvalidArgument, "{} is not a number from 1 to {}", quote(text),
               std::numeric_limits<Number>::max());
}

Result<void> take_quota(std::string_view word, Quota& quota) {
  const size_t equals = std::min(word.find('='), word.size());
  const std::string_view name = word.substr(0, equals);
  const std::string_view value = word.substr(std::min(equals + 1, word.size()));
  if (name == "tokens-per-minute") return take_number(value, quota.tokens_per_minute);
  if (name == "requests") return take_number(value, quota.requests_at_once);
  return error(Errc::kInvalidArgument, "{} is not tokens-per-minute=N or requests=N", quote(word));
}

Result<Token> parse_line(const std::vector<std::string_view>& words) {
  if (words.size() < 3) {
    return error(Errc::kInvalidArgument,
                 "a line has a name, a SHA-256 and scopes; here are {} words", words.size());
  }
  Token token;
  MR_ASSIGN_OR_RETURN(token.caller.name, parse_name(words[0]));
  MR_ASSIGN_OR_RETURN(token.sha256, parse_sha256(words[1]));
  MR_ASSIGN_OR_RETURN(token.caller.scope, parse_scopes(words[2]));
  for (size_t i = 3; i < words.size(); ++i) {
    MR_RETURN_IF_ERROR(take_quota(words[i], token.caller.quota));
  }
  return token;
}

class TokenList {
 public:
  Result<void> add(Token token) {
    if (tokens_.size() == kMaxTokens) {
      return error(Errc::kInvalidArgument, "more than {} tokens", kMaxTokens);
    }
    if (!digests_.insert(token.sha256).second) {
      return Error(Errc::kInvalidArgument, "the same SHA-256 is on a line above");
    }
    const Caller& caller = token.caller;
    if (caller.quota != Quota{}) {
      const auto [known, first] = quotas_.emplace(caller.name, caller.quota);
      if (!first && known->second != caller.quota) {
        return error(Errc::kInvalidArgument, "another line gives '{}' another quota", caller.name);
      }
    }
    tokens_.push_back(std::move(token));
    return {};
  }

  std::vector<Token> take() && {
    for (Token& token : tokens_) {
      const auto found = quotas_.find(token.caller.name);
      if (found != quotas_.end()) token.caller.quota = found->second;
    }
    return std::move(tokens_);
  }

 private:
  std::vector<Token> tokens_;
  std::set<std::string> digests_;
  std::map<std::string, Quota> quotas_;
};

}  // namespace

Result<std::vector<Token>> parse_token_file(std::string_view text) {
  TokenList tokens;
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    const auto words = words_of(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (words.empty() || words.front().starts_with('#')) continue;
    Result<Token> token = parse_line(words);
    const Result<void> added =
        token.ok() ? tokens.add(*std::move(token)) : Result<void>(token.error());
    if (!added.ok()) return error(added.error().code, "line {}: {}", number, added.error().message);
  }
  return std::move(tokens).take();
}

}  // namespace millrace::coordinator
