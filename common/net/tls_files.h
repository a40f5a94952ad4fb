// SPDX-License-Identifier: Apache-2.0
// The PEM files of one side of TLS connections.
#pragma once

#include <string>

namespace millrace {

struct TlsFiles {
  std::string
      certificate;  // with all certificates between it and the CA's; "" : this side has none
  std::string key;  // of the certificate, without a passphrase
  std::string ca;   // who signs the certificates of the other side; "" : see make_*_tls()
};

}  // namespace millrace
