// SPDX-License-Identifier: Apache-2.0
// How a function of millrace_kv.h ends: with a status, and a message for the calling thread's
// mkv_last_error().
#pragma once

#include <millrace/millrace_kv.h>

#include <exception>
#include <new>
#include <string>

#include "common/result.h"

namespace millrace::kvclient::c {

mkv_status fail(mkv_status status, const std::string& why);
mkv_status fail(const Error& why);
mkv_status null_argument(const char* what);
// Out of memory: sets no message, which would need memory.
mkv_status fail_without_words() noexcept;

// Runs a body that may throw: no exception leaves the interface.
template <typename Body>
mkv_status guarded(Body body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return fail_without_words();
  } catch (const std::exception& why) {
    return fail(MKV_INTERNAL, why.what());
  } catch (...) {
    return fail(MKV_INTERNAL, "an exception of another kind");
  }
}

}  // namespace millrace::kvclient::c
