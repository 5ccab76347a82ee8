// InterruptScope: Ctrl-C asks a command to stop after its current step and to report what was
// reached.
#ifndef GPIPE_COMMAND_INTERRUPT_H_
#define GPIPE_COMMAND_INTERRUPT_H_

#include <csignal>
#include <exception>

namespace gpipe::command {

// The exit code of a program that SIGINT stopped, as shells report it.
constexpr int kInterruptedExitCode = 130;

// Thrown by work that is interrupted and cannot return early. run_command() catches it and returns
// kInterruptedExitCode.
struct Interrupted : std::exception {
  const char* what() const noexcept override { return "interrupted"; }
};

// While it lives, the first SIGINT, SIGTERM or SIGHUP only sets a flag and says so on stderr. A
// second signal ends the process at once, as usual. A signal that was ignored before, as under
// nohup, stays ignored.
//
// Requirements: at most one object may live at a time (std::logic_error).
//
// Thread-safety: any thread may call `requested()`.
//
// Example:
//   InterruptScope interrupt;
//   while (!interrupt.requested() && more()) step();
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

  bool requested() const noexcept;
  // Throws Interrupted if a stop was requested.
  void check() const;

 private:
  struct sigaction previous_[3];
};

}  // namespace gpipe::command

#endif  // GPIPE_COMMAND_INTERRUPT_H_
