// SPDX-License-Identifier: Apache-2.0
// What one side of TLS connections needs, from PEM files: its certificate and key, and whom it
// trusts. TLS 1.2 and 1.3. Sessions are not resumed, so each connection is checked against the
// current files. Thread-safe; connections keep the context that they began with.
#pragma once

#include <boost/asio/ssl/context.hpp>
#include <memory>

#include "common/net/tls_files.h"
#include "common/result.h"

namespace millrace {

using TlsContext = std::shared_ptr<boost::asio::ssl::context>;

// With a CA, clients need a certificate signed by it. Without a CA they need none.
Result<TlsContext> make_server_tls(const TlsFiles& files);
// Servers need a certificate signed by the CA or, without a CA, by one that the system trusts.
Result<TlsContext> make_client_tls(const TlsFiles& files);

}  // namespace millrace
