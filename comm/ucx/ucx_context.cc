// SPDX-License-Identifier: Apache-2.0
#include "comm/ucx/ucx_context.h"

#include <ucs/debug/log_def.h>

#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <utility>

#include "comm/ucx/ucx_error.h"
#include "common/log.h"

namespace millrace::comm {
namespace {

// Tuning that both ends need alike; docs/adr/0003-kv-transport.md has the measurements. It goes
// through ucp_config_modify and not through the environment, which belongs to the process: a
// library in an engine with threads must not write there. UCX 1.13 knows the settings of its
// transports without the transport's name in front, later versions with it, so both are given. UCX
// warns of the unknown one, and of settings of a transport that is not in use; these warnings are
// suppressed. A variable set by the operator has the last word.
struct Setting {
  const char* name;  // the variable's, after UCX_
  const char* short_name;
  const char* value;
};
constexpr std::array kTuning = {
    // Without this, error handling excludes shared memory and one host talks to itself over TCP.
    Setting{"MM_ERROR_HANDLING", nullptr, "y"},
    // Otherwise UCX sends bulk data over TCP although there is a shared memory lane.
    Setting{"TCP_PUT_ENABLE", "PUT_ENABLE", "n"},
    // The default of 8 KiB costs more than half of the TCP bandwidth for payloads of many pieces.
    Setting{"TCP_TX_SEG_SIZE", "TX_SEG_SIZE", "512k"},
    Setting{"TCP_RX_SEG_SIZE", "RX_SEG_SIZE", "512k"},
    // A restarted server can take its port although connections of its former life linger.
    Setting{"TCP_CM_REUSEADDR", "CM_REUSEADDR", "y"},
    // How soon a silent death of the peer's host is noticed; a dead process is noticed at once.
    Setting{"KEEPALIVE_INTERVAL", nullptr, "1s"},
};

Result<void> modify(ucp_config_t* config, const char* name, const char* value) {
  if (const auto status = ucp_config_modify(config, name, value); status != UCS_OK) {
    return ucx_error(status, fmt::format("setting {}={}", name, value));
  }
  return {};
}

Result<void> tune(ucp_config_t* config) {
  for (const Setting& setting : kTuning) {
    if (std::getenv(fmt::format("UCX_{}", setting.name).c_str()) != nullptr) continue;
    MR_RETURN_IF_ERROR(modify(config, setting.name, setting.value));
    if (setting.short_name == nullptr) continue;
    MR_RETURN_IF_ERROR(modify(config, setting.short_name, setting.value));
  }
  return {};
}

std::string text_of(const char* format, va_list arguments) {
  std::array<char, 1024> line{};
  va_list copy;
  va_copy(copy, arguments);
  std::vsnprintf(line.data(), line.size(), format, copy);
  va_end(copy);
  return line.data();
}

// Suppresses warnings of settings of tune() that this version does not know.
ucs_log_func_rc_t hold_back_tuning(const char* /*file*/, unsigned /*line*/,
                                   const char* /*function*/, ucs_log_level_t level,
                                   const ucs_log_component_config_t* /*component*/,
                                   const char* format, va_list arguments) {
  const bool ours = level == UCS_LOG_LEVEL_WARN &&
                    text_of(format, arguments).find("invalid configuration") != std::string::npos;
  return ours ? UCS_LOG_FUNC_RC_STOP : UCS_LOG_FUNC_RC_CONTINUE;
}

// UCX writes to standard output, which is reserved for results.
ucs_log_func_rc_t log_to_stderr(const char* /*file*/, unsigned /*line*/, const char* /*function*/,
                                ucs_log_level_t level,
                                const ucs_log_component_config_t* /*component*/, const char* format,
                                va_list arguments) {
  const auto shown_as = level <= UCS_LOG_LEVEL_ERROR ? log::Level::kError
                        : level <= UCS_LOG_LEVEL_DIAG
                            ? log::Level::kWarn
                            : log::Level::kInfo;  // the operator asked for it
  log::at(shown_as, "UCX: {}", text_of(format, arguments));
  return UCS_LOG_FUNC_RC_STOP;
}

// Once per process. The handler pushed last is asked first.
void take_over_log(bool all) {
  static std::once_flag everything, tuning;
  if (all) std::call_once(everything, [] { ucs_log_push_handler(log_to_stderr); });
  std::call_once(tuning, [] { ucs_log_push_handler(hold_back_tuning); });
}

const char* tls_of(UcxTransports transports) {
  switch (transports) {
    case UcxTransports::kAuto:
      return nullptr;
    // Connections are set up over a socket, so TCP must be allowed; the bytes use shared memory.
    case UcxTransports::kSharedMemory:
      return "shm,tcp";
    case UcxTransports::kTcp:
      return "tcp";
  }
  return nullptr;
}

}  // namespace

Result<std::shared_ptr<UcxContext>> UcxContext::create(const UcxOptions& options) {
  take_over_log(options.owns_log);
  ucp_config_t* raw_config = nullptr;
  if (const auto status = ucp_config_read(nullptr, nullptr, &raw_config); status != UCS_OK) {
    return ucx_error(status, "reading its configuration");
  }
  const std::unique_ptr<ucp_config_t, decltype(&ucp_config_release)> config(raw_config,
                                                                            ucp_config_release);
  if (const char* tls = tls_of(options.transports)) {
    MR_RETURN_IF_ERROR(modify(raw_config, "TLS", tls));
  }
  MR_RETURN_IF_ERROR(tune(raw_config));
  // UCX's own ports, one for each thread, end the process when they receive other bytes than it
  // sends (1.13), and admit everybody. So they are open to this host only.
  MR_RETURN_IF_ERROR(modify(raw_config, "NET_DEVICES", "lo"));

  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.mt_workers_shared = 1;
  ucp_context_h context = nullptr;
  if (const auto status = ucp_init(&params, raw_config, &context); status != UCS_OK) {
    return ucx_error(status, "creating a context");
  }
  return std::shared_ptr<UcxContext>(new UcxContext(context));
}

}  // namespace millrace::comm
