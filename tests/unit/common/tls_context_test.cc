// SPDX-License-Identifier: Apache-2.0
#include "common/net/tls_context.h"

#include <gtest/gtest.h>
#include <openssl/ssl.h>

#include "tests/support/certificates.h"
#include "tests/support/temp_directory.h"

namespace millrace {
namespace {

class TlsContextTest : public ::testing::Test {
 protected:
  TlsContextTest() {
    const test::Certificate own = authority_.issue("DNS:localhost");
    good_ = {.certificate = files_.write("cert", own.certificate),
             .key = files_.write("key", own.key),
             .ca = files_.write("ca", authority_.certificate())};
  }

  test::CertificateAuthority authority_;
  test::TempDirectory files_;
  TlsFiles good_;
};

TEST_F(TlsContextTest, ServersAskClientsForCertificatesOnlyWithACa) {
  const auto mutual = make_server_tls(good_);
  ASSERT_TRUE(mutual.ok()) << mutual.error().message;
  EXPECT_EQ(SSL_CTX_get_verify_mode((*mutual)->native_handle()),
            SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT);
  good_.ca.clear();
  EXPECT_EQ(SSL_CTX_get_verify_mode((*make_server_tls(good_))->native_handle()), SSL_VERIFY_NONE);
}

TEST_F(TlsContextTest, ClientsAlwaysAskServers) {
  for (const TlsFiles& files : {good_, TlsFiles{.ca = good_.ca}, TlsFiles{}}) {
    const auto context = make_client_tls(files);
    ASSERT_TRUE(context.ok()) << context.error().message;
    EXPECT_EQ(SSL_CTX_get_verify_mode((*context)->native_handle()), SSL_VERIFY_PEER);
  }
}

TEST_F(TlsContextTest, OldVersionsAndResumedSessionsAreRefused) {
  for (const auto& context : {make_server_tls(good_), make_client_tls(good_)}) {
    SSL_CTX* native = (*context)->native_handle();
    EXPECT_EQ(SSL_CTX_get_min_proto_version(native), TLS1_2_VERSION);
    EXPECT_TRUE(SSL_CTX_get_options(native) & SSL_OP_NO_TICKET);
    EXPECT_EQ(SSL_CTX_get_session_cache_mode(native), SSL_SESS_CACHE_OFF);
  }
}

TEST_F(TlsContextTest, AMistakeIsToldWithItsFile) {
  const auto refusal = [](const TlsFiles& files) { return make_server_tls(files).error().message; };
  TlsFiles wrong = good_;
  wrong.certificate = files_.file("none");
  EXPECT_EQ(make_server_tls(wrong).error().code, Errc::kNotFound);
  wrong.certificate = files_.write("empty", "");
  EXPECT_EQ(refusal(wrong).rfind(wrong.certificate + " is no certificate in PEM", 0), 0u);
  wrong = good_;
  wrong.key = good_.certificate;
  EXPECT_EQ(refusal(wrong).rfind(wrong.key + " is no key without a passphrase in PEM", 0), 0u);
  wrong.key = files_.write("other", authority_.issue("DNS:localhost").key);
  EXPECT_EQ(refusal(wrong),
            wrong.key + " is not the key of the certificate in " + good_.certificate);
  wrong = good_;
  wrong.ca = good_.key;
  EXPECT_EQ(refusal(wrong).rfind(wrong.ca + " is no certificate of a CA in PEM", 0), 0u);
}

class TlsDatesTest : public TlsContextTest {
 protected:
  // What is said of a certificate that is valid between these times, in seconds from now.
  std::string refusal(long begin_s, long end_s) {
    const auto issued = authority_.issue("DNS:localhost", begin_s, end_s);
    TlsFiles files = good_;
    files.certificate = files_.write("dated", issued.certificate);
    files.key = files_.write("dated-key", issued.key);
    const auto made = make_server_tls(files);
    EXPECT_EQ(make_client_tls(files).ok(), made.ok());
    return made.ok() ? "" : made.error().message;
  }
};

TEST_F(TlsDatesTest, ACertificateThatHasExpiredIsToldWithItsNameAndDate) {
  EXPECT_EQ(refusal(-3600, 3600), "");
  const std::string expired = refusal(-7200, -3600);
  EXPECT_EQ(expired.rfind(
                files_.file("dated") + ": the certificate of 'CN=DNS:localhost' expired on ", 0),
            0u)
      << expired;
  EXPECT_NE(expired.find(" GMT"), std::string::npos) << expired;
}

TEST_F(TlsDatesTest, ACertificateOfTomorrowIsNotTakenToday) {
  EXPECT_NE(refusal(3600, 7200).find("is not valid before"), std::string::npos);
}

TEST_F(TlsDatesTest, AllCertificatesOfTheChainCount) {
  const auto good = authority_.issue("DNS:localhost");
  const auto old = authority_.issue("DNS:between", -7200, -3600);
  good_.certificate = files_.write("chain", good.certificate + old.certificate);
  good_.key = files_.write("chain-key", good.key);
  EXPECT_NE(make_server_tls(good_).error().message.find("'CN=DNS:between' expired"),
            std::string::npos);
}

TEST_F(TlsDatesTest, AFileOfAuthoritiesNeedsOneThatIsValid) {
  const auto old = authority_.issue("DNS:old", -7200, -3600);
  good_.ca = files_.write("authorities", old.certificate + authority_.certificate());
  EXPECT_TRUE(make_server_tls(good_).ok());
  good_.ca = files_.write("authorities", old.certificate);
  EXPECT_NE(make_server_tls(good_).error().message.find("'CN=DNS:old' expired"), std::string::npos);
}

}  // namespace
}  // namespace millrace
