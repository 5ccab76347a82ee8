// Agreement: compares what all ranks say at one point of the program.
//
// One rank collects and compares; how the words travel is control.h.
#ifndef GPIPE_DISTRIBUTED_AGREEMENT_H_
#define GPIPE_DISTRIBUTED_AGREEMENT_H_

#include <cstdint>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>

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
  explicit Agreement(int64_t size) : size_(size) {}

  // `name`: what is compared. Returns the verdict when there is one for the first time: empty if
  // all ranks have said the same, else what Disagreement says, as soon as two ranks differ. Words
  // of a rank that has spoken are ignored.
  std::optional<std::string> add(int64_t rank, std::string name, std::string value);

  // The verdict if nobody else comes: which ranks wait where, and which do not come. None if there
  // is a verdict already.
  std::optional<std::string> give_up(const std::string& waited);

  // Whether all ranks have spoken.
  bool complete() const { return static_cast<int64_t>(words_.size()) == size_; }

 private:
  struct Words {
    std::string name;
    std::string value;
  };

  int64_t size_;
  std::map<int64_t, Words> words_;  // by rank
  bool decided_ = false;
};

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_AGREEMENT_H_
