// SPDX-License-Identifier: Apache-2.0
// What the overview calls requests and their owners. Those who may see everybody's requests see
// their names. Others, who reach the admin port of a coordinator that asks for tokens, see no
// owners, and for each request a word that tells it from others. Pure.
#pragma once

#include <string>

#include "coordinator/requests/request.h"

namespace millrace::coordinator {

class ShownNames {
 public:
  // As they are.
  ShownNames() = default;
  // Words that only who knows `key` can make of ids.
  static ShownNames hidden(std::string key);

  bool are_hidden() const { return !key_.empty(); }
  std::string id_of(const Request& request) const;
  std::string owner_of(const Request& request) const;

 private:
  std::string key_;
};

}  // namespace millrace::coordinator
