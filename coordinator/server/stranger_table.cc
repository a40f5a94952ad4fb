// SPDX-License-Identifier: Apache-2.0
#include "coordinator/server/stranger_table.h"

namespace millrace::coordinator {

StrangerTable::Admission StrangerTable::admit(const std::string& address) {
  Admission admission{.id = ++last_id_};
  if (const auto own = by_address_.find(address);
      own != by_address_.end() && std::ssize(own->second) >= limits_.of_address) {
    admission.gives_way = *own->second.begin();
  } else if (std::ssize(all_) >= limits_.all && !all_.empty()) {
    admission.gives_way = all_.begin()->first;
  }
  if (admission.gives_way) leave(*admission.gives_way);
  all_.emplace(admission.id, address);
  by_address_[address].insert(admission.id);
  return admission;
}

void StrangerTable::leave(Id id) {
  const auto found = all_.find(id);
  if (found == all_.end()) return;
  const auto own = by_address_.find(found->second);
  own->second.erase(id);
  if (own->second.empty()) by_address_.erase(own);
  all_.erase(found);
}

}  // namespace millrace::coordinator
