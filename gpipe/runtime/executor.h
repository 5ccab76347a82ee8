// Executor: runs a compiled program on a pool of workers, by readiness of data.
//
// There is no clock and no barrier: each worker goes through its own steps in order, and a step
// starts as soon as what it receives is there. The first error wins: it cancels the run, the other
// workers stop before their next step, and the caller gets that very exception.
#ifndef GPIPE_RUNTIME_EXECUTOR_H_
#define GPIPE_RUNTIME_EXECUTOR_H_

#include <cstdint>
#include <exception>
#include <functional>
#include <utility>
#include <vector>

#include "gpipe/runtime/exit_gate.h"
#include "gpipe/runtime/first_error.h"
#include "gpipe/runtime/mailboxes.h"
#include "gpipe/runtime/observer.h"
#include "gpipe/runtime/worker_pool.h"
#include "gpipe/schedule/program.h"

namespace gpipe::internal {

// What a step does: gets the received payloads (in the order of Step::receives) and fills `sent`,
// which has one entry for each of Step::sends. Runs on the step's worker.
template <typename Payload>
using Handler = std::function<void(const Action& action, std::vector<Payload>& received,
                                   std::vector<Payload>& sent)>;

// Runs every step of `program` once and returns when all workers are done with it.
//
// Requirements: the pool has at least as many workers as the program (the others have nothing to
// do); the program was compiled from a schedule that verify() accepts (otherwise workers may wait
// for each other for ever). Guarantees: on an exception thrown by `handler` or `observer`, nothing
// of this run goes on after execute() has rethrown it, and payloads under way are released.
// `around` (may be empty) is called once on each worker and has to call its argument: the place for
// what must surround a worker's steps, thread-local state for example.
template <typename Payload>
void execute(
    WorkerPool& pool, const Program& program, const Handler<Payload>& handler,
    const Observer& observer = nullptr,
    const std::function<void(int64_t worker, const std::function<void()>&)>& around = nullptr) {
  Mailboxes<Payload> mailboxes(program.slots);
  FirstError error;
  auto run_steps = [&](int64_t worker) {
    std::vector<Payload> received;
    std::vector<Payload> sent;
    auto observe = [&](Event::Edge edge, const Action& action) {
      if (observer) {
        observer({edge, action, static_cast<int32_t>(worker), std::chrono::steady_clock::now()});
      }
    };
    for (const Step& step : program.workers[worker]) {
      received.clear();
      received.resize(step.receives.size());
      for (size_t i = 0; i < step.receives.size(); ++i) {
        if (!mailboxes.take(static_cast<int32_t>(worker), step.receives[i], &received[i])) return;
      }
      // A worker whose inputs are all there would not notice a cancelled run in take().
      if (mailboxes.cancelled()) return;
      stay_if_exiting();
      sent.clear();
      sent.resize(step.sends.size());
      observe(Event::Edge::kBegin, step.action);
      handler(step.action, received, sent);
      observe(Event::Edge::kEnd, step.action);
      for (size_t i = 0; i < step.sends.size(); ++i) {
        mailboxes.put(step.sends[i].worker, step.sends[i].slot, std::move(sent[i]));
      }
    }
  };
  pool.run([&](int64_t worker) {
    if (worker >= static_cast<int64_t>(program.workers.size()) || program.workers[worker].empty()) {
      return;
    }
    try {
      if (around) {
        around(worker, [&] { run_steps(worker); });
      } else {
        run_steps(worker);
      }
    } catch (...) {
      error.set(std::current_exception());
      mailboxes.cancel();
    }
  });
  error.rethrow();
}

}  // namespace gpipe::internal

#endif  // GPIPE_RUNTIME_EXECUTOR_H_
