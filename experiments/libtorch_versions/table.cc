#include "experiments/libtorch_versions/table.h"

#include <algorithm>
#include <stdexcept>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "text/counted.h"

namespace gpipe::experiments {
namespace {

std::string threads_text(int64_t threads) { return text::counted(threads, "thread"); }

std::string made_by(const Replays& replays) {
  return absl::StrCat("LibTorch ", replays.version, " (", replays.capability, ")");
}

void add_column(const Replays& labels, const Replay& a, const Replay& b, const std::string& column,
                ComparedTable& table) {
  table.columns.push_back(column);
  std::map<std::string, std::set<size_t>> left_out;
  for (const Replay* run : {&a, &b}) {
    for (size_t k = 0; k < labels.operators.size(); ++k) {
      const std::vector<at::Tensor>& tensors = run->results[k].tensors;
      for (size_t place = 0; place < tensors.size(); ++place) {
        if (!tensors[place].defined()) left_out[labels.operators[k]].insert(place);
      }
    }
  }
  for (size_t k = 0; k < labels.operators.size(); ++k) {
    std::vector<Cell>& cells = table.rows[{labels.operators[k], labels.types[k]}];
    cells.resize(table.columns.size());
    cells.back().add(a.results[k], b.results[k], left_out[labels.operators[k]]);
  }
}

std::string text_of(const Cell& cell) {
  std::vector<std::string> parts;
  if (cell.equal == cell.calls) parts.push_back("equal");
  if (cell.differ > 0) {
    parts.push_back(
        absl::StrFormat("%d of %d differ, %d ulp (%.2g of the largest), %d of %d elements",
                        cell.differ, cell.calls, cell.difference.ulp, cell.difference.of_largest,
                        cell.difference.differ, cell.difference.elements));
  }
  if (cell.incomparable > 0) {
    parts.push_back(absl::StrCat(cell.incomparable, " of ", cell.calls,
                                 " not comparable: ", absl::StrJoin(cell.why, "; ")));
  }
  if (cell.unrepeatable > 0) {
    parts.push_back(
        absl::StrCat(cell.unrepeatable, " of ", cell.calls, " with a result that does not repeat"));
  }
  return absl::StrJoin(parts, "; ");
}

}  // namespace

void Cell::add(const Result& a, const Result& b, const std::set<size_t>& left_out) {
  const auto cannot = [&](const std::string& reason) {
    ++incomparable;
    if (std::find(why.begin(), why.end(), reason) == why.end()) why.push_back(reason);
  };
  ++calls;
  if (!a.failure.empty() || !b.failure.empty()) {
    cannot(a.failure == b.failure ? absl::StrCat("both: ", a.failure)
                                  : absl::StrCat(a.failure.empty() ? "second: " : "first: ",
                                                 a.failure.empty() ? b.failure : a.failure));
    return;
  }
  if (a.tensors.size() != b.tensors.size()) {
    cannot(absl::StrCat(a.tensors.size(), " and ", b.tensors.size(), " tensors"));
    return;
  }
  Difference whole;
  for (size_t k = 0; k < a.tensors.size(); ++k) {
    if (left_out.count(k) == 0) whole.add(difference_of(a.tensors[k], b.tensors[k]));
  }
  if (!left_out.empty()) ++unrepeatable;
  if (whole.equal()) {
    ++equal;
  } else if (!whole.incomparable.empty()) {
    cannot(whole.incomparable);
  } else {
    ++differ;
    difference.add(whole);
  }
}

std::string ComparedTable::to_markdown(bool all) const {
  std::string text = absl::StrCat(first, "; ", second, ".\n");
  for (size_t k = 0; k < columns.size(); ++k) {
    Cell sum;
    std::set<std::string> operators, not_equal;
    for (const auto& [label, cells] : rows) {
      const Cell& cell = cells[k];
      sum.calls += cell.calls;
      sum.equal += cell.equal;
      sum.differ += cell.differ;
      sum.incomparable += cell.incomparable;
      sum.unrepeatable += cell.unrepeatable;
      operators.insert(label.first);
      if (cell.equal < cell.calls) not_equal.insert(label.first);
    }
    absl::StrAppend(&text, columns[k], ": ", operators.size(), " operators, ",
                    operators.size() - not_equal.size(), " of them equal; ", sum.calls,
                    " calls: ", sum.equal, " equal, ", sum.differ, " differ, ", sum.incomparable,
                    " not comparable; ", sum.unrepeatable,
                    " with a result that does not repeat.\n");
  }
  absl::StrAppend(&text, "\n| Operator | Type | ", absl::StrJoin(columns, " | "), " |\n|---|---|");
  for (size_t k = 0; k < columns.size(); ++k) absl::StrAppend(&text, "---|");
  absl::StrAppend(&text, "\n");
  for (const auto& [label, cells] : rows) {
    if (!all && std::all_of(cells.begin(), cells.end(),
                            [](const Cell& cell) { return cell.equal == cell.calls; })) {
      continue;
    }
    absl::StrAppend(&text, "| `", label.first, "` | ", label.second, " |");
    for (const Cell& cell : cells) absl::StrAppend(&text, " ", text_of(cell), " |");
    absl::StrAppend(&text, "\n");
  }
  return text;
}

nlohmann::ordered_json ComparedTable::to_json() const {
  nlohmann::ordered_json json = {
      {"first", first}, {"second", second}, {"rows", nlohmann::ordered_json::array()}};
  for (const auto& [label, cells] : rows) {
    for (size_t k = 0; k < columns.size(); ++k) {
      const Cell& cell = cells[k];
      json["rows"].push_back({{"operator", label.first},
                              {"type", label.second},
                              {"column", columns[k]},
                              {"calls", cell.calls},
                              {"equal", cell.equal},
                              {"differ", cell.differ},
                              {"not_comparable", cell.incomparable},
                              {"why", cell.why},
                              {"do_not_repeat", cell.unrepeatable},
                              {"elements", cell.difference.elements},
                              {"elements_differ", cell.difference.differ},
                              {"ulp", cell.difference.ulp},
                              {"ulp_of_largest", cell.difference.of_largest}});
    }
  }
  return json;
}

ComparedTable compare(const Replays& a, const Replays& b) {
  if (a.recording != b.recording) {
    throw std::invalid_argument(absl::StrCat("the first file has results of the recording ",
                                             a.recording, ", the second of ", b.recording,
                                             "; replay the same file with both versions"));
  }
  ComparedTable table{made_by(a), made_by(b), {}, {}};
  for (const Replay& run : a.runs) {
    for (const Replay& other : b.runs) {
      if (run.threads != other.threads) continue;
      add_column(a, run, other, threads_text(run.threads), table);
    }
  }
  if (table.columns.empty()) {
    throw std::invalid_argument(
        "no number of threads is in both files; give --threads the same numbers in both replays");
  }
  return table;
}

ComparedTable compare_threads(const Replays& replays) {
  if (replays.runs.size() < 2) {
    throw std::invalid_argument(absl::StrCat(
        "the file has results with ", threads_text(replays.runs[0].threads),
        " alone; give --compare two files, or replay with several numbers, --threads=1,2,4"));
  }
  ComparedTable table{absl::StrCat(made_by(replays), ", ", threads_text(replays.runs[0].threads)),
                      "the same with more",
                      {},
                      {}};
  for (size_t k = 1; k < replays.runs.size(); ++k) {
    add_column(replays, replays.runs[0], replays.runs[k], threads_text(replays.runs[k].threads),
               table);
  }
  return table;
}

}  // namespace gpipe::experiments
