// Agreement: compares, or collects, what all ranks say at one point of the program.
//
// One rank compares for all ranks; control.h carries the messages.
#ifndef GPIPE_DISTRIBUTED_CONTROL_AGREEMENT_H_
#define GPIPE_DISTRIBUTED_CONTROL_AGREEMENT_H_

#include <cstdint>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace gpipe::distributed {

// Thrown if a value that must be the same on all ranks differs, or if ranks do not make the same
// calls. All ranks throw it, with the same message, which names two ranks and what each has.
class Disagreement : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

// The words of all ranks at one point of the program. Not thread-safe.
class Agreement {
 public:
  struct Words {
    std::string name;   // names the value, in messages
    std::string value;  // or several (bytes.h, fields_text()): the one that differs is named
    bool is_collected = false;  // true: all ranks get the value; false: it is compared
    bool is_patient = false;    // waits for other ranks without a limit
    uint64_t call = 0;          // the number of the rank's call (Control::count_call())
  };

  explicit Agreement(int64_t size) : size_(size) {}

  // Returns the verdict, once, as soon as there is one. It is empty if all ranks have said the
  // same, and the message of Disagreement as soon as two ranks differ. Collected values may differ.
  // If a rank has already given its words, later ones are ignored.
  std::optional<std::string> add(int64_t rank, Words words);

  // The verdict if no other rank comes. It says which ranks wait where, and which have not come.
  // Empty if there already is a verdict, or if the call is patient (no time limit).
  std::optional<std::string> give_up(const std::string& waited);

  // After a verdict about ranks in different calls: the largest of their call numbers. No rank
  // makes that call or an earlier one any more. In all other cases 0.
  uint64_t given_up() const { return given_up_; }

  // After an empty verdict: the collected values, by rank. Empty if values were compared.
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
