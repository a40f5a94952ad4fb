// SPDX-License-Identifier: Apache-2.0
// A certificate authority for tests, and certificates signed by it. They are created anew each time
// and are valid for a day, if no other times are given.
#pragma once

#include <memory>
#include <string>

namespace millrace::test {

struct Certificate {
  std::string certificate;  // in PEM
  std::string key;          // of the certificate, in PEM
};

class CertificateAuthority {
 public:
  CertificateAuthority();
  ~CertificateAuthority();

  // Its own certificate, in PEM.
  std::string certificate() const;
  // `alternative_name`: whom the certificate is for, as "IP:127.0.0.1" or "DNS:localhost".
  // `begin_s`, `end_s`: from when and until when it is valid, in seconds from now.
  Certificate issue(const std::string& alternative_name, long begin_s = -3600,
                    long end_s = 24 * 3600) const;

 private:
  struct Pair;
  std::unique_ptr<Pair> own_;
};

}  // namespace millrace::test
