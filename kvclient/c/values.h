// Structures of millrace_kv.h in and out, whichever version the caller was built with, and times.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "common/clock.h"
#include "kvclient/c/status.h"

namespace millrace::kvclient::c {

// How large a structure was in version 1.0.
template <typename Struct>
constexpr size_t kFirstBytes = sizeof(Struct);
template <>
constexpr size_t kFirstBytes<mkv_pull_request> = offsetof(mkv_pull_request, order);
template <>
constexpr size_t kFirstBytes<mkv_client_options> = offsetof(mkv_client_options, tls_ca);
template <>
constexpr size_t kFirstBytes<mkv_pull_stats> = offsetof(mkv_pull_stats, hot_pages_done);

// Of structures of another version: what both know; 0 elsewhere.
template <typename Struct>
mkv_status read_struct(const Struct* from, const char* what, Struct& to) {
  if (from == nullptr) return null_argument(what);
  if (from->struct_bytes < kFirstBytes<Struct>) {
    return fail(error(Errc::kInvalidArgument, "{}.struct_bytes is {}, at least {} are needed", what,
                      from->struct_bytes, kFirstBytes<Struct>));
  }
  std::memcpy(&to, from, std::min<size_t>(from->struct_bytes, sizeof(Struct)));
  return MKV_OK;
}

template <typename Struct>
mkv_status write_struct(Struct from, Struct* to, const char* what) {
  if (to == nullptr) return null_argument(what);
  if (to->struct_bytes < kFirstBytes<Struct>) {
    return fail(error(Errc::kInvalidArgument, "{}.struct_bytes is {}, at least {} are needed", what,
                      to->struct_bytes, kFirstBytes<Struct>));
  }
  from.struct_bytes = to->struct_bytes;
  std::memcpy(to, &from, std::min<size_t>(to->struct_bytes, sizeof(Struct)));
  return MKV_OK;
}

// At most three years: more would overflow somewhere. NaN is no time.
Duration duration_of(double seconds);

}  // namespace millrace::kvclient::c
