// CallTerms: what each process says at the begin of a call, so that all do the same.
#ifndef GPIPE_INTERNAL_PROCESSES_CALL_TERMS_H_
#define GPIPE_INTERNAL_PROCESSES_CALL_TERMS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gpipe::internal {

// A value.
struct CallTerms {
  // What must be the same everywhere: what it is, and its value, as they stand in a message.
  std::vector<std::pair<std::string, std::string>> same;
  // Of the inputs, or the targets, that this process was given; -1: none.
  int64_t rows = -1;
  // Drawn here, for the step's random numbers. Rank 0's counts.
  uint64_t seed = 0;

  std::string to_bytes() const;
  // The inverse. Throws std::invalid_argument.
  static CallTerms from_bytes(std::string_view bytes);
};

// What differs, as a message that names two ranks and the values of both; none if nothing does.
// `terms`: by rank, at least one. Every process that gets the same terms finds the same.
std::optional<std::string> difference(const std::vector<CallTerms>& terms);

// How many rows the mini-batch has: those that the process of the first stage was given. Throws
// std::invalid_argument if it was given none, or another process another number.
int64_t rows_of(const std::vector<CallTerms>& terms, int64_t first);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_PROCESSES_CALL_TERMS_H_
