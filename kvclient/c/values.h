// SPDX-License-Identifier: Apache-2.0
// Reads and writes structures of millrace_kv.h, whichever version the caller was built with; and
// times.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "common/clock.h"
#include "kvclient/c/status.h"

namespace millrace::kvclient::c {

// The size of a structure in version 1.0.
template <typename Struct>
constexpr size_t kFirstBytes = sizeof(Struct);
template <>
constexpr size_t kFirstBytes<mkv_pull_request> = offsetof(mkv_pull_request, order);
template <>
constexpr size_t kFirstBytes<mkv_client_options> = offsetof(mkv_client_options, tls_ca);
template <>
constexpr size_t kFirstBytes<mkv_manifest_info> = offsetof(mkv_manifest_info, coordinator_instance);
template <>
constexpr size_t kFirstBytes<mkv_pull_stats> = offsetof(mkv_pull_stats, hot_pages_done);

// From a structure of another version, copies the fields that both know; the others are 0.
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

// At most three years: longer times would overflow somewhere. NaN counts as no time.
Duration duration_of(double seconds);

}  // namespace millrace::kvclient::c
