// SPDX-License-Identifier: Apache-2.0
#include "common/net/certificate_dates.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <memory>
#include <optional>
#include <vector>

namespace millrace {

namespace {

using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;

std::vector<Certificate> certificates_in(const std::string& pem) {
  const std::unique_ptr<BIO, decltype(&BIO_free)> in(
      BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), &BIO_free);
  std::vector<Certificate> all;
  while (X509* const one = PEM_read_bio_X509_AUX(in.get(), nullptr, nullptr, nullptr)) {
    all.emplace_back(one, &X509_free);
  }
  ERR_clear_error();  // the end of the text
  return all;
}

template <typename Print>
std::string text_of(Print&& print) {
  const std::unique_ptr<BIO, decltype(&BIO_free)> out(BIO_new(BIO_s_mem()), &BIO_free);
  print(out.get());
  char* text = nullptr;
  const long size = BIO_get_mem_data(out.get(), &text);
  return {text, static_cast<size_t>(size)};
}

// Empty if it is valid now.
std::optional<Error> fault_of(const X509* certificate, const std::string& path) {
  const auto say = [&](const char* what, const ASN1_TIME* when) {
    return error(Errc::kInvalidArgument, "{}: the certificate of '{}' {} {}", path,
                 text_of([&](BIO* out) {
                   X509_NAME_print_ex(out, X509_get_subject_name(certificate), 0,
                                      XN_FLAG_RFC2253 & ~ASN1_STRFLGS_ESC_MSB);
                 }),
                 what, text_of([&](BIO* out) { ASN1_TIME_print(out, when); }));
  };
  const ASN1_TIME* const end = X509_get0_notAfter(certificate);
  const ASN1_TIME* const begin = X509_get0_notBefore(certificate);
  // 0: a time that cannot be read, which nobody accepts.
  if (X509_cmp_current_time(end) <= 0) return say("expired on", end);
  if (X509_cmp_current_time(begin) >= 0) return say("is not valid before", begin);
  return std::nullopt;
}

}  // namespace

Result<void> check_certificate_dates(const std::string& pem, const std::string& path) {
  for (const auto& certificate : certificates_in(pem)) {
    if (auto fault = fault_of(certificate.get(), path)) return *std::move(fault);
  }
  return {};
}

Result<void> check_authority_dates(const std::string& pem, const std::string& path) {
  std::optional<Error> first;
  for (const auto& certificate : certificates_in(pem)) {
    auto fault = fault_of(certificate.get(), path);
    if (!fault) return {};
    if (!first) first = std::move(fault);
  }
  if (first) return *std::move(first);
  return {};
}

}  // namespace millrace
