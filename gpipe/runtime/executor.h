// Executor: runs a compiled program on a pool of workers, by readiness of data.
//
// There is no clock and no barrier: each worker goes through its own steps in order, and a step
// starts as soon as what it receives is there. The first error wins: it cancels the run, the other
// workers stop before their next step, and the caller is told which action it was.
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
#include "gpipe/runtime/observer.h"
#include "gpipe/runtime/transport.h"
#include "gpipe/runtime/worker_pool.h"
#include "gpipe/schedule/program.h"

namespace gpipe::internal {

// What a step does: gets the received payloads (in the order of Step::receives) and fills `sent`,
// which has one entry for each of Step::sends. Runs on the step's worker.
template <typename Payload>
using Handler = std::function<void(const Action& action, std::vector<Payload>& received,
                                   std::vector<Payload>& sent)>;

struct ExecuteOptions {
  // [thread of the pool] the worker of the program that it runs. Those that are not named run
  // elsewhere, in another process say. Empty: each thread runs the worker of its number.
  std::vector<int32_t> placement;
  Observer observer;
  // Called once on each worker, and has to call `steps`: the place for what must surround a
  // worker's steps, thread-local state for example.
  std::function<void(int32_t worker, const std::function<void()>& steps)> around;
};

// The first error of a run.
struct RunFailure {
  std::exception_ptr error;
  // What the worker was doing or sending; none: the observer, `around` or the transport failed.
  std::optional<Action> action;
};

namespace executor {

// What the workers of one run share.
template <typename Payload>
struct Run {
  const Program& program;
  Transport<Payload>& transport;
  const Handler<Payload>& handler;
  const ExecuteOptions& options;
  FirstError error;
  std::optional<Action> failed_action;  // written by the worker whose error is the first

  void observe(Event::Edge edge, const Action& action, int32_t worker) const {
    if (!options.observer) return;
    options.observer({edge, action, worker, std::chrono::steady_clock::now()});
  }

  void fail(std::optional<Action> action) {
    if (error.set(std::current_exception())) failed_action = action;
    transport.cancel();
  }

  // `action` is that of the step while it may be blamed.
  void steps(int32_t worker, std::optional<Action>& action) {
    std::vector<Payload> received;
    std::vector<Payload> sent;
    for (const Step& step : program.workers[worker]) {
      received.clear();
      received.resize(step.receives.size());
      if (!transport.receive(worker, step.receives, received)) return;
      // A worker whose inputs are all there would not notice a cancelled run in receive().
      if (transport.cancelled()) return;
      stay_if_exiting();
      sent.clear();
      sent.resize(step.sends.size());
      observe(Event::Edge::kBegin, step.action, worker);
      action = step.action;
      handler(step.action, received, sent);
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

// Runs the steps of `program` that are this process's once, and returns when all its workers are
// done with them; then with the first error, if there was one.
//
// Requirements: the pool has a thread for each worker that it is to run (the others have nothing to
// do); the program was compiled from a schedule that verify() accepts (otherwise workers may wait
// for each other for ever). Guarantees: whatever handler, observer, `around` and transport throw is
// returned and not thrown, and nothing of this run goes on then.
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
  const int64_t workers = static_cast<int64_t>(
      options.placement.empty() ? program.workers.size() : options.placement.size());
  pool.run([&](int64_t thread) {
    if (thread >= workers) return;
    run.work(options.placement.empty() ? static_cast<int32_t>(thread) : options.placement[thread]);
  });
  if (std::exception_ptr error = run.error.take()) return RunFailure{error, run.failed_action};
  return std::nullopt;
}

}  // namespace gpipe::internal

#endif  // GPIPE_RUNTIME_EXECUTOR_H_
