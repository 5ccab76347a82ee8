#include "gpipe/testing/processes/rank_processes.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <thread>

namespace gpipe::distributed {
namespace {

constexpr std::chrono::seconds kPatience{30};

[[noreturn]] void run(int64_t rank, const RankProcesses::Main& main, int lines) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const auto say = [lines](const std::string& line) {
    std::string text = line;
    for (char& c : text) {
      if (c == '\n') c = '|';
    }
    text += '\n';
    // One call of write() suffices, because a pipe takes a few thousand bytes at once.
    if (write(lines, text.data(), text.size()) < 0) std::abort();
  };
  try {
    main(rank, say);
  } catch (const std::exception& error) {
    say(std::string("threw: ") + error.what());
    std::fflush(nullptr);
    _exit(1);
  }
  std::fflush(nullptr);
  _exit(0);
}

}  // namespace

RankProcesses::RankProcesses(int64_t size, const Main& main) {
  for (int64_t rank = 0; rank < size; ++rank) {
    int ends[2];
    if (pipe(ends) != 0) std::abort();
    const pid_t pid = fork();
    if (pid < 0) std::abort();
    if (pid == 0) {
      close(ends[0]);
      for (const Process& other : processes_) close(other.lines);
      run(rank, main, ends[1]);
    }
    close(ends[1]);
    processes_.push_back({pid, ends[0], ""});
  }
}

RankProcesses::~RankProcesses() {
  for (const Process& process : processes_) {
    if (process.pid > 0) kill(process.pid, SIGKILL);
  }
  for (const Process& process : processes_) {
    if (process.pid > 0) waitpid(process.pid, nullptr, 0);
    close(process.lines);
  }
}

std::string RankProcesses::next(int64_t rank) {
  Process& process = processes_.at(static_cast<std::size_t>(rank));
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (true) {
    const std::size_t end = process.text.find('\n');
    if (end != std::string::npos) {
      std::string line = process.text.substr(0, end);
      process.text.erase(0, end + 1);
      return line;
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return "nothing";
    pollfd polled{process.lines, POLLIN, 0};
    if (poll(&polled, 1, static_cast<int>(left.count())) <= 0) continue;
    char bytes[4096];
    const ssize_t count = read(process.lines, bytes, sizeof bytes);
    if (count <= 0) return "ended";
    process.text.append(bytes, static_cast<std::size_t>(count));
  }
}

void RankProcesses::send(int64_t rank, int signal) const {
  const pid_t pid = processes_.at(static_cast<std::size_t>(rank)).pid;
  // If the rank has ended, its pid is -1, and kill(-1) would send the signal to all processes of
  // the machine.
  if (pid > 0) kill(pid, signal);
}

std::string RankProcesses::how_it_ends(int64_t rank) {
  Process& process = processes_.at(static_cast<std::size_t>(rank));
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  int status = 0;
  while (waitpid(process.pid, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > deadline) return "never";
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  process.pid = -1;
  if (WIFSIGNALED(status)) return "by signal " + std::to_string(WTERMSIG(status));
  return WEXITSTATUS(status) == 0 ? "" : "with status " + std::to_string(WEXITSTATUS(status));
}

int64_t microseconds_now() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace gpipe::distributed
