// SPDX-License-Identifier: Apache-2.0
// What a record stands for. Where nothing is shared, one record is both a client's request and the
// prefill that a group computes for it.
#pragma once

namespace millrace::coordinator {

enum class RequestRole {
  kWhole,    // both
  kJoined,   // a client's request, answered by the prefill of another record
  kPrefill,  // a prefill: for requests that have joined it, or for one that may yet come
};

}  // namespace millrace::coordinator
