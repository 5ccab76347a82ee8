#include "gpipe/internal/processes/call_terms.h"

#include <charconv>
#include <numeric>
#include <stdexcept>

namespace gpipe::internal {
namespace {

constexpr char kEnd = '\0';  // ends a text; no text contains it

template <typename Number>
Number number_of(const std::string& text) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stopped != end) {
    throw std::invalid_argument("'" + text + "' is not a valid number in the terms of a call");
  }
  return number;
}

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

std::string CallTerms::to_bytes() const {
  std::string bytes = std::to_string(rows) + kEnd + std::to_string(seed) + kEnd +
                      std::to_string(zero_grads) + kEnd + changed_ties + kEnd + trained_ties + kEnd;
  for (const auto& [name, value] : same) bytes += name + kEnd + value + kEnd;
  return bytes;
}

CallTerms CallTerms::from_bytes(std::string_view bytes) {
  std::vector<std::string> texts;
  while (!bytes.empty()) {
    const size_t end = bytes.find(kEnd);
    if (end == std::string_view::npos) {
      throw std::invalid_argument("the terms of a call are cut off");
    }
    texts.emplace_back(bytes.substr(0, end));
    bytes.remove_prefix(end + 1);
  }
  if (texts.size() < 5 || texts.size() % 2 == 0) {
    throw std::invalid_argument("the terms of a call have " + std::to_string(texts.size()) +
                                " texts");
  }
  CallTerms terms;
  terms.rows = number_of<int64_t>(texts[0]);
  terms.seed = number_of<uint64_t>(texts[1]);
  terms.zero_grads = number_of<int64_t>(texts[2]);
  terms.changed_ties = std::move(texts[3]);
  terms.trained_ties = std::move(texts[4]);
  for (size_t k = 5; k < texts.size(); k += 2) {
    terms.same.emplace_back(std::move(texts[k]), std::move(texts[k + 1]));
  }
  return terms;
}

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

std::string changed_ties(const std::vector<CallTerms>& terms) {
  std::string changed = terms.front().changed_ties;
  for (const CallTerms& others : terms) {
    for (size_t tie = 0; tie < changed.size(); ++tie) {
      if (others.changed_ties.at(tie) == '1') changed[tie] = '1';
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
