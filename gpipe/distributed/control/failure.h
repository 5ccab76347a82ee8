// DistributedFailure: why a run over several processes stopped; it is the same on every rank.
//
// A Fault says what went wrong on one rank. It needs neither LibTorch nor a network.
#ifndef GPIPE_DISTRIBUTED_CONTROL_FAILURE_H_
#define GPIPE_DISTRIBUTED_CONTROL_FAILURE_H_

#include <cstdint>
#include <ostream>
#include <stdexcept>
#include <string>
#include <vector>

namespace gpipe::distributed {

enum class FaultKind : uint8_t {
  kException,  // it threw
  kDeath,      // its connections closed: it ended, was killed, or its machine went down
  kLeft,       // it ended its part of the run while others needed it
  kSilence,    // nothing came from it for as long as the user allows
};

// A value.
struct Fault {
  FaultKind kind = FaultKind::kException;
  int64_t rank = -1;
  std::string host;
  // For an exception: where it was thrown. -1 and empty if that is not known.
  int64_t stage = -1;
  int64_t micro_batch = -1;
  std::string layer;  // "layer 5 ('relu')", or "the loss function"
  std::string text;   // the exception's message, or what was noticed

  friend bool operator==(const Fault& a, const Fault& b) {
    return a.kind == b.kind && a.rank == b.rank && a.host == b.host && a.stage == b.stage &&
           a.micro_batch == b.micro_batch && a.layer == b.layer && a.text == b.text;
  }
};

// A text like "rank 2 (node1) threw in stage 2, micro-batch 3, layer 5 ('relu'): boom".
std::string to_text(const Fault& fault);
std::ostream& operator<<(std::ostream& out, const Fault& fault);

// Thrown on every rank of a run that is still connected. All ranks get the same faults in the same
// order, and so the same message: the first fault, then a line "also: ..." for each other one.
//
// Example:
//   try {
//     loss = pipe->step(inputs, targets, loss_fn).loss;
//   } catch (const DistributedFailure& failure) {
//     std::cerr << "lost rank " << failure.first().rank << ": " << failure.what() << "\n";
//   }
class DistributedFailure : public std::runtime_error {
 public:
  // Requirements: at least one fault.
  explicit DistributedFailure(std::vector<Fault> faults);

  // Exceptions first, then deaths and leaves, then silences; within each of these, earliest first.
  const std::vector<Fault>& faults() const { return faults_; }
  const Fault& first() const { return faults_.front(); }

  // Prints what().
  friend std::ostream& operator<<(std::ostream& out, const DistributedFailure& failure) {
    return out << failure.what();
  }

 private:
  std::vector<Fault> faults_;
};

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_CONTROL_FAILURE_H_
