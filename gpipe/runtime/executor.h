// Executor: runs a compiled program on a pool of workers, as soon as the data of each step is
// ready.
//
// There is no clock and no barrier. Each worker runs its own steps in order. A step starts as soon
// as the payloads that it receives have arrived. The first error counts. It cancels the run, the
// other workers stop before their next step, and the caller learns which action failed.
#ifndef GPIPE_RUNTIME_EXECUTOR_H_
#define GPIPE_RUNTIME_EXECUTOR_H_

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "gpipe/runtime/exit_gate.h"
#include "gpipe/runtime/first_error.h"
#include "gpipe/runtime/interruption.h"
#include "gpipe/runtime/observer.h"
#include "gpipe/runtime/transport.h"
#include "gpipe/runtime/worker_pool.h"
#include "gpipe/schedule/program.h"

namespace gpipe::internal {

// The work of a step. A handler gets the received payloads (in the order of Step::receives) and
// fills `sent`, which has one entry for each of Step::sends. It runs on the step's worker.
template <typename Payload>
using Handler = std::function<void(const Action& action, std::vector<Payload>& received,
                                   std::vector<Payload>& sent)>;

struct ExecuteOptions {
  // [thread of the pool] the program's worker that this thread runs. Workers that `placement` does
  // not name run elsewhere, e.g. in another process. If `placement` is empty, each thread runs the
  // worker with the same number.
  std::vector<int32_t> placement;
  // The caller's own object, which may have state, or null for no observer.
  const Observer* observer = nullptr;
  // `around` is called once on each worker, and must call `steps`. It sets up what must surround a
  // worker's steps, e.g. thread-local state.
  std::function<void(int32_t worker, const std::function<void()>& steps)> around;
};

// The first error of a run.
struct RunFailure {
  std::exception_ptr error;
  // The action that the worker ran, or whose results it sent. Nullopt if the observer, `around` or
  // a receive failed, or the run was interrupted.
  std::optional<Action> action;
};

namespace executor {

// The data that the workers of one run share.
template <typename Payload>
struct Run {
  const Program& program;
  Transport<Payload>& transport;
  const Handler<Payload>& handler;
  const ExecuteOptions& options;
  FirstError error;
  std::optional<Action> failed_action;            // written by the first worker that fails
  InterruptionCheck check_each_action = nullptr;  // set if the caller runs the actions

  void observe(Event::Edge edge, const Action& action, int32_t worker, bool failed = false) const {
    if (options.observer == nullptr || !*options.observer) return;
    (*options.observer)({edge, action, worker, std::chrono::steady_clock::now(), failed});
  }

  void handle(const Action& action, int32_t worker, std::vector<Payload>& received,
              std::vector<Payload>& sent) const {
    try {
      handler(action, received, sent);
    } catch (...) {
      try {
        observe(Event::Edge::kEnd, action, worker, /*failed=*/true);
      } catch (...) {  // the action's error says more
      }
      throw;
    }
  }

  void fail(std::optional<Action> action) {
    if (error.set(std::current_exception())) failed_action = action;
    transport.cancel();
  }

  // `action` is set to the step's action whenever an error would be blamed on that action.
  void steps(int32_t worker, std::optional<Action>& action) {
    std::vector<Payload> received;
    std::vector<Payload> sent;
    for (const Step& step : program.workers[worker]) {
      received.clear();
      received.resize(step.receives.size());
      if (!transport.receive(worker, step.receives, received)) return;
      stay_if_exiting();
      if (check_each_action != nullptr) check_each_action();
      sent.clear();
      sent.resize(step.sends.size());
      observe(Event::Edge::kBegin, step.action, worker);
      action = step.action;
      handle(step.action, worker, received, sent);
      action.reset();
      observe(Event::Edge::kEnd, step.action, worker);
      action = step.action;
      transport.send(step.sends, sent);
      action.reset();
    }
  }

  void work(int32_t worker) {
    if (program.workers[worker].empty()) return;
    std::optional<Action> action;
    try {
      if (options.around) {
        options.around(worker, [&] { steps(worker, action); });
      } else {
        steps(worker, action);
      }
    } catch (...) {
      fail(action);
    }
  }
};

}  // namespace executor

// Runs the steps of `program` that belong to this process once. Returns when all workers of this
// process are done. Returns the first error, or nullopt if there was none.
//
// Requirements: the pool has a thread for each worker that it is to run (additional threads have
// nothing to do). The program was compiled from a schedule that verify() accepts. Otherwise workers
// may wait for each other forever.
//
// Guarantees: whatever the handler, the observer, `around` or the transport throws is returned, not
// thrown. When execute() returns, nothing of this run is still running.
//
// Example:
//   Mailboxes<std::string> mailboxes(program.slots);
//   auto failure = execute<std::string>(pool, program, mailboxes, handler);
//   if (failure) std::rethrow_exception(failure->error);
template <typename Payload>
[[nodiscard]] std::optional<RunFailure> execute(WorkerPool& pool, const Program& program,
                                                Transport<Payload>& transport,
                                                const Handler<Payload>& handler,
                                                const ExecuteOptions& options = {}) {
  executor::Run<Payload> run{program, transport, handler, options, {}, {}};
  const InterruptionCheck check = interruption_check();
  std::function<void()> while_waiting;
  if (check != nullptr && pool.is_inline()) run.check_each_action = check;
  if (check != nullptr && !pool.is_inline()) {
    while_waiting = [&] {
      try {
        check();
      } catch (...) {
        run.fail(std::nullopt);
      }
    };
  }
  const int64_t workers = static_cast<int64_t>(
      options.placement.empty() ? program.workers.size() : options.placement.size());
  pool.run(
      [&](int64_t thread) {
        if (thread >= workers) return;
        run.work(options.placement.empty() ? static_cast<int32_t>(thread)
                                           : options.placement[thread]);
      },
      while_waiting);
  if (std::exception_ptr error = run.error.take()) return RunFailure{error, run.failed_action};
  return std::nullopt;
}

}  // namespace gpipe::internal

#endif  // GPIPE_RUNTIME_EXECUTOR_H_
