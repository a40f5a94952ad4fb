// SPDX-License-Identifier: Apache-2.0
#include "coordinator/page/content_policy.h"

#include <gmock/gmock.h>

#include "coordinator/page/overview_page.h"

namespace millrace::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// The hashes are of `printf alert | openssl sha256 -binary | base64`, and of "a{}" and "".
TEST(ContentPolicy, NamesStyleAndScriptByTheirHashes) {
  const std::string policy = content_policy("<style>a{}</style><p>x</p><script>alert</script>");
  EXPECT_THAT(policy,
              HasSubstr("script-src 'sha256-35BQWN1npAn++BSA6B5HNlcrDttNf7mHxpXNB+Jg7IE=';"));
  EXPECT_THAT(policy,
              HasSubstr("style-src 'sha256-X1RutGBrXCt9KkSaXMK7tHftWiRscFHOhxsS8tv8hBk=';"));
  EXPECT_THAT(content_policy("<script></script>"),
              HasSubstr("script-src 'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=';"));
}

TEST(ContentPolicy, AllowsNothingThatIsNotThere) {
  EXPECT_EQ(content_policy("<p>x</p>"),
            "default-src 'none'; script-src 'none'; style-src 'none'; connect-src 'self'; "
            "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
}

TEST(OverviewPage, IsSmallAndNeedsNoOtherHost) {
  EXPECT_LT(overview_page().size(), 25'000U);
  std::string page(overview_page());
  // A namespace is a name and is not fetched.
  const std::string svg = "\"http://www.w3.org/2000/svg\"";
  page.replace(page.find(svg), svg.size(), "");
  EXPECT_THAT(page, Not(HasSubstr("//www.")));
  EXPECT_THAT(page, Not(HasSubstr("http:")));
  EXPECT_THAT(page, Not(HasSubstr("https:")));
  EXPECT_THAT(page, Not(HasSubstr("src=")));
}

// What would run text from the server as markup, or needs a looser policy.
TEST(OverviewPage, MakesNoMarkupOfText) {
  for (const char* text : {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write",
                           "eval(", "style=\"", " onclick"}) {
    EXPECT_THAT(std::string(overview_page()), Not(HasSubstr(text)));
  }
}

}  // namespace
}  // namespace millrace::coordinator
