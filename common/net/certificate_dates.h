// SPDX-License-Identifier: Apache-2.0
// Whether certificates are valid today. OpenSSL looks at those of the other side only.
#pragma once

#include <string>

#include "common/result.h"

namespace millrace {

// `pem`: the text of the file `path`. kInvalidArgument says which of its certificates has expired,
// or is not valid yet, and when. Text that is no certificate is for others to refuse.
Result<void> check_certificate_dates(const std::string& pem, const std::string& path);

// The same for authorities, of which a file may have old ones: an error only if none is valid.
Result<void> check_authority_dates(const std::string& pem, const std::string& path);

}  // namespace millrace
