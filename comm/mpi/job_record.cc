// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/job_record.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

#include "common/log.h"

namespace millrace::comm {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSharedMemory = "/dev/shm";
constexpr int kMaxRecordBytes = 16 << 10;  // a name and two paths

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// When the process began, in ticks since the machine started; nothing if there is no such process.
// It is unique together with the process number. Zombies do not count.
std::optional<std::string> start_of(int pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto end_of_name = text.rfind(')');
  if (end_of_name == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(end_of_name + 1));
  const std::vector<std::string> words{std::istream_iterator<std::string>(fields), {}};
  constexpr size_t kState = 0;   // field 3 of proc(5)
  constexpr size_t kStart = 19;  // field 22
  if (words.size() <= kStart || words[kState] == "Z" || words[kState] == "X") return std::nullopt;
  return words[kStart];
}

// A start time that no process has.
constexpr const char* kGone = "gone";

std::string name_of_process(int pid) {
  std::ifstream file(fmt::format("/proc/{}/comm", pid));
  std::string name;
  std::getline(file, name);
  return name;
}

std::optional<int> parse_pid(std::string_view digits) {
  int pid = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), pid);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return pid;
}

// If mpirun was killed before this process got here, the parent is whoever adopts orphans. So the
// owner is, on mpirun's host, the process that the session directory is named after, and elsewhere
// mpirun's daemon.
int owner_of(const JobFiles& files) {
  constexpr std::string_view kOfMpirun = "pid.";
  const auto name = fs::path(files.session_directory).filename().string();
  if (name.starts_with(kOfMpirun)) {
    if (const auto pid = parse_pid(std::string_view(name).substr(kOfMpirun.size()))) return *pid;
  }
  const int parent = ::getppid();
  return name_of_process(parent) == "orted" ? parent : ::getpid();
}

std::string file_prefix() {
  return fmt::format("millrace-job.{}.", ::geteuid());
}

// One field per line. Names and paths with line ends get no record.
std::string to_text(const JobFiles& files) {
  return fmt::format("{}\n{}\n{}\n{}\n", files.name, files.session_directory,
                     files.segment_directory, files.job_id);
}

std::optional<JobFiles> parse(const std::string& text) {
  std::istringstream lines(text);
  JobFiles files;
  for (auto* field :
       {&files.name, &files.session_directory, &files.segment_directory, &files.job_id}) {
    if (!std::getline(lines, *field)) return std::nullopt;
  }
  return files;
}

bool is_own(const struct stat& status, mode_t type) {
  return status.st_uid == ::geteuid() && (status.st_mode & S_IFMT) == type;
}

// /dev/shm belongs to everybody: a record that another user could have written is not trusted.
bool is_trusted(int fd) {
  struct stat status {};
  return ::fstat(fd, &status) == 0 && is_own(status, S_IFREG) && (status.st_mode & 022) == 0 &&
         status.st_size <= kMaxRecordBytes;
}

std::string read_all(int fd) {
  std::string text(kMaxRecordBytes, '\0');
  const auto size = ::pread(fd, text.data(), text.size(), 0);
  text.resize(size < 0 ? 0 : static_cast<size_t>(size));
  return text;
}

bool is_own_at(const fs::path& path, mode_t type) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 && is_own(status, type);
}

void remove_session(const fs::path& directory) {
  if (!directory.is_absolute() ||
      !directory.parent_path().filename().string().starts_with("ompi.") ||
      !is_own_at(directory, S_IFDIR)) {
    return;
  }
  std::error_code failed;
  fs::remove_all(directory, failed);
  if (failed) log::warn("cannot remove {}: {}", directory.string(), failed.message());
  fs::remove(directory.parent_path(), failed);  // of all jobs of this user: goes if it is empty
}

// vader_segment.<host>.<uid>.<job>.<rank on the host>
void remove_segments(const JobFiles& files) {
  const auto middle = fmt::format(".{}.{}.", ::geteuid(), files.job_id);
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator(files.segment_directory, failed)) {
    const auto name = entry.path().filename().string();
    const auto found = name.rfind(middle);
    if (!name.starts_with("vader_segment.") || found == std::string::npos ||
        name.find_first_not_of("0123456789", found + middle.size()) != std::string::npos ||
        !is_own_at(entry.path(), S_IFREG)) {
      continue;
    }
    ::unlink(entry.path().c_str());
  }
}

}  // namespace

JobRecord JobRecord::of_this_process(const std::string& job_name) {
  JobFiles files{.name = job_name,
                 .session_directory = variable("OMPI_MCA_orte_jobfam_session_dir"),
                 .segment_directory = variable("OMPI_MCA_btl_vader_backing_directory"),
                 .job_id = {}};
  if (files.segment_directory.empty()) files.segment_directory = kSharedMemory;
  const auto job = variable("PMIX_NAMESPACE");
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(job.data(), job.data() + job.size(), number);
  if (files.session_directory.empty() || error != std::errc() || end != job.data() + job.size()) {
    return {};
  }
  files.job_id = fmt::format("{:x}", number);
  return create(kSharedMemory, files, owner_of(files));
}

JobRecord JobRecord::create(const std::string& directory, const JobFiles& files, int owner) {
  const auto text = to_text(files);
  if (std::ssize(text) > kMaxRecordBytes || parse(text)->job_id != files.job_id) return {};
  auto path =
      fmt::format("{}/{}{}.{}", directory, file_prefix(), owner, start_of(owner).value_or(kGone));
  FileDescriptor record(
      ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
  // All ranks of the host write the same text, whichever is first.
  if (!record.valid() || !is_trusted(record.get()) || ::flock(record.get(), LOCK_SH) != 0 ||
      ::pwrite(record.get(), text.data(), text.size(), 0) != std::ssize(text)) {
    log::warn("no record of this job in {}: {}; if mpirun is killed, its files stay", path,
              std::strerror(errno));
    return {};
  }
  return {directory, std::move(path), files, std::move(record)};
}

JobRecord::JobRecord(std::string directory, std::string path, JobFiles files, FileDescriptor lock)
    : directory_(std::move(directory)),
      path_(std::move(path)),
      files_(std::move(files)),
      lock_(std::move(lock)) {}

JobRecord::~JobRecord() {
  // The lock can be exclusive only for the last rank of the host; other ranks give up here.
  if (lock_.valid() && ::flock(lock_.get(), LOCK_EX | LOCK_NB) == 0) ::unlink(path_.c_str());
}

int JobRecord::remove_dead_predecessors() const {
  if (!lock_.valid()) return 0;
  int removed = 0;
  const auto prefix = file_prefix();
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator(directory_, failed)) {
    const auto name = entry.path().filename().string();
    const auto dot = name.rfind('.');
    if (!name.starts_with(prefix) || dot < prefix.size() || entry.path() == path_) continue;
    const auto pid = parse_pid(std::string_view(name).substr(prefix.size(), dot - prefix.size()));
    if (!pid) continue;
    removed += static_cast<int>(remove_if_dead(entry.path(), *pid, name.substr(dot + 1)));
  }
  return removed;
}

bool JobRecord::remove_if_dead(const std::string& path, int pid, const std::string& started) const {
  if (start_of(pid) == started) return false;
  const FileDescriptor record(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!record.valid() || !is_trusted(record.get())) return false;
  const auto files = parse(read_all(record.get()));
  if (!files || files->name != files_.name) return false;
  if (::flock(record.get(), LOCK_EX | LOCK_NB) != 0)
    return false;  // a rank lives, or a rank of
                   // this job is faster
  // In a container mpirun has the same number again after a restart, and with it the same names.
  if (files->session_directory != files_.session_directory) {
    remove_session(files->session_directory);
  }
  if (files->job_id != files_.job_id || files->segment_directory != files_.segment_directory) {
    remove_segments(*files);
  }
  ::unlink(path.c_str());
  log::info("removed what a dead job of '{}' left: {}, job {}", files->name,
            files->session_directory, files->job_id);
  return true;
}

}  // namespace millrace::comm
