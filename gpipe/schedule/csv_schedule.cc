#include "gpipe/schedule/csv_schedule.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "text/quoted.h"

namespace gpipe {
namespace {

// An action in the form in which the file writes it.
struct Written {
  std::string_view name;  // "F"
  int32_t stage = 0, micro_batch = 0;
};

std::string_view trim(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

// Calls `use` with each part of `text` between separators, without the blanks around it.
template <typename Use>
void split(std::string_view text, char separator, const Use& use) {
  while (true) {
    const size_t end = text.find(separator);
    use(trim(text.substr(0, end)));
    if (end == std::string_view::npos) return;
    text.remove_prefix(end + 1);
  }
}

// Takes the digits at the beginning of `text`. Returns false if there are none, or too many for the
// type.
bool take_number(std::string_view* text, int32_t* number) {
  const char* end = text->data() + text->size();
  if (text->empty() || text->front() == '-') return false;
  const auto result = std::from_chars(text->data(), end, *number);
  if (result.ec != std::errc()) return false;
  text->remove_prefix(static_cast<size_t>(result.ptr - text->data()));
  return true;
}

bool has(std::string_view name, const std::array<std::string_view, 7>& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

class Row {
 public:
  explicit Row(size_t number) : number_(number) {}

  void add(std::string_view cell) {
    ++cells_;
    constexpr std::string_view kOverlap = ")OVERLAP_F_B";
    if (cell.empty()) return;
    if (cell.front() != '(') return add_one(cell, cell);
    if (cell.size() <= kOverlap.size() || cell.substr(cell.size() - kOverlap.size()) != kOverlap) {
      fail(cell);
    }
    split(cell.substr(1, cell.size() - kOverlap.size() - 1), ';',
          [&](std::string_view part) { add_one(part, cell); });
  }

  bool empty() const { return written_.empty(); }

  std::vector<Action> actions() const {
    std::set<std::pair<int32_t, int32_t>> with_input, with_weight;
    for (const Written& each : written_) {
      if (each.name == "I") with_input.emplace(each.stage, each.micro_batch);
      if (each.name == "W") with_weight.emplace(each.stage, each.micro_batch);
    }
    std::vector<Action> actions;
    for (const Written& each : written_) {
      const std::pair<int32_t, int32_t> cell = {each.stage, each.micro_batch};
      const bool half =
          each.name == "B" && with_weight.count(cell) > 0 && with_input.count(cell) == 0;
      const ActionKind kind = each.name == "F"           ? ActionKind::kForward
                              : each.name == "I" || half ? ActionKind::kInputGradient
                              : each.name == "W"         ? ActionKind::kWeightGradient
                                                         : ActionKind::kBackward;
      actions.push_back({kind, each.stage, each.micro_batch});
    }
    return actions;
  }

 private:
  void add_one(std::string_view part, std::string_view cell) {
    static constexpr std::array<std::string_view, 7> kLeftOut = {
        "SEND_F", "RECV_F", "SEND_B", "RECV_B", "UNSHARD", "RESHARD", "REDUCE_GRAD"};
    static constexpr std::array<std::string_view, 7> kKept = {"F", "B", "I", "W", "BW", "", ""};
    Written written;
    if (!take_number(&part, &written.stage)) fail(cell);
    written.name = part.substr(0, part.find_first_of("0123456789"));
    part.remove_prefix(written.name.size());
    const bool numbered = take_number(&part, &written.micro_batch);
    if (!part.empty()) fail(cell);
    if (has(written.name, kLeftOut)) return;
    if (!numbered || written.name.empty() || !has(written.name, kKept)) fail(cell);
    written_.push_back(written);
  }

  [[noreturn]] void fail(std::string_view cell) const {
    throw std::invalid_argument("schedule_from_csv: row " + std::to_string(number_) + ", cell " +
                                std::to_string(cells_) + ": " + internal::quoted(cell) +
                                " is not an action of torch.distributed.pipelining: expected the "
                                "stage, F, B, I, W or BW, and the micro-batch, as in 2F0");
  }

  size_t number_, cells_ = 0;
  std::vector<Written> written_;
};

}  // namespace

Schedule schedule_from_csv(std::string_view text) {
  std::vector<std::vector<Action>> workers;
  size_t number = 0;
  int64_t stages = 0, micro_batches = 0;
  split(text, '\n', [&](std::string_view line) {
    Row row(++number);
    if (!line.empty()) split(line, ',', [&](std::string_view cell) { row.add(cell); });
    workers.push_back(row.actions());
    for (const Action& action : workers.back()) {
      stages = std::max<int64_t>(stages, int64_t{action.stage} + 1);
      micro_batches = std::max<int64_t>(micro_batches, int64_t{action.micro_batch} + 1);
    }
  });
  // Empty rows at the end are only ends of lines, and not ranks without actions.
  while (!workers.empty() && workers.back().empty()) workers.pop_back();
  if (workers.empty()) {
    throw std::invalid_argument(
        "schedule_from_csv: the text has no action: expected a row for each rank, such as "
        "0F0,0F1,0B0,0B1");
  }
  return Schedule::create(stages, micro_batches, std::move(workers));
}

}  // namespace gpipe
