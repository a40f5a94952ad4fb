#include "common/random_id.h"

#include <fmt/format.h>

#include <random>

namespace millrace {

std::string random_id() {
  std::random_device device;
  std::string id;
  for (int word = 0; word < 4; ++word) id += fmt::format("{:08x}", device());
  return id;
}

}  // namespace millrace
