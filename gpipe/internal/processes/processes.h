// Processes: the operations that a pipeline needs to work with the other processes that it runs
// over.
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

// All processes make the same calls in the same order. If a rank does not, all of them throw an
// error that names it.
//
// Thread-safety: one call at a time, which may come from any thread.
class Processes {
 public:
  virtual ~Processes() = default;

  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;
  // The number of the next object that the processes make in the same order, for example a
  // pipeline: 0, 1, ... It stays the same until take_number(). Call take_number() behind the last
  // exchange of the call that makes the object, so that all processes take the number, or none.
  virtual int64_t next_number() = 0;
  virtual void take_number() = 0;

  // One call, e.g. a step, from its start to its end (see in_call()).
  class Call {
   public:
    virtual ~Call() = default;
    // Says that this process has done its part. Throws what all processes throw if the call failed.
    virtual void done() = 0;
    // Called in a handler of an exception that ends the call in this process: all other processes
    // stop, and learn why.
    virtual void failed() noexcept = 0;
    // Called in a handler of an exception that all processes throw at once. The processes may go
    // on.
    virtual void failed_on_all() noexcept = 0;
  };
  // Throws DistributedFailure if another process has failed since the last call.
  virtual std::unique_ptr<Call> begin_call() = 0;

  // The functions below are called in a call, and throw DistributedFailure if another process
  // fails.

  // Each process gives a value; all get the values of all, by rank. The values may have at most 500
  // kB in all (see exchange_long()). If `is_patient`, it waits without a limit, because other
  // processes may still be computing.
  virtual std::vector<std::string> exchange(const std::string& name, const std::string& value,
                                            bool is_patient) = 0;
  // Throws on all processes, naming two values, if `value` is not the same everywhere. The value
  // may have at most a megabyte.
  virtual void agree(const std::string& name, const std::string& value) = 0;

  // A message to another process, or the memory for a message from that process. The bytes are
  // contiguous, on the CPU.
  struct Parcel {
    int64_t process = 0;
    at::Tensor bytes;
  };
  // Sends and receives all of these messages, and returns when all have arrived. Between two
  // processes they go in the order of the lists. Each message is received into as many bytes as it
  // has, or more.
  virtual void move(const std::vector<Parcel>& sends, const std::vector<Parcel>& receives) = 0;

  // The transport of one run.
  class Run : public Transport<Packet> {
   public:
    // Called after a run without a failure. Waits until all that was sent has arrived.
    virtual void finish() = 0;
    // Whether packets are handed to this transport, and arrive, on the device that begin_run() was
    // given. If not, they are on the CPU.
    virtual bool is_on_device() const { return false; }
  };
  // What earlier runs of a program have found out for later ones, e.g. the sizes of its messages.
  // The object is kept with the program.
  class Messages {
   public:
    virtual ~Messages() = default;
  };
  // `program` outlives the run. `messages`: null in the first run of the program. `current_layer`
  // says what a stage of this process runs, for the message of an exception. `device`: the device
  // that all stages of this process are on.
  virtual std::unique_ptr<Run> begin_run(const Program& program,
                                         const std::vector<int64_t>& process_of_worker,
                                         std::shared_ptr<Messages>& messages,
                                         std::function<std::string(int64_t stage)> current_layer,
                                         c10::Device device) = 0;
};

// Like Processes::exchange(), but for values of any length: a value that is too long for one
// message goes in several messages.
std::vector<std::string> exchange_long(Processes& processes, const std::string& name,
                                       const std::string& value, bool is_patient = false);

// The exception that all processes throw at once, because all of them found the same error: no
// process has failed, and the next call may follow. Processes::agree() and exchange() throw it if
// they do not return the same on all processes.
//
// FoundByAll is thrown within in_call(), which throws `error` instead.
struct FoundByAll {
  std::exception_ptr error;
};
// Throws FoundByAll with a c10::ValueError as its error.
[[noreturn]] void found_by_all(const std::string& what);

// Throws c10::ValueError if inside_pipeline() is true. `what` begins the message.
void check_outside_of_pipelines(const char* what);

// Runs `body` as a call of all processes, or alone if `processes` is null. Throws c10::ValueError
// in the middle of a pipeline's run.
//
// Requirements: `body` exchanges something in each call, and nothing behind its last exchange can
// throw, so that a call succeeds in all processes or in none.
template <typename Body>
auto in_call(Processes* processes, const Body& body) {
  check_outside_of_pipelines(
      processes == nullptr
          ? "a function that needs a pipeline at rest (clip_grad_norm_, save_checkpoint ...)"
          : "a function that all processes call together (step, clip_grad_norm_, "
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
