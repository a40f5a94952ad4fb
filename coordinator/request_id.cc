#include "coordinator/request_id.h"

#include <fmt/format.h>

#include <random>

namespace millrace::coordinator {

std::string make_request_id() {
  std::random_device source;
  return fmt::format("req-{:08x}{:08x}{:08x}{:08x}", source(), source(), source(), source());
}

}  // namespace millrace::coordinator
