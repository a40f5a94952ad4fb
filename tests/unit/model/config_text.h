// SPDX-License-Identifier: Apache-2.0
// The text of a config.json with some fields changed, and the config that it gives.
#pragma once

#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <string>
#include <string_view>

#include "model/load_model_config.h"
#include "tests/support/temp_directory.h"

namespace millrace::model {

inline Result<ModelConfig> load(std::string_view text) {
  test::TempDirectory directory;
  directory.write("config.json", text);
  return load_model_config(directory.path());
}

// `base` with the fields of `changes` replacing its own. A field with the value "absent" is
// removed.
inline std::string changed(std::string_view base, std::string_view changes) {
  auto object = boost::json::parse({base.data(), base.size()}).as_object();
  const auto edits = boost::json::parse({changes.data(), changes.size()}).as_object();
  for (const auto& change : edits) {
    if (change.value() == "absent") {
      object.erase(change.key());
    } else {
      object[change.key()] = change.value();
    }
  }
  return boost::json::serialize(object);
}

}  // namespace millrace::model
