#include "gpipe/placement.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <ostream>
#include <stdexcept>

namespace gpipe {
namespace {

constexpr int64_t kMostStages = int64_t{1} << 24;

void check_count(const char* who, const char* what, int64_t count) {
  if (count >= 1 && count <= kMostStages) return;
  throw std::invalid_argument(std::string("Placement::") + who + ": " + what +
                              " must be at least 1 and at most 2^24, got " + std::to_string(count));
}

// Checks that the numbers are 0, 1, ... in any order, none left out. Each is the number of the
// `whole` ("worker") to which a `part` ("stage") belongs.
void check_numbers(const char* who, const char* whole, const char* part,
                   const std::vector<int64_t>& numbers) {
  const std::string start = std::string("Placement::") + who + ": ";
  if (numbers.empty()) {
    throw std::invalid_argument(start + "it is empty; give a " + whole + " for each " + part);
  }
  if (static_cast<int64_t>(numbers.size()) > kMostStages) {
    throw std::invalid_argument(start + "at most 2^24 numbers, got " +
                                std::to_string(numbers.size()));
  }
  std::vector<bool> there(numbers.size(), false);
  for (size_t k = 0; k < numbers.size(); ++k) {
    // There are at most as many wholes (workers, say) as parts (stages), so a larger number would
    // mean that a whole is left out.
    if (numbers[k] < 0 || numbers[k] >= static_cast<int64_t>(numbers.size())) {
      throw std::invalid_argument(
          start + part + " " + std::to_string(k) + " is given to " + whole + " " +
          std::to_string(numbers[k]) + ", but with " + std::to_string(numbers.size()) + " " + part +
          "s they are counted 0.." + std::to_string(numbers.size() - 1) + ", none left out");
    }
    there[static_cast<size_t>(numbers[k])] = true;
  }
  const int64_t count = *std::max_element(numbers.begin(), numbers.end()) + 1;
  for (int64_t number = 0; number < count; ++number) {
    if (there[static_cast<size_t>(number)]) continue;
    throw std::invalid_argument(start + whole + " " + std::to_string(number) + " has no " + part +
                                ", though " + whole + " " + std::to_string(count - 1) +
                                " has; count them from 0 without leaving one out");
  }
}

std::string join(const std::vector<int64_t>& numbers) {
  std::string text;
  for (int64_t number : numbers) text += " " + std::to_string(number);
  return text;
}

// Returns the numbers of a line that must begin with `key`. Throws if the line does not.
std::vector<int64_t> take_line(std::string_view line, std::string_view key) {
  const auto fail = [&] {
    throw std::invalid_argument("Placement::from_text: expected '" + std::string(key) +
                                " <numbers>', found '" + std::string(line.substr(0, 80)) + "'");
  };
  if (line.substr(0, key.size()) != key) fail();
  std::vector<int64_t> numbers;
  const char* position = line.data() + key.size();
  const char* end = line.data() + line.size();
  while (position != end) {
    if (*position != ' ' && *position != '\t') fail();
    while (position != end && (*position == ' ' || *position == '\t')) ++position;
    if (position == end) break;
    const auto result = std::from_chars(position, end, numbers.emplace_back());
    if (result.ec != std::errc()) fail();
    position = result.ptr;
  }
  return numbers;
}

}  // namespace

Placement Placement::one_each(int64_t stages) {
  check_count("one_each", "stages", stages);
  return loop(stages, 1);
}

Placement Placement::loop(int64_t workers, int64_t v) {
  check_count("loop", "workers", workers);
  check_count("loop", "v", v);
  if (workers > kMostStages / v) check_count("loop", "workers x v", kMostStages + 1);
  std::vector<int64_t> worker_of_stage(static_cast<size_t>(workers * v));
  for (size_t s = 0; s < worker_of_stage.size(); ++s) {
    worker_of_stage[s] = static_cast<int64_t>(s) % workers;
  }
  return of(std::move(worker_of_stage));
}

Placement Placement::v_shape(int64_t workers) {
  check_count("v_shape", "workers", workers);
  if (workers > kMostStages / 2) check_count("v_shape", "stages (two a worker)", 2 * workers);
  std::vector<int64_t> worker_of_stage;
  for (int64_t s = 0; s < 2 * workers; ++s) {
    worker_of_stage.push_back(s < workers ? s : 2 * workers - 1 - s);
  }
  return of(std::move(worker_of_stage));
}

Placement Placement::of(std::vector<int64_t> worker_of_stage) {
  check_numbers("of", "worker", "stage", worker_of_stage);
  Placement placement;
  placement.stages_of_worker_.resize(
      static_cast<size_t>(*std::max_element(worker_of_stage.begin(), worker_of_stage.end()) + 1));
  for (size_t s = 0; s < worker_of_stage.size(); ++s) {
    placement.stages_of_worker_[static_cast<size_t>(worker_of_stage[s])].push_back(
        static_cast<int64_t>(s));
  }
  placement.worker_of_stage_ = std::move(worker_of_stage);
  return placement;
}

Placement& Placement::processes(std::vector<int64_t> process_of_worker) {
  check_numbers("processes", "process", "worker", process_of_worker);
  if (static_cast<int64_t>(process_of_worker.size()) != workers()) {
    throw std::invalid_argument("Placement::processes: got " +
                                std::to_string(process_of_worker.size()) +
                                " numbers, but there are " + std::to_string(workers()) +
                                " workers; give the process of each");
  }
  process_of_worker_ = std::move(process_of_worker);
  return *this;
}

int64_t Placement::worker_of(int64_t stage) const {
  if (stage < 0 || stage >= stages()) {
    throw std::out_of_range("Placement::worker_of: there is no stage " + std::to_string(stage) +
                            ", the placement has " + std::to_string(stages()) + ", counted from 0");
  }
  return worker_of_stage_[static_cast<size_t>(stage)];
}

const std::vector<int64_t>& Placement::stages_of(int64_t worker) const {
  if (worker < 0 || worker >= workers()) {
    throw std::out_of_range("Placement::stages_of: there is no worker " + std::to_string(worker) +
                            ", the placement has " + std::to_string(workers()) +
                            ", counted from 0");
  }
  return stages_of_worker_[static_cast<size_t>(worker)];
}

std::string Placement::to_text() const {
  std::string text = "worker_of_stage" + join(worker_of_stage_) + "\n";
  if (!process_of_worker_.empty()) text += "process_of_worker" + join(process_of_worker_) + "\n";
  return text;
}

std::ostream& operator<<(std::ostream& out, const Placement& placement) {
  return out << placement.to_text();
}

Placement Placement::from_text(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    line = line.substr(0, line.find('#'));
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.remove_suffix(1);
    while (!line.empty() && line.front() == ' ') line.remove_prefix(1);
    if (!line.empty()) lines.push_back(line);
  }
  if (lines.empty() || lines.size() > 2) {
    throw std::invalid_argument(
        "Placement::from_text: expected a line 'worker_of_stage <numbers>' and possibly a line "
        "'process_of_worker <numbers>', found " +
        std::to_string(lines.size()) + " lines");
  }
  Placement placement = of(take_line(lines[0], "worker_of_stage"));
  if (lines.size() == 2) placement.processes(take_line(lines[1], "process_of_worker"));
  return placement;
}

}  // namespace gpipe
