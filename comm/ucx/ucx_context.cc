#include "comm/ucx/ucx_context.h"

#include <ucs/debug/log_def.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "comm/ucx/ucx_error.h"
#include "common/log.h"

namespace millrace::comm {
namespace {

// Tuning that both ends need alike; docs/adr/0003-kv-transport.md has the measurements. It goes
// through the environment: ucp_config_modify knows settings of UCX's transports by names that
// change with the version, and complains of those that a choice of transports leaves unused. An
// operator who sets one of these has the last word.
void set_tuning(UcxTransports transports) {
  const auto set = [](const char* name, const char* value) {
    setenv(name, value, /*overwrite=*/0);
  };
  // Without this, error handling excludes shared memory and one host talks to itself over TCP.
  if (transports != UcxTransports::kTcp) set("UCX_MM_ERROR_HANDLING", "y");
  // Else UCX sends bulk data over TCP although a shared memory lane stands beside it.
  set("UCX_TCP_PUT_ENABLE", "n");
  // The default of 8 KiB costs more than half of the TCP bandwidth for payloads of many pieces.
  set("UCX_TCP_TX_SEG_SIZE", "512k");
  set("UCX_TCP_RX_SEG_SIZE", "512k");
  // A server that starts again takes its port although connections of its former life linger.
  set("UCX_TCP_CM_REUSEADDR", "y");
  // How soon a silent death of the peer's host is noticed; a dead process is noticed at once.
  set("UCX_KEEPALIVE_INTERVAL", "1s");
}

// UCX writes to standard output, which is for results.
ucs_log_func_rc_t log_to_stderr(const char* /*file*/, unsigned /*line*/, const char* /*function*/,
                                ucs_log_level_t level,
                                const ucs_log_component_config_t* /*component*/, const char* format,
                                va_list arguments) {
  std::array<char, 1024> line{};
  std::vsnprintf(line.data(), line.size(), format, arguments);
  const auto shown_as = level <= UCS_LOG_LEVEL_ERROR  ? spdlog::level::err
                        : level <= UCS_LOG_LEVEL_DIAG ? spdlog::level::warn
                                                      : spdlog::level::info;  // it was asked for
  spdlog::log(shown_as, "UCX: {}", line.data());
  return UCS_LOG_FUNC_RC_STOP;
}

// Once a process.
void take_over_log() {
  static const bool taken = [] {
    ucs_log_push_handler(log_to_stderr);
    return true;
  }();
  (void)taken;
}

const char* tls_of(UcxTransports transports) {
  switch (transports) {
    case UcxTransports::kAuto:
      return nullptr;
    // Connections are set up over a socket, so TCP must be there; the bytes take shared memory.
    case UcxTransports::kSharedMemory:
      return "shm,tcp";
    case UcxTransports::kTcp:
      return "tcp";
  }
  return nullptr;
}

}  // namespace

Result<std::shared_ptr<UcxContext>> UcxContext::create(UcxTransports transports) {
  set_tuning(transports);
  take_over_log();
  ucp_config_t* raw_config = nullptr;
  if (const auto status = ucp_config_read(nullptr, nullptr, &raw_config); status != UCS_OK) {
    return ucx_error(status, "reading its configuration");
  }
  const std::unique_ptr<ucp_config_t, decltype(&ucp_config_release)> config(raw_config,
                                                                            ucp_config_release);
  if (const char* tls = tls_of(transports)) {
    if (const auto status = ucp_config_modify(raw_config, "TLS", tls); status != UCS_OK) {
      return ucx_error(status, fmt::format("setting TLS={}", tls));
    }
  }

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
