#include "gpipe/schedule/drawing.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "gpipe/schedule/simulate.h"

namespace gpipe {
namespace {

// The most characters of a drawing, far more than a screen shows. The limit keeps a typing error in
// a cost from filling the memory.
constexpr double kMostCharacters = 1 << 28;

bool stage_is_worker(const Schedule& schedule) {
  for (int64_t worker = 0; worker < schedule.workers(); ++worker) {
    for (const Action& action : schedule.actions(worker)) {
      if (action.stage != worker) return false;
    }
  }
  return true;
}

}  // namespace

std::string draw(const Schedule& schedule, const DrawingCosts& costs) {
  if (std::min({costs.forward, costs.backward, costs.input_gradient, costs.weight_gradient,
                costs.offload, costs.reload}) < 1) {
    throw std::invalid_argument(
        "draw: every cost must be at least 1, got forward " + std::to_string(costs.forward) +
        ", backward " + std::to_string(costs.backward) + ", input_gradient " +
        std::to_string(costs.input_gradient) + ", weight_gradient " +
        std::to_string(costs.weight_gradient) + ", offload " + std::to_string(costs.offload) +
        ", reload " + std::to_string(costs.reload));
  }
  SimulateOptions options;
  options.action = uniform_cost(
      {static_cast<double>(costs.forward), static_cast<double>(costs.backward),
       static_cast<double>(costs.input_gradient), static_cast<double>(costs.weight_gradient)});
  options.offload.bytes = [](const Action&) { return 1.0; };
  options.offload.to_host = 1.0 / static_cast<double>(costs.offload);
  options.offload.to_device = 1.0 / static_cast<double>(costs.reload);
  const Simulation run = simulate(schedule, options);

  const bool brief = stage_is_worker(schedule);
  const auto label = [&](const Action& action) {
    return brief ? letter(action.kind) + std::to_string(action.micro_batch) : action.to_text();
  };
  size_t width = 0;
  for (const auto& timeline : run.workers) {
    for (const TimedAction& timed : timeline) width = std::max(width, label(timed.action).size());
  }
  const double rows = static_cast<double>(run.workers.size());
  if (rows * run.makespan * static_cast<double>(width + 1) > kMostCharacters) {
    std::ostringstream text;
    text << "draw: the drawing would have " << run.workers.size() << " rows of " << run.makespan
         << " columns, more than 2^28 characters; give smaller costs, or take the times of "
            "simulate()";
    throw std::invalid_argument(text.str());
  }
  // Times are sums of whole numbers, so rounding only changes their type.
  const auto column = [](double time) { return static_cast<size_t>(std::llround(time)); };
  const size_t digits = std::to_string(run.workers.size() - 1).size();

  std::string text;
  const auto add_row = [&](std::string head, std::string row, const std::vector<TimedAction>& bars,
                           const auto& is_shown) {
    for (const TimedAction& timed : bars) {
      if (!is_shown(timed.action.kind)) continue;
      const size_t start = column(timed.start);
      const size_t columns = column(timed.end) - start;
      std::string bar = label(timed.action);
      bar.resize(columns * (width + 1) - 1, columns > 1 ? '-' : ' ');
      if (row.size() < start * (width + 1)) row.resize(start * (width + 1), ' ');
      row.replace(start * (width + 1), bar.size(), bar);
    }
    row.erase(row.find_last_not_of(' ') + 1);
    head.insert(0, digits - head.size(), ' ');
    text += head + ": " + row + "\n";
  };
  for (size_t worker = 0; worker < run.workers.size(); ++worker) {
    std::string dots;
    for (size_t k = 0; k < column(run.makespan); ++k) dots += std::string(width, '.') + " ";
    add_row(std::to_string(worker), std::move(dots), run.workers[worker], computes);
    if (run.copies[worker].empty()) continue;
    for (const ActionKind kind : {ActionKind::kOffload, ActionKind::kReload}) {
      add_row(std::string(1, letter(kind)), "", run.copies[worker],
              [kind](ActionKind each) { return each == kind; });
    }
  }
  return text;
}

}  // namespace gpipe
