// Processes: what a pipeline needs of the other processes that it runs over.
//
// gpipe/distributed implements it over c10d. A pipeline in one process has none.
#ifndef GPIPE_INTERNAL_PROCESSES_PROCESSES_H_
#define GPIPE_INTERNAL_PROCESSES_PROCESSES_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gpipe/internal/tensors/packet.h"
#include "gpipe/runtime/transport.h"
#include "gpipe/schedule/program.h"

namespace gpipe::internal {

// All processes make the same calls in the same order. Whoever does not is named, on all of them.
//
// Thread-safety: one call at a time, which may come from any thread.
class Processes {
 public:
  virtual ~Processes() = default;

  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;
  // Numbers what the processes make in the same order, pipelines say: 0, 1, ... In a call: the
  // next one, until take_number() says that it is made. That comes behind the last exchange of the
  // call, so that all take it, or none.
  virtual int64_t next_number() = 0;
  virtual void take_number() = 0;

  // One call, e.g. a step, from its begin to its end; see in_call().
  class Call {
   public:
    virtual ~Call() = default;
    // This process has done its part, or throws what all of them throw.
    virtual void done() = 0;
    // Called where an exception is handled that ends the call here: all others stop, and learn why.
    virtual void failed() noexcept = 0;
    // Called where what is handled is thrown by all processes at once: they may go on.
    virtual void failed_on_all() noexcept = 0;
  };
  // Throws DistributedFailure if another process has failed since the last call.
  virtual std::unique_ptr<Call> begin_call() = 0;

  // The following are called in a call, and throw DistributedFailure if another process fails.

  // Each process gives a value; all get the values of all, by rank. At most 500 kB in all; see
  // exchange_long(). `is_patient`: the others come from work of any length.
  virtual std::vector<std::string> exchange(const std::string& name, const std::string& value,
                                            bool is_patient) = 0;
  // Throws on all processes, naming two values, if `value` is not the same everywhere. At most a
  // megabyte.
  virtual void agree(const std::string& name, const std::string& value) = 0;

  // A message to another process, or the room for one from it: contiguous, on the CPU.
  struct Parcel {
    int64_t process = 0;
    at::Tensor bytes;
  };
  // Sends and receives all of them, and returns when all have arrived. Between two processes they
  // go in the order of the lists, and each is received into as many bytes, or more.
  virtual void move(const std::vector<Parcel>& sends, const std::vector<Parcel>& receives) = 0;

  // The transport of one run.
  class Run : public Transport<Packet> {
   public:
    // After a run without a failure: waits until all that was sent has arrived.
    virtual void finish() = 0;
    // Whether packets are handed to it, and come, on the device that begin_run() was given; else
    // they are on the CPU.
    virtual bool is_on_device() const { return false; }
  };
  // Whether workers of one process, too, get copies of each other's packets. For tests.
  virtual bool copies_within() const { return false; }
  // What is learnt in the runs of one program. Whoever keeps the program keeps it.
  class Messages {
   public:
    virtual ~Messages() = default;
  };
  // `program` outlives the run. `messages`: null in the first run of the program. `current_layer`:
  // what a stage of this process runs, to say where an exception was thrown. `device`: that of all
  // stages of this process.
  virtual std::unique_ptr<Run> begin_run(const Program& program,
                                         const std::vector<int64_t>& process_of_worker,
                                         std::shared_ptr<Messages>& messages,
                                         std::function<std::string(int64_t stage)> current_layer,
                                         c10::Device device) = 0;
};

// As Processes::exchange(), of values of any length: what is too long for one message goes in
// several.
std::vector<std::string> exchange_long(Processes& processes, const std::string& name,
                                       const std::string& value, bool is_patient = false);

// What is thrown by all processes at once, because all of them found the same: no process has
// failed, and the next call may follow. Processes::agree() and exchange() throw it where they do
// not return the same on all.
//
// It is thrown within in_call(), which throws `error` instead.
struct FoundByAll {
  std::exception_ptr error;
};
// Throws it, with a c10::ValueError.
[[noreturn]] void found_by_all(const std::string& what);

// Throws c10::ValueError where inside_pipeline() is true. `what`: as a sentence begins.
void check_outside_of_pipelines(const char* what);

// Runs `body` as a call of all processes; alone, if there are none. Throws c10::ValueError in the
// midst of a pipeline's run.
//
// Requirements: `body` exchanges something in each call, and nothing behind its last exchange can
// throw: a call goes well in all processes, or in none.
template <typename Body>
auto in_call(Processes* processes, const Body& body) {
  check_outside_of_pipelines(
      processes == nullptr ? "what needs a pipeline at rest (clip_grad_norm_, save_checkpoint ...)"
                           : "what all processes call together (step, clip_grad_norm_, "
                             "save_checkpoint, ZeroOptimizer::step ...)");
  if (processes == nullptr) return body();
  const std::unique_ptr<Processes::Call> call = processes->begin_call();
  try {
    auto result = body();
    call->done();
    return result;
  } catch (const FoundByAll& found) {
    try {
      std::rethrow_exception(found.error);
    } catch (...) {
      call->failed_on_all();
      throw;
    }
  } catch (...) {
    call->failed();
    throw;
  }
}

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_PROCESSES_PROCESSES_H_
