// CallTerms: the values that each process tells the others at the start of a call, so that all do
// the same.
#ifndef GPIPE_INTERNAL_PROCESSES_CALL_TERMS_H_
#define GPIPE_INTERNAL_PROCESSES_CALL_TERMS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gpipe/world.h"

namespace gpipe::internal {

// A value.
struct CallTerms {
  // Values that must be the same everywhere: (name, value), name and value as an error message
  // prints them.
  std::vector<std::pair<std::string, std::string>> same;
  // The number of rows of the inputs, or the targets, that this process was given. -1 if it was
  // given neither.
  int64_t rows = -1;
  // The seed of the step's random numbers, drawn in this process. Rank 0's is used.
  uint64_t seed = 0;
  // How often the pipeline's zero_grad() was called in this process: once for each intended step.
  int64_t zero_grads = 0;
  // The result of TiedOverProcesses::changed() in this process.
  std::string changed_tied_parameters = {};
  // The result of TiedOverProcesses::trained() in this process.
  std::string trained_tied_parameters = {};
};
// For bytes.h.
inline auto fields(CallTerms& terms) {
  return std::tie(terms.same, terms.rows, terms.seed, terms.zero_grads,
                  terms.changed_tied_parameters, terms.trained_tied_parameters);
}

// The first difference, as a message that names two ranks and the values of both; nullopt if all
// agree. `terms`: by rank, at least one. Every process that gets the same terms finds the same
// difference.
std::optional<std::string> difference(const std::vector<CallTerms>& terms);

// A warning that names two ranks that have not called zero_grad() equally often, for example
// because one has missed a call. Empty if all have called it equally often.
std::string zero_grads_text(const std::vector<CallTerms>& terms);

// Combines CallTerms::changed_tied_parameters of all processes: [parameter] is '1' if any process
// has '1'.
std::string changed_tied_parameters(const std::vector<CallTerms>& terms);

// How many rows the mini-batch has, over all replicas of `world`: the sum of the rows that process
// `first` of each replica, which has the first stage, was given. Throws std::invalid_argument if
// such a process was given none, if another process of its replica was given another number, or if
// a replica was not given its own rows of the `chunks` (World::rows).
int64_t rows_of(const std::vector<CallTerms>& terms, const World& world, int64_t first,
                int64_t chunks);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_PROCESSES_CALL_TERMS_H_
