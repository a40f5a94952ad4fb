#include "coordinator/request_id.h"

#include "common/random_id.h"

namespace millrace::coordinator {

std::string make_request_id() {
  return "req-" + random_id();
}

}  // namespace millrace::coordinator
