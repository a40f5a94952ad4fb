// SPDX-License-Identifier: Apache-2.0
#include "common/net/tls_context.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509err.h>

#include <functional>

#include "common/net/certificate_dates.h"
#include "common/system/mapped_file.h"

namespace millrace {

namespace ssl = boost::asio::ssl;
using boost::system::error_code;

namespace {

constexpr int64_t kMaxFileBytes = 4 << 20;  // bundles of CAs take a few hundred KiB

Result<TlsContext> make_context(ssl::context::method method) {
  auto context = std::make_shared<ssl::context>(method);
  SSL_CTX* native = context->native_handle();
  if (SSL_CTX_set_min_proto_version(native, TLS1_2_VERSION) != 1) {
    return Error(Errc::kInternal, "OpenSSL has no TLS 1.2");
  }
  SSL_CTX_set_options(native, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_session_cache_mode(native, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(native, 0);
  // Idle connections release their buffers.
  SSL_CTX_set_mode(native, SSL_MODE_RELEASE_BUFFERS);
  // There is nobody to ask for a passphrase.
  context->set_password_callback(
      [](size_t, ssl::context::password_purpose) { return std::string(); });
  return context;
}

// The file is read as text first, because OpenSSL's own errors do not name the file.
using CheckDates = Result<void> (*)(const std::string& pem, const std::string& path);

Result<void> use(const std::string& path, const char* what,
                 const std::function<void(const boost::asio::const_buffer&, error_code&)>& take,
                 CheckDates check = nullptr) {
  MR_ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kMaxFileBytes));
  error_code ec;
  take(boost::asio::buffer(text), ec);
  ERR_clear_error();
  if (ec) return error(Errc::kInvalidArgument, "{} is no {}: {}", path, what, ec.message());
  return check != nullptr ? check(text, path) : Result<void>();
}

Result<void> show_certificate(ssl::context& context, const TlsFiles& files) {
  MR_RETURN_IF_ERROR(use(
      files.certificate, "certificate in PEM",
      [&](const auto& text, error_code& ec) { context.use_certificate_chain(text, ec); },
      check_certificate_dates));
  bool of_another = false;
  auto used =
      use(files.key, "key without a passphrase in PEM", [&](const auto& text, error_code& ec) {
        context.use_private_key(text, ssl::context::pem, ec);
        const auto code = static_cast<unsigned long>(ec.value());
        of_another = ec && ERR_GET_LIB(code) == ERR_LIB_X509 &&
                     ERR_GET_REASON(code) == X509_R_KEY_VALUES_MISMATCH;
      });
  if (of_another || (used.ok() && SSL_CTX_check_private_key(context.native_handle()) != 1)) {
    ERR_clear_error();
    return error(Errc::kInvalidArgument, "{} is not the key of the certificate in {}", files.key,
                 files.certificate);
  }
  return used;
}

Result<void> trust(ssl::context& context, const std::string& ca) {
  return use(
      ca, "certificate of a CA in PEM",
      [&](const auto& text, error_code& ec) { context.add_certificate_authority(text, ec); },
      check_authority_dates);
}

}  // namespace

Result<TlsContext> make_server_tls(const TlsFiles& files) {
  MR_ASSIGN_OR_RETURN(TlsContext context, make_context(ssl::context::tls_server));
  MR_RETURN_IF_ERROR(show_certificate(*context, files));
  if (!files.ca.empty()) {
    MR_RETURN_IF_ERROR(trust(*context, files.ca));
    context->set_verify_mode(ssl::verify_peer | ssl::verify_fail_if_no_peer_cert);
  }
  return context;
}

Result<TlsContext> make_client_tls(const TlsFiles& files) {
  MR_ASSIGN_OR_RETURN(TlsContext context, make_context(ssl::context::tls_client));
  if (!files.certificate.empty()) MR_RETURN_IF_ERROR(show_certificate(*context, files));
  if (files.ca.empty()) {
    error_code ec;
    context->set_default_verify_paths(ec);
    if (ec) return error(Errc::kIo, "the system's trusted certificates: {}", ec.message());
  } else {
    MR_RETURN_IF_ERROR(trust(*context, files.ca));
  }
  context->set_verify_mode(ssl::verify_peer);
  return context;
}

}  // namespace millrace
