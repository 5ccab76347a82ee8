// ComparedTable: how often and how far the results of two replays differ, by operator and type.
#ifndef GPIPE_EXPERIMENTS_LIBTORCH_VERSIONS_TABLE_H_
#define GPIPE_EXPERIMENTS_LIBTORCH_VERSIONS_TABLE_H_

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "experiments/libtorch_versions/calls.h"
#include "experiments/libtorch_versions/difference.h"

namespace gpipe::experiments {

// How calls of one operator and type compare: they are equal, differ (by `difference`) or cannot be
// compared (`why`).
struct Cell {
  int64_t calls = 0, equal = 0, differ = 0, incomparable = 0;
  int64_t unrepeatable = 0;      // calls with a result that is left out
  Difference difference;         // over the calls that differ
  std::vector<std::string> why;  // each reason once

  // `left_out`: the places of results that do not repeat, in this or another call of the operator.
  void add(const Result& a, const Result& b, const std::set<size_t>& left_out);
};

struct ComparedTable {
  std::string first, second;  // "LibTorch 2.11.0 (AVX512), 1 thread"
  // The rows, by operator and type. A row has a cell for each column.
  std::map<std::pair<std::string, std::string>, std::vector<Cell>> rows;
  std::vector<std::string> columns;  // "1 thread", "2 threads"

  // Summary lines, then the rows: all of them, or only those in which something differs.
  std::string to_markdown(bool all) const;
  nlohmann::ordered_json to_json() const;
};

// Compares the results of two replays, for each number of threads that both have. Throws
// std::invalid_argument if they replayed different recordings or have no number of threads in
// common.
ComparedTable compare(const Replays& a, const Replays& b);

// Compares the results with the first number of threads to those with each other number. Throws
// std::invalid_argument if there is only one number.
ComparedTable compare_threads(const Replays& replays);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_LIBTORCH_VERSIONS_TABLE_H_
