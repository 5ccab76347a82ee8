// CallTerms: what each process says at the begin of a call, so that all do the same.
#ifndef GPIPE_INTERNAL_PROCESSES_CALL_TERMS_H_
#define GPIPE_INTERNAL_PROCESSES_CALL_TERMS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gpipe/world.h"

namespace gpipe::internal {

// A value.
struct CallTerms {
  // What must be the same everywhere: what it is, and its value, as they stand in a message.
  std::vector<std::pair<std::string, std::string>> same;
  // Of the inputs, or the targets, that this process was given; -1: none.
  int64_t rows = -1;
  // Drawn here, for the step's random numbers. Rank 0's counts.
  uint64_t seed = 0;
  // How often the pipeline's zero_grad() was called here: as often as steps were meant to be.
  int64_t zero_grads = 0;
  // [tie] As TieCopies::changed().
  std::string changed_ties = {};
  // [tie] As TieCopies::trained().
  std::string trained_ties = {};

  std::string to_bytes() const;
  // The inverse. Throws std::invalid_argument.
  static CallTerms from_bytes(std::string_view bytes);
};

// What differs, as a message that names two ranks and the values of both; none if nothing does.
// `terms`: by rank, at least one. Every process that gets the same terms finds the same.
std::optional<std::string> difference(const std::vector<CallTerms>& terms);

// A warning that names two ranks which have called zero_grad() another number of times, as one that
// has missed a call has; none where nobody has.
std::string zero_grads_text(const std::vector<CallTerms>& terms);

// [tie] '1' where a process says so.
std::string changed_ties(const std::vector<CallTerms>& terms);

// How many rows the mini-batch has, over all replicas of `world`: those that the processes of their
// first stages, number `first` in each, were given. Throws std::invalid_argument if one was given
// none, or another process of its replica another number; or if a replica was not given the rows of
// its own among the `chunks` (World::rows).
int64_t rows_of(const std::vector<CallTerms>& terms, const World& world, int64_t first,
                int64_t chunks);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_PROCESSES_CALL_TERMS_H_
