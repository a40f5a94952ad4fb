// SPDX-License-Identifier: Apache-2.0
#include "model/load_model_config.h"

#include <filesystem>
#include <string_view>

#include "model/synthetic/synthetic_model.h"

namespace millrace::model {

namespace {

namespace fs = std::filesystem;

// "ORG/NAME" of "models--ORG--NAME", as huggingface_hub names the folder of a repository; "" for
// other folders. Names of repositories have no "--".
std::string repository_name(std::string_view folder) {
  constexpr std::string_view kPrefix = "models--", kSeparator = "--";
  if (!folder.starts_with(kPrefix)) return "";
  std::string name;
  std::string_view rest = folder.substr(kPrefix.size());
  for (size_t at; (at = rest.find(kSeparator)) != std::string_view::npos;) {
    name.append(rest.substr(0, at)).append("/");
    rest.remove_prefix(at + kSeparator.size());
  }
  return name.append(rest);
}

}  // namespace

std::string model_name(const std::string& directory) {
  if (directory.empty()) return "";
  fs::path path = fs::absolute(directory).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  if (path.parent_path().filename() == "snapshots") {
    std::string name = repository_name(path.parent_path().parent_path().filename().string());
    if (!name.empty()) return name;
  }
  return path.filename().string();
}

Result<ModelConfig> load_model_config(const std::string& model) {
  if (is_synthetic_model(model)) return synthetic_config(model);
  auto config = read_model_config(model);
  if (config.ok()) config->name = model_name(model);
  return config;
}

}  // namespace millrace::model
