// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/spawn.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <system_error>

#include "common/system/file_descriptor.h"

extern char** environ;

namespace millrace::tokenizer {

namespace {

// The descriptor at which the child finds its program.
constexpr int kScriptDescriptor = 3;
// Above all descriptors that the child gets: a program started without standard input has files at
// 0.
constexpr int kAboveOfChild = 10;

Error system_error(const char* what, int number) {
  return error(Errc::kIo, "{}: {}", what, std::generic_category().message(number));
}

Result<FileDescriptor> script_file() {
  FileDescriptor file(::memfd_create("millrace_tokenizer.py", MFD_CLOEXEC));
  if (!file.valid()) return system_error("memfd_create", errno);
  for (std::string_view left = tokenizer_script(); !left.empty();) {
    const ssize_t written = ::write(file.get(), left.data(), left.size());
    if (written < 0) return system_error("writing the tokenizer's program", errno);
    left.remove_prefix(static_cast<size_t>(written));
  }
  return file;
}

Result<FileDescriptor> moved_up(int descriptor) {
  FileDescriptor copy(::fcntl(descriptor, F_DUPFD_CLOEXEC, kAboveOfChild));
  if (!copy.valid()) return system_error("fcntl", errno);
  return copy;
}

class Attributes {
 public:
  Attributes() {
    posix_spawnattr_init(&attributes_);
    sigset_t none;
    sigset_t all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes_, &none);
    posix_spawnattr_setsigdefault(&attributes_, &all);
    posix_spawnattr_setpgroup(&attributes_, 0);
    posix_spawnattr_setflags(
        &attributes_, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  }
  ~Attributes() { posix_spawnattr_destroy(&attributes_); }
  Attributes(const Attributes&) = delete;
  Attributes& operator=(const Attributes&) = delete;

  const posix_spawnattr_t* get() const { return &attributes_; }

 private:
  posix_spawnattr_t attributes_;
};

class Actions {
 public:
  Actions(int socket, int script) {
    posix_spawn_file_actions_init(&actions_);
    posix_spawn_file_actions_adddup2(&actions_, socket, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions_, STDERR_FILENO, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions_, script, kScriptDescriptor);
    posix_spawn_file_actions_addclosefrom_np(&actions_, kScriptDescriptor + 1);
  }
  ~Actions() { posix_spawn_file_actions_destroy(&actions_); }
  Actions(const Actions&) = delete;
  Actions& operator=(const Actions&) = delete;

  const posix_spawn_file_actions_t* get() const { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_;
};

}  // namespace

Result<pid_t> spawn_tokenizer(const ProcessOptions& options, int socket) {
  MR_ASSIGN_OR_RETURN(const FileDescriptor file, script_file());
  MR_ASSIGN_OR_RETURN(const FileDescriptor script, moved_up(file.get()));
  MR_ASSIGN_OR_RETURN(const FileDescriptor input, moved_up(socket));
  const std::string memory = std::to_string(options.memory_bytes);
  const std::string parent = std::to_string(::getpid());
  std::string program = options.python;
  std::string path = fmt::format("/dev/fd/{}", kScriptDescriptor);
  const std::string takes = options.chat ? "chat" : "text";
  std::array<std::string, 6> words = {program, path, options.directory, memory, parent, takes};
  std::array<char*, 7> arguments{};
  for (size_t i = 0; i < words.size(); ++i) arguments[i] = words[i].data();
  const Attributes attributes;
  const Actions actions(input.get(), script.get());
  pid_t pid = -1;
  const int status = ::posix_spawnp(&pid, program.c_str(), actions.get(), attributes.get(),
                                    arguments.data(), environ);
  if (status != 0) {
    return error(Errc::kIo, "cannot start '{}': {}", options.python,
                 std::generic_category().message(status));
  }
  return pid;
}

}  // namespace millrace::tokenizer
