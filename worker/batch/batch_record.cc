// SPDX-License-Identifier: Apache-2.0
#include "worker/batch/batch_record.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "common/checksum.h"
#include "common/log.h"

namespace millrace::worker {

namespace {

// Text without the space around it, so that a file that was only written anew is the same.
uint64_t sum_of(std::string_view line) {
  const size_t begin = std::min(line.find_first_not_of(" \t\r"), line.size());
  const size_t end = line.find_last_not_of(" \t\r");
  line = line.substr(begin, end == std::string_view::npos ? 0 : end + 1 - begin);
  return checksum(std::as_bytes(std::span(line)));
}

// The first record: "name\0value\0name\0value\0".
std::string to_text(const BatchRecord::Settings& settings) {
  std::string text;
  for (const auto& [name, value] : settings) {
    for (const std::string& word : {name, value}) (text += word) += '\0';
  }
  return text;
}

BatchRecord::Settings from_text(std::string_view text) {
  BatchRecord::Settings settings;
  const auto next = [&text] {
    const size_t end = std::min(text.find('\0'), text.size());
    std::string word(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    return word;
  };
  while (!text.empty()) {
    const std::string name = next();
    settings[name] = next();
  }
  return settings;
}

std::string differences(const BatchRecord::Settings& earlier, const BatchRecord::Settings& now) {
  std::string text;
  for (const auto& [name, value] : now) {
    const auto known = earlier.find(name);
    const std::string before = known == earlier.end() ? "" : known->second;
    if (before == value) continue;
    text += fmt::format("{}{} '{}', not '{}'", text.empty() ? "" : ", ", name, before, value);
  }
  return text;
}

}  // namespace

Result<BatchRecord> BatchRecord::begin(const std::string& path, const Settings& settings) {
  MR_ASSIGN_OR_RETURN(auto file, RecordFile::open(path));
  const std::string text = to_text(settings);
  MR_RETURN_IF_ERROR(file.replace(std::span(&text, 1)));
  return BatchRecord(std::move(file));
}

Result<BatchRecord> BatchRecord::resume(const std::string& path, const Settings& settings) {
  MR_ASSIGN_OR_RETURN(auto file, RecordFile::open(path));
  std::optional<Settings> earlier;
  std::map<std::string, uint64_t> lines;
  MR_RETURN_IF_ERROR(file.read(std::numeric_limits<int64_t>::max(), [&](std::string_view body) {
    if (!earlier) {
      earlier = from_text(body);
    } else if (body.size() >= sizeof(uint64_t)) {
      uint64_t sum = 0;
      std::memcpy(&sum, body.data(), sizeof sum);
      lines[std::string(body.substr(sizeof sum))] = sum;
    }
  }));
  if (!earlier) {
    log::warn("{} does not say what the earlier job was: its prompts are known by id only", path);
    return begin(path, settings);
  }
  if (const std::string different = differences(*earlier, settings); !different.empty()) {
    return error(Errc::kInvalidArgument,
                 "--resume: the earlier job had {}; use another --output, or the same settings",
                 different);
  }
  // A record that was cut off when the job was killed would hide those behind it.
  std::vector<std::string> whole{to_text(*earlier)};
  for (const auto& [id, sum] : lines) {
    whole.push_back(std::string(reinterpret_cast<const char*>(&sum), sizeof sum) + id);
  }
  MR_RETURN_IF_ERROR(file.replace(whole));
  BatchRecord record(std::move(file));
  record.lines_ = std::move(lines);
  return record;
}

Result<void> BatchRecord::note(const std::string& id, std::string_view line) {
  const uint64_t sum = sum_of(line);
  const std::string body = std::string(reinterpret_cast<const char*>(&sum), sizeof sum) + id;
  return file_.append(std::span(&body, 1));
}

Result<void> BatchRecord::check(const std::string& id, std::string_view line,
                                int64_t line_number) const {
  const auto known = lines_.find(id);
  if (known == lines_.end() || known->second == sum_of(line)) return {};
  return error(Errc::kInvalidArgument,
               "--resume: line {} of --input, '{}', is not the prompt of the earlier job's result; "
               "use another --output",
               line_number, id);
}

}  // namespace millrace::worker
