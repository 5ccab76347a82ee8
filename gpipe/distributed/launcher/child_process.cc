#include "gpipe/distributed/launcher/child_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "gpipe/distributed/launcher/core_shares.h"

namespace gpipe::distributed {
namespace {

constexpr int kNotFound = 127;
constexpr int kNotRun = 126;

// A pipe whose ends are closed when this process or a child starts a program (O_CLOEXEC).
struct Pipe {
  Pipe() {
    if (pipe2(ends, O_CLOEXEC) != 0) {
      throw StartError("no pipe to another process: " + std::string(std::strerror(errno)), kNotRun);
    }
  }
  ~Pipe() {
    close_end(0);
    close_end(1);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  void close_end(int end) {
    if (ends[end] >= 0) close(std::exchange(ends[end], -1));
  }
  int release(int end) { return std::exchange(ends[end], -1); }

  int ends[2] = {-1, -1};
};

// The step in which a child failed, and why.
enum class Step { kInput, kOutput, kCores, kDirectory, kProgram };
struct Failure {
  Step step;
  int error;
};

std::string describe(const Failure& failure, const ChildOptions& options) {
  const std::string why = std::strerror(failure.error);
  switch (failure.step) {
    case Step::kInput:
      return "no standard input for " + options.program + ": " + why;
    case Step::kOutput:
      return "no output for " + options.program + ": " + why;
    case Step::kCores:
      return options.program + " cannot be bound to its cores: " + why;
    case Step::kDirectory:
      return options.program + " cannot be started in " + options.directory + ": " + why;
    case Step::kProgram:
      break;
  }
  if (failure.error == ENOEXEC) {
    return options.program +
           " is neither a program of this machine nor a script whose first line names its "
           "interpreter (#!/bin/sh)";
  }
  // find_program() has just found the program, so the missing file must be the program's
  // interpreter.
  if (failure.error == ENOENT) {
    return options.program +
           " cannot be started: the interpreter that it names (a script's #! line, or a program's "
           "loader) does not exist";
  }
  return options.program + " cannot be started: " + why;
}

std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> result;
  for (const std::string& word : words) result.push_back(const_cast<char*>(word.c_str()));
  result.push_back(nullptr);
  return result;
}

void give_back(const ParentState& parent) {
  rlimit files = {};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = parent.open_files;
    setrlimit(RLIMIT_NOFILE, &files);
  }
  sigaction(SIGPIPE, &parent.pipe_signal, nullptr);
  sigaction(SIGCHLD, &parent.child_signal, nullptr);
  sigprocmask(SIG_SETMASK, &parent.signal_mask, nullptr);
}

// The child's standard streams; `input` is -1 for /dev/null.
struct Streams {
  int input, output, error;
};

// Turns the child into the program. Runs in the child, and returns only if something fails.
Failure become(const ChildOptions& options, char* const* arguments, char* const* environment,
               pid_t parent, Streams streams) {
  setsid();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(kNotRun);  // the parent died before prctl() was called
  if (streams.input < 0) streams.input = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (streams.input < 0 || dup2(streams.input, STDIN_FILENO) < 0) return {Step::kInput, errno};
  if (dup2(streams.output, STDOUT_FILENO) < 0 || dup2(streams.error, STDERR_FILENO) < 0) {
    return {Step::kOutput, errno};
  }
  if (!options.cores.empty() && !bind_to_cores(options.cores)) return {Step::kCores, errno};
  if (!options.directory.empty() && chdir(options.directory.c_str()) != 0) {
    return {Step::kDirectory, errno};
  }
  if (options.parent) give_back(*options.parent);
  execve(options.program.c_str(), arguments, environment);
  return {Step::kProgram, errno};
}

// Whether `path` is a file that may be run. If it exists but may not be run, *why becomes the
// reason.
bool is_program(const std::string& path, std::string* why) {
  struct stat status = {};
  if (stat(path.c_str(), &status) != 0) {
    if (errno != ENOENT && errno != ENOTDIR) *why = std::strerror(errno);
    return false;
  }
  if (S_ISDIR(status.st_mode)) {
    *why = "it is a folder";
  } else if (access(path.c_str(), X_OK) != 0) {
    *why = errno == EACCES ? "it is not marked as a program (chmod +x)" : std::strerror(errno);
  }
  return why->empty();
}

const char* signal_name(int signal) {
  switch (signal) {
#define GPIPE_NAME(name) \
  case name:             \
    return #name
    GPIPE_NAME(SIGABRT);
    GPIPE_NAME(SIGALRM);
    GPIPE_NAME(SIGBUS);
    GPIPE_NAME(SIGFPE);
    GPIPE_NAME(SIGHUP);
    GPIPE_NAME(SIGILL);
    GPIPE_NAME(SIGINT);
    GPIPE_NAME(SIGIO);
    GPIPE_NAME(SIGKILL);
    GPIPE_NAME(SIGPIPE);
    GPIPE_NAME(SIGPROF);
    GPIPE_NAME(SIGPWR);
    GPIPE_NAME(SIGQUIT);
    GPIPE_NAME(SIGSEGV);
    GPIPE_NAME(SIGSTKFLT);
    GPIPE_NAME(SIGSYS);
    GPIPE_NAME(SIGTERM);
    GPIPE_NAME(SIGTRAP);
    GPIPE_NAME(SIGUSR1);
    GPIPE_NAME(SIGUSR2);
    GPIPE_NAME(SIGVTALRM);
    GPIPE_NAME(SIGXCPU);
    GPIPE_NAME(SIGXFSZ);
#undef GPIPE_NAME
    default:
      return nullptr;
  }
}

}  // namespace

std::string find_program(const std::string& program, const std::string& path,
                         const std::string& directory) {
  if (program.empty()) throw StartError("the program's name is empty", kNotFound);
  const auto in_directory = [&](const std::string& file) {
    return file.front() == '/' || directory.empty() ? file : directory + "/" + file;
  };
  std::string why;
  if (program.find('/') != std::string::npos) {
    std::string file = in_directory(program);
    if (is_program(file, &why)) return file;
    if (!why.empty()) throw StartError(file + " cannot be started: " + why, kNotRun);
    // A text that begins with // is a label, as the user would give it to bazel run.
    std::string advice;
    if (program.rfind("//", 0) == 0) {
      advice = "; build it, and give the file, bazel-bin" + program.substr(1);
      std::replace(advice.begin(), advice.end(), ':', '/');
    }
    throw StartError("there is no program " + file + advice, kNotFound);
  }
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find(':', begin), path.size());
    const std::string folder = path.substr(begin, end - begin);
    begin = end + 1;
    std::string file = in_directory((folder.empty() ? "." : folder) + "/" + program);
    std::string ignored;
    if (is_program(file, &ignored)) return file;
  }
  const bool here = is_program(in_directory(program), &why);
  throw StartError("there is no program " + program + " in the folders of PATH" +
                       (here ? "; for the one in this folder give ./" + program : ""),
                   kNotFound);
}

ChildProcess start_child(const ChildOptions& options) {
  std::optional<Pipe> input, error;
  if (options.input == ChildInput::kPipe) input.emplace();
  if (!options.shares_error) error.emplace();
  Pipe output;
  Pipe failed;  // the system closes the child's end when the program begins
  const std::vector<char*> arguments = pointers(options.arguments);
  const std::vector<char*> environment = pointers(options.environment);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) {
    throw StartError("no further process can be started: " + std::string(std::strerror(errno)) +
                         " (ulimit -u says how many there may be)",
                     kNotRun);
  }
  if (child == 0) {
    const int none = options.input == ChildInput::kParents ? STDIN_FILENO : -1;
    const Failure failure = become(
        options, arguments.data(), environment.data(), parent,
        {input ? input->ends[0] : none, output.ends[1], error ? error->ends[1] : STDERR_FILENO});
    [[maybe_unused]] const ssize_t told = write(failed.ends[1], &failure, sizeof failure);
    _exit(kNotRun);
  }
  failed.close_end(1);
  Failure failure = {};
  ssize_t size = 0;
  do {
    size = read(failed.ends[0], &failure, sizeof failure);
  } while (size < 0 && errno == EINTR);
  if (size == static_cast<ssize_t>(sizeof failure)) {
    waitpid(child, nullptr, 0);
    throw StartError(describe(failure, options), kNotRun);
  }
  fcntl(output.ends[0], F_SETFL, O_NONBLOCK);
  if (error) fcntl(error->ends[0], F_SETFL, O_NONBLOCK);
  return {child, input ? input->release(1) : -1, output.release(0), error ? error->release(0) : -1};
}

std::string describe_signal(int signal) {
  const char* name = signal_name(signal);
  const std::string number = "signal " + std::to_string(signal);
  return name == nullptr ? number : std::string(name) + " (" + number + ")";
}

std::string describe_end(int status) {
  if (WIFSIGNALED(status)) {
    return "was ended by " + describe_signal(WTERMSIG(status)) +
           (WCOREDUMP(status) ? ", core dumped" : "");
  }
  const int code = WEXITSTATUS(status);
  const char* signal = code > 128 ? signal_name(code - 128) : nullptr;
  return "ended with exit code " + std::to_string(code) +
         (signal == nullptr ? "" : std::string(", by which shells report ") + signal);
}

int exit_code_of(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

bool is_stopped(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string stat((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const std::size_t name_end = stat.rfind(") ");
  return name_end != std::string::npos && stat.compare(name_end + 2, 1, "T") == 0;
}

}  // namespace gpipe::distributed
