#include "gpipe/internal/processes/call_terms.h"

#include <numeric>
#include <stdexcept>

namespace gpipe::internal {
namespace {

std::string rank_text(size_t rank) { return "rank " + std::to_string(rank); }

// The number of rows that the replica of the ranks [begin, end) was given.
int64_t rows_of_replica(const std::vector<CallTerms>& terms, size_t begin, size_t end,
                        size_t first) {
  const int64_t rows = terms.at(first).rows;
  if (rows < 0) {
    throw std::invalid_argument(
        rank_text(first) +
        ", which has the first stage, was given no input; give it the mini-batch");
  }
  for (size_t rank = begin; rank < end; ++rank) {
    if (terms[rank].rows < 0 || terms[rank].rows == rows) continue;
    throw std::invalid_argument("the mini-batch has " + std::to_string(rows) + " rows on " +
                                rank_text(first) + ", which has the first stage, and " +
                                std::to_string(terms[rank].rows) + " on " + rank_text(rank) +
                                ": give both parts of the same mini-batch (data shuffled with the "
                                "same seed on all ranks, a short last mini-batch on all or none)");
  }
  return rows;
}

}  // namespace

std::optional<std::string> difference(const std::vector<CallTerms>& terms) {
  const CallTerms& first = terms.front();
  for (size_t rank = 1; rank < terms.size(); ++rank) {
    const CallTerms& other = terms[rank];
    if (other.same.size() != first.same.size()) {
      return "rank 0 says " + std::to_string(first.same.size()) + " terms of a call, and " +
             rank_text(rank) + " " + std::to_string(other.same.size()) +
             ": they are different programs";
    }
    for (size_t k = 0; k < first.same.size(); ++k) {
      const auto& [name, value] = first.same[k];
      if (name != other.same[k].first) {
        return "rank 0 says '" + name + "', and " + rank_text(rank) + " '" + other.same[k].first +
               "': they are different programs";
      }
      if (value == other.same[k].second) continue;
      return name + " must be the same on all ranks: it is " + value + " on rank 0, and " +
             other.same[k].second + " on " + rank_text(rank);
    }
  }
  return std::nullopt;
}

std::string zero_grads_text(const std::vector<CallTerms>& terms) {
  for (size_t rank = 1; rank < terms.size(); ++rank) {
    if (terms[rank].zero_grads == terms.front().zero_grads) continue;
    return "zero_grad() of the pipeline was called " + std::to_string(terms.front().zero_grads) +
           " times on rank 0, and " + std::to_string(terms[rank].zero_grads) + " times on " +
           rank_text(rank) +
           ". Are they at the same mini-batch? A rank that throws before its call, and goes on, "
           "has missed one that the others make: from then on its next call meets theirs, and "
           "inputs are trained with the targets of another mini-batch. If work may throw on one "
           "rank (reading data, say), let the error end the program, do the work on rank 0 for all "
           "(from_rank_0), or catch the error and tell all ranks before the step (any_rank)";
  }
  return "";
}

std::string changed_tied_parameters(const std::vector<CallTerms>& terms) {
  std::string changed = terms.front().changed_tied_parameters;
  for (const CallTerms& others : terms) {
    for (size_t parameter = 0; parameter < changed.size(); ++parameter) {
      if (others.changed_tied_parameters.at(parameter) == '1') changed[parameter] = '1';
    }
  }
  return changed;
}

int64_t rows_of(const std::vector<CallTerms>& terms, const World& world, int64_t first,
                int64_t chunks) {
  const int64_t each = world.processes_each();
  std::vector<int64_t> rows;  // [replica]
  for (int64_t replica = 0; replica < world.replicas(); ++replica) {
    const auto begin = static_cast<size_t>(world.rank_of(replica, 0));
    rows.push_back(rows_of_replica(terms, begin, begin + static_cast<size_t>(each),
                                   begin + static_cast<size_t>(first)));
  }
  const int64_t all = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  if (world.replicas() == 1) return all;
  for (int64_t replica = 0; replica < world.replicas(); ++replica) {
    const World there = World(nullptr, replica * each, world.size()).grid(world.replicas(), each);
    const RowRange wanted = there.rows(all, chunks);
    const int64_t given = rows[static_cast<size_t>(replica)];
    if (given == wanted.size()) continue;
    throw std::invalid_argument("replica " + std::to_string(replica) + " (" +
                                rank_text(static_cast<size_t>(replica * each + first)) +
                                ") was given " + std::to_string(given) +
                                " rows. All replicas together have " + std::to_string(all) +
                                ", which are cut into " + std::to_string(chunks) +
                                " chunks, and of these its own have rows " +
                                std::to_string(wanted.begin) + " to " + std::to_string(wanted.end) +
                                "; give each replica what World::rows(global_rows, chunks) says");
  }
  return all;
}

}  // namespace gpipe::internal
