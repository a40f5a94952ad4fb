// SPDX-License-Identifier: Apache-2.0
#include "kvclient/c/status.h"

namespace millrace::kvclient::c {
namespace {

static_assert(static_cast<int>(Errc::kDenied) == MKV_DENIED);

thread_local std::string last_error;

}  // namespace

mkv_status fail(mkv_status status, const std::string& why) {
  last_error = why;
  return status;
}

mkv_status fail(const Error& why) {
  return fail(static_cast<mkv_status>(why.code), why.message);
}

mkv_status null_argument(const char* what) {
  return fail(MKV_INVALID_ARGUMENT, std::string(what) + " is NULL");
}

mkv_status fail_without_words() noexcept {
  last_error.clear();
  return MKV_EXHAUSTED;
}

}  // namespace millrace::kvclient::c

using namespace millrace;

extern "C" {

uint32_t mkv_version(void) {
  return MKV_VERSION_MAJOR << 16 | MKV_VERSION_MINOR;
}

const char* mkv_status_name(mkv_status status) {
  if (status == MKV_OK) return "ok";
  if (status == MKV_PENDING) return "pending";
  if (status < MKV_INVALID_ARGUMENT || status > MKV_DENIED) return "unknown";
  return errc_name(static_cast<Errc>(status)).data();
}

const char* mkv_last_error(void) {
  return kvclient::c::last_error.c_str();
}

}  // extern "C"
