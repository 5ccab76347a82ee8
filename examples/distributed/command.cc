#include "examples/distributed/command.h"

#include <exception>
#include <optional>
#include <stdexcept>

#include "command/run.h"
#include "gpipe/distributed/control/agreement.h"
#include "gpipe/distributed/failure.h"
#include "gpipe/distributed/wrong_usage.h"

namespace distributed {
namespace {

using gpipe::distributed::Disagreement;
using gpipe::distributed::DistributedFailure;

template <typename Type>
bool is(const std::exception& error) {
  return dynamic_cast<const Type*>(&error) != nullptr;
}

// Thrown by a process that has found no mistake itself, if other processes have found one.
class MistakeOfOthers : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

// Compares the mistakes that this process and the others have found.
class Mistakes {
 public:
  void connect() {
    has_tried_ = true;
    world_ = gpipe::World::from_environment();
  }
  const gpipe::World& world() const { return *world_; }

  // Called if this process has found no mistake. Throws if another process has found one.
  void expect_none() {
    const std::string mistake = compare("");
    if (!mistake.empty()) throw MistakeOfOthers(mistake);
  }

  // Called if another process has failed. Throws if that process has found a mistake.
  void look_for_cause() {
    try {
      expect_none();
    } catch (const MistakeOfOthers&) {
      throw;
    } catch (const std::exception&) {
      // If the other process is gone, its cause cannot be asked for, and the first error stays.
    }
  }

  // The message of this process about the mistake that ends it; empty if rank 0 reports it.
  std::string said_of(const std::exception& error) {
    const std::string own = gpipe::command::message_of(error);
    try {
      if (!has_tried_) connect();
      if (!world_) return own;
      std::string mistake = own;
      if (is<Disagreement>(error)) {
        // All processes throw this error. If one of them has failed because of a mistake that it
        // has found, that mistake is reported.
        const std::string cause = compare("");
        if (!cause.empty()) mistake = cause;
      } else if (!is<MistakeOfOthers>(error)) {
        mistake = compare(own);
      }
      is_said_by_rank_0_ = true;
      return world_->rank() == 0 ? mistake : "";
    } catch (const std::exception&) {
      return own;  // Maybe no other process is left to report the error.
    }
  }

  // Launchers end all processes when the first one has failed. That must not happen before rank 0
  // has said why.
  void wait_until_said() noexcept {
    if (!is_said_by_rank_0_) return;
    try {
      (void)compare("");
    } catch (const std::exception&) {
      // If the other processes have not waited, this one does not wait either.
    }
  }

 private:
  std::string compare(const std::string& own) {
    return gpipe::distributed::wrong_usage(*world_, own);
  }

  bool has_tried_ = false;  // whether this process has tried to connect
  bool is_said_by_rank_0_ = false;
  std::optional<gpipe::World> world_;
};

}  // namespace

int run_command(int argc, const char* const* argv, const std::string& usage,
                const std::function<void()>& read,
                const std::function<std::function<int()>(const gpipe::World& processes)>& prepare,
                const gpipe::command::FlagSet& flags,
                const std::function<std::function<int()>()>& alone) {
  Mistakes mistakes;
  const auto prepare_all = [&]() -> std::function<int()> {
    read();
    if (alone != nullptr) {
      if (std::function<int()> work = alone()) return work;
    }
    mistakes.connect();
    mistakes.expect_none();
    std::function<int()> work;
    try {
      work = prepare(mistakes.world());
    } catch (const DistributedFailure&) {
      mistakes.look_for_cause();
      throw;
    }
    mistakes.expect_none();
    return work;
  };
  const int code = gpipe::command::run_command(
      argc, argv, usage, prepare_all, flags,
      [&](const std::exception& error) { return mistakes.said_of(error); });
  mistakes.wait_until_said();
  return code;
}

}  // namespace distributed
