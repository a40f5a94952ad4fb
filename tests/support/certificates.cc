// SPDX-License-Identifier: Apache-2.0
#include "tests/support/certificates.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include "common/check.h"
#include "common/secret.h"

namespace millrace::test {

namespace {

using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using Cert = std::unique_ptr<X509, decltype(&X509_free)>;

template <typename Write>
std::string pem(Write&& write) {
  const std::unique_ptr<BIO, decltype(&BIO_free)> out(BIO_new(BIO_s_mem()), &BIO_free);
  MR_CHECK(write(out.get()) == 1, "PEM");
  char* text = nullptr;
  const long size = BIO_get_mem_data(out.get(), &text);
  return {text, static_cast<size_t>(size)};
}

void add_extension(X509* certificate, int nid, const std::string& value) {
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, nullptr, nid, value.c_str());
  MR_CHECK(extension != nullptr, "extension {}", value);
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

Cert unsigned_certificate(EVP_PKEY* key, const std::string& name) {
  Cert out(X509_new(), &X509_free);
  X509_set_version(out.get(), 2);  // the value 2 means version 3
  uint32_t serial = 0;
  RAND_bytes(reinterpret_cast<unsigned char*>(&serial), sizeof serial);
  ASN1_INTEGER_set_uint64(X509_get_serialNumber(out.get()), serial);
  X509_gmtime_adj(X509_getm_notBefore(out.get()), -3600);
  X509_gmtime_adj(X509_getm_notAfter(out.get()), 24 * 3600);
  X509_set_pubkey(out.get(), key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(out.get()), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  return out;
}

}  // namespace

struct CertificateAuthority::Pair {
  Key key{EVP_EC_gen("P-256"), &EVP_PKEY_free};
  Cert certificate{nullptr, &X509_free};
};

CertificateAuthority::CertificateAuthority() : own_(std::make_unique<Pair>()) {
  // A random name: if two authorities had the same name, the wrong one's key would be tried.
  own_->certificate = unsigned_certificate(own_->key.get(), "CA " + random_id());
  X509* certificate = own_->certificate.get();
  X509_set_issuer_name(certificate, X509_get_subject_name(certificate));
  add_extension(certificate, NID_basic_constraints, "critical,CA:TRUE");
  X509_sign(certificate, own_->key.get(), EVP_sha256());
}

CertificateAuthority::~CertificateAuthority() = default;

std::string CertificateAuthority::certificate() const {
  return pem([this](BIO* out) { return PEM_write_bio_X509(out, own_->certificate.get()); });
}

Certificate CertificateAuthority::issue(const std::string& alternative_name, long begin_s,
                                        long end_s) const {
  const Key key(EVP_EC_gen("P-256"), &EVP_PKEY_free);
  const Cert certificate = unsigned_certificate(key.get(), alternative_name);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), begin_s);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), end_s);
  X509_set_issuer_name(certificate.get(), X509_get_subject_name(own_->certificate.get()));
  add_extension(certificate.get(), NID_subject_alt_name, alternative_name);
  X509_sign(certificate.get(), own_->key.get(), EVP_sha256());
  return {.certificate = pem([&](BIO* out) { return PEM_write_bio_X509(out, certificate.get()); }),
          .key = pem([&](BIO* out) {
            return PEM_write_bio_PrivateKey(out, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
          })};
}

}  // namespace millrace::test
