// SPDX-License-Identifier: Apache-2.0
#include "coordinator/http/connection_table.h"

namespace millrace::coordinator {

std::optional<Error> ConnectionTable::refusal(const std::string& client) const {
  constexpr const char* kOnlyHealthProbes = "only /health, /ready and /metrics are answered";
  const auto any = by_kind_.find(Kind::kAny);
  if (any != by_kind_.end() && std::ssize(any->second) >= limits_.connections) {
    return error(Errc::kUnavailable, "all {} HTTP connections are in use: {}", limits_.connections,
                 kOnlyHealthProbes);
  }
  const auto own = by_client_.find(client);
  if (own != by_client_.end() && own->second >= limits_.per_client) {
    return error(Errc::kExhausted, "{} connections of {} are open, the limit for one client: {}",
                 own->second, client, kOnlyHealthProbes);
  }
  return std::nullopt;
}

ConnectionTable::Admission ConnectionTable::admit(const std::string& client, bool by_admin_port) {
  Admission admission{.id = ++last_id_};
  if (by_admin_port) {
    admission.kind = Kind::kAdmin;
    admission.only_health_probes =
        error(Errc::kNotFound, "this port serves only /health, /ready, /metrics, /version and /");
  } else {
    admission.only_health_probes = refusal(client);
    if (admission.only_health_probes) admission.kind = Kind::kHealthProbe;
  }
  auto& alike = by_kind_[admission.kind];
  if (admission.kind != Kind::kAny && std::ssize(alike) >= limits_.health_probes) {
    admission.gives_way = *alike.begin();
    leave(*admission.gives_way);
  }
  alike.insert(admission.id);
  if (admission.kind == Kind::kAny) ++by_client_[client];
  open_.emplace(admission.id, Entry{admission.kind, client});
  return admission;
}

void ConnectionTable::leave(Id id) {
  const auto found = open_.find(id);
  if (found == open_.end()) return;
  const Entry& entry = found->second;
  by_kind_[entry.kind].erase(id);
  if (entry.kind == Kind::kAny) {
    const auto own = by_client_.find(entry.client);
    if (--own->second == 0) by_client_.erase(own);
  }
  open_.erase(found);
}

}  // namespace millrace::coordinator
