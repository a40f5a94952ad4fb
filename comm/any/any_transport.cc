// SPDX-License-Identifier: Apache-2.0
#include "comm/any/any_transport.h"

#include <utility>

#include "comm/net/address_scheme.h"

namespace millrace::comm {

void AnyTransport::add(std::string scheme, Make make) {
  others_[std::move(scheme)] = {.make = std::move(make), .made = nullptr};
}

Result<std::unique_ptr<TransportServer>> AnyTransport::listen(const std::string& host, int port,
                                                              TransportServer::Handler handler,
                                                              TransportServer::Admits admits) {
  if (!tcp_) return Error(Errc::kUnsupported, "no transport to listen by");
  return tcp_->listen(host, port, std::move(handler), std::move(admits));
}

Result<std::unique_ptr<TransportConnection>> AnyTransport::connect(const std::string& address,
                                                                   const std::string& capability,
                                                                   Deadline deadline) {
  MR_ASSIGN_OR_RETURN(const auto target, split_scheme(address));
  MR_ASSIGN_OR_RETURN(Transport* const transport, transport_of(target.scheme));
  return transport->connect(address, capability, deadline);
}

Result<Transport*> AnyTransport::transport_of(const std::string& scheme) {
  if (tcp_ && (scheme == kTcpScheme || scheme == kTlsScheme)) return &*tcp_;
  const std::lock_guard lock(mutex_);
  const auto found = others_.find(scheme);
  if (found == others_.end()) {
    std::string known = tcp_ ? fmt::format(" {}:// {}://", kTcpScheme, kTlsScheme) : "";
    for (const auto& [name, other] : others_) known += fmt::format(" {}://", name);
    return error(Errc::kUnsupported, "the rank speaks {}://; this client takes{} only", scheme,
                 known.empty() ? " nothing" : known);
  }
  if (!found->second.made) {
    MR_ASSIGN_OR_RETURN(found->second.made, found->second.make());
  }
  return found->second.made.get();
}

}  // namespace millrace::comm
