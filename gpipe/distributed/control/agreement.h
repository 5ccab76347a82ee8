// Agreement: compares, or collects, what all ranks say at one point of the program.
//
// One rank does it for all; how the words travel is control.h.
#ifndef GPIPE_DISTRIBUTED_CONTROL_AGREEMENT_H_
#define GPIPE_DISTRIBUTED_CONTROL_AGREEMENT_H_

#include <cstdint>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace gpipe::distributed {

// What should be the same on all ranks is not, or they do not make the same calls. All ranks throw
// it, with one message that names two ranks and what each has.
class Disagreement : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

// What the ranks say at one point. Not thread-safe.
class Agreement {
 public:
  struct Words {
    std::string name;  // of what is compared or exchanged
    std::string value;
    bool is_collected = false;  // the value; else it is compared
    bool is_patient = false;    // never gives up
    uint64_t call = 0;          // the number of the rank's call that it belongs to
  };

  explicit Agreement(int64_t size) : size_(size) {}

  // Returns the verdict when there is one for the first time: empty if all ranks have said the
  // same, else what Disagreement says, as soon as two ranks differ. Values that are collected may
  // differ. Words of a rank that has spoken are ignored.
  std::optional<std::string> add(int64_t rank, Words words);

  // The verdict if nobody else comes: which ranks wait where, and which do not come. None if there
  // is a verdict already, or for who is patient.
  std::optional<std::string> give_up(const std::string& waited);

  // After a verdict about ranks in different calls: the largest number of a call among them. No
  // rank makes it, nor one before it, any more. Else 0.
  uint64_t given_up() const { return given_up_; }

  // After an empty verdict: what was collected, by rank. Nothing of values that were compared.
  std::vector<std::string> take_values();

  // Whether all ranks have spoken.
  bool complete() const { return static_cast<int64_t>(words_.size()) == size_; }

 private:
  int64_t size_;
  std::map<int64_t, Words> words_;  // by rank
  bool decided_ = false;
  bool agreed_ = false;  // the verdict was empty
  uint64_t given_up_ = 0;
};

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_CONTROL_AGREEMENT_H_
