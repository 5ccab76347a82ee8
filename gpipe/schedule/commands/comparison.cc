#include "gpipe/schedule/commands/comparison.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <utility>

#include "gpipe/schedule/named_schedule.h"
#include "gpipe/schedule/search/join.h"
#include "gpipe/schedule/search/search.h"
#include "text/digits.h"

namespace gpipe::internal {
namespace {

StageCost divided(const StageCost& cost, double by) {
  return {cost.forward / by, cost.backward / by, cost.input_gradient / by,
          cost.weight_gradient / by};
}

StageCost times(const StageCost& cost, double factor) {
  return {cost.forward * factor, cost.backward * factor, cost.input_gradient * factor,
          cost.weight_gradient * factor};
}

std::string fixed(double value, int digits) {
  char text[32];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

// The value as text, with two digits behind the point. Small numbers, and numbers that are too long
// for a column, have three digits in all, because costs may be in any unit.
std::string amount(double value) {
  if (value == 0.0 || (std::abs(value) >= 0.1 && std::abs(value) < 1e8)) return fixed(value, 2);
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

// The options of a search for this placement.
SearchOptions options_for(const ComparisonOptions& options, const Placement& placement) {
  const double v = static_cast<double>(placement.stages()) / static_cast<double>(options.workers);
  SearchOptions search;
  search.placement = placement;
  search.micro_batches = options.micro_batches;
  search.costs.clear();
  for (const int64_t worker : placement.worker_of_stage()) {
    const double slowness =
        options.slowness.empty() ? 1.0 : options.slowness[static_cast<size_t>(worker)];
    search.costs.push_back(times(divided(options.worker_cost, v), slowness));
  }
  search.activation_transfer = search.gradient_transfer = {options.transfer};
  search.activation_bytes = search.waiting_bytes = {1.0 / v};
  if (options.memory > 0.0) search.memory_limit = {options.memory};
  search.tolerance = options.tolerance;
  search.budget = options.budget;
  search.stop = options.stop;
  return search;
}

ComparisonRow row_of(const ComparisonOptions& options, std::string name, const Schedule& schedule,
                     const SearchOptions& search) {
  const SimulateOptions costs = simulate_options(search);
  // Splits that gain nothing are joined, because each costs time if a whole backward is cheaper
  // than its halves.
  const Schedule fewer = joined(schedule, costs);
  const Simulation run = simulate(fewer, costs);
  ComparisonRow row{std::move(name), fewer, search.costs};
  row.makespan = run.makespan;
  row.bubble = run.bubble_ratio();
  const std::vector<double> peaks = peak_bytes(fewer, search);
  row.peak = *std::max_element(peaks.begin(), peaks.end());
  row.splits = gpipe::splits(fewer) / fewer.workers();
  const std::vector<int64_t>& where = search.placement.worker_of_stage();
  int64_t ways = 0;
  for (size_t s = 1; s < where.size(); ++s) ways += where[s] == where[s - 1] ? 0 : 2;
  row.transfers = ways * options.micro_batches / fewer.workers();
  row.slack = fewer.verify(Sends::kBuffered).ascending
                  ? link_slack(fewer, search, row.makespan * (1.0 + options.tolerance))
                  : 0.0;
  row.fits = options.memory <= 0.0 || row.peak <= options.memory * (1.0 + 1e-9);
  return row;
}

void check(const ComparisonOptions& options) {
  const auto fail = [](const std::string& what) {
    throw std::invalid_argument("compare: " + what);
  };
  if (options.workers < 1 || options.micro_batches < 1) {
    fail("workers and micro_batches must be at least 1, got " + std::to_string(options.workers) +
         " and " + std::to_string(options.micro_batches));
  }
  if (!options.slowness.empty() &&
      options.slowness.size() != static_cast<size_t>(options.workers)) {
    fail("slowness has " + std::to_string(options.slowness.size()) + " numbers, and there are " +
         std::to_string(options.workers) + " workers: give one for each");
  }
  for (const double slowness : options.slowness) {
    if (!(slowness > 0.0 && std::isfinite(slowness))) {
      fail("slowness must be positive and finite, got " + text::exact(slowness));
    }
  }
  if (!(options.memory >= 0.0)) fail("memory must be at least 0");
  for (const int64_t v : options.stages_per_worker) {
    if (v < 1) fail("stages per worker must be at least 1, got " + std::to_string(v));
  }
}

}  // namespace

std::vector<ComparisonRow> compare(const ComparisonOptions& options) {
  check(options);
  const int64_t p = options.workers;
  const int64_t m = options.micro_batches;
  std::vector<ComparisonRow> rows;
  const auto asked_to_stop = [&] { return options.stop && options.stop(); };
  for (const NamedSchedule& named : named_schedules()) {
    if (named.name == "gpipe" || named.name == "sequential")
      continue;  // gpipe has the times of fill-drain; sequential is not a pipeline
    std::vector<int64_t> counts = {named.shape == PlacementShape::kVShape ? 2 : 1};
    if (named.shape == PlacementShape::kLoop) counts = options.stages_per_worker;
    for (const int64_t v : counts) {
      if (!rows.empty() && asked_to_stop()) break;
      NamedScheduleOptions how;
      if (named.shape == PlacementShape::kLoop) how.stages_per_worker = v;
      how.costs = {divided(options.worker_cost, static_cast<double>(v)), options.transfer};
      const std::string name =
          named.name + (named.shape == PlacementShape::kLoop ? " x" + std::to_string(v) : "");
      const SearchOptions search = options_for(options, placement_by_name(named.name, p * v, how));
      rows.push_back(row_of(options, name, schedule_by_name(named.name, p * v, m, how), search));
    }
  }
  // Searches are rows of the table only if each worker may hold one micro-batch of all its layers.
  // With less memory no search finds a schedule.
  const bool one_fits = options.memory <= 0.0 || options.memory * (1.0 + 1e-9) >= 1.0;
  if (options.search && one_fits) {
    std::vector<std::pair<std::string, Placement>> where = {
        {"search", Placement::one_each(p)}, {"search in a V", Placement::v_shape(p)}};
    for (const int64_t v : options.stages_per_worker) {
      if (v > 1) where.push_back({"search x" + std::to_string(v), Placement::loop(p, v)});
    }
    for (const auto& [name, placement] : where) {
      if (asked_to_stop()) break;
      const SearchOptions search = options_for(options, placement);
      rows.push_back(row_of(options, name, gpipe::search(search).schedule, search));
    }
  }
  std::stable_sort(rows.begin(), rows.end(), [](const ComparisonRow& a, const ComparisonRow& b) {
    if (a.fits != b.fits) return a.fits;
    return a.makespan < b.makespan * (1.0 - 1e-9);
  });
  return rows;
}

std::string nothing_fits(const std::vector<ComparisonRow>& rows) {
  if (std::any_of(rows.begin(), rows.end(), [](const auto& row) { return row.fits; })) return "";
  const auto least = std::min_element(rows.begin(), rows.end(),
                                      [](const auto& a, const auto& b) { return a.peak < b.peak; });
  // The message names 1, because a search always finds an order if a worker may hold one
  // micro-batch of all its layers.
  return "none of these schedules fits; give 1, with which a search finds one, or " +
         amount(least->peak) + " for " + least->name;
}

std::string to_text(const std::vector<ComparisonRow>& rows) {
  size_t width = 8;
  for (const ComparisonRow& row : rows) width = std::max(width, row.name.size());
  const auto left = [&](std::string text) {
    text.resize(width, ' ');
    return text;
  };
  const auto right = [](const std::string& text, size_t columns) {
    return std::string(columns > text.size() ? columns - text.size() : 1, ' ') + text;
  };
  std::string text = left("schedule") + right("makespan", 12) + right("bubble", 10) +
                     right("peak", 9) + right("splits", 9) + right("transfers", 11) +
                     right("slack", 9) + "\n";
  for (const ComparisonRow& row : rows) {
    text += left(row.name) + right(amount(row.makespan), 12) +
            right(fixed(100.0 * row.bubble, 1) + " %", 10) + right(amount(row.peak), 9) +
            right(std::to_string(row.splits), 9) + right(std::to_string(row.transfers), 11) +
            right(std::isfinite(row.slack) ? amount(row.slack) : "-", 9) +
            (row.fits ? "" : "  does not fit") + "\n";
  }
  return text;
}

std::string to_json(const std::vector<ComparisonRow>& rows) {
  std::string text = "[";
  for (const ComparisonRow& row : rows) {
    std::string table = row.schedule.to_text();
    std::string escaped;
    for (const char c : table) escaped += c == '\n' ? std::string("\\n") : std::string(1, c);
    text += (text.size() > 1 ? ",\n" : "\n");
    text += "  {\"name\": \"" + row.name + "\", \"makespan\": " + text::exact(row.makespan) +
            ", \"bubble\": " + text::exact(row.bubble) + ", \"peak\": " + text::exact(row.peak) +
            ", \"splits\": " + std::to_string(row.splits) +
            ", \"transfers\": " + std::to_string(row.transfers) +
            ", \"slack\": " + (std::isfinite(row.slack) ? text::exact(row.slack) : "null") +
            ", \"fits\": " + (row.fits ? "true" : "false") + ", \"schedule\": \"" + escaped + "\"}";
  }
  return text + "\n]\n";
}

std::string to_svg(const std::vector<ComparisonRow>& rows, double transfer) {
  constexpr double kWidth = 1000.0;
  constexpr double kBar = 12.0;
  constexpr double kTitle = 22.0;
  double longest = 0.0;
  double height = 0.0;
  for (const ComparisonRow& row : rows) {
    longest = std::max(longest, row.makespan);
    height += kTitle + kBar * static_cast<double>(row.schedule.workers());
  }
  const double scale = longest > 0.0 ? kWidth / longest : 1.0;
  std::string svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + fixed(kWidth + 20, 0) +
                    "\" height=\"" + fixed(height + 10, 0) +
                    "\" font-family=\"sans-serif\" font-size=\"12\">\n";
  double y = 0.0;
  for (const ComparisonRow& row : rows) {
    svg += "<text x=\"10\" y=\"" + fixed(y + 16, 1) + "\">" + row.name + ": makespan " +
           amount(row.makespan) + ", peak " + amount(row.peak) +
           (row.fits ? "" : ", does not fit") + "</text>\n";
    y += kTitle;
    const Simulation run =
        simulate(row.schedule, {stage_costs(row.costs), [=](const Transfer&) { return transfer; }});
    for (const std::vector<TimedAction>& timeline : run.workers) {
      for (const TimedAction& timed : timeline) {
        static constexpr const char* kColors[] = {"#4c78a8", "#f58518", "#e45756", "#72b7b2"};
        svg += "<rect x=\"" + fixed(10 + timed.start * scale, 2) + "\" y=\"" + fixed(y, 1) +
               "\" width=\"" + fixed((timed.end - timed.start) * scale, 2) + "\" height=\"" +
               fixed(kBar - 1, 1) + "\" fill=\"" + kColors[static_cast<size_t>(timed.action.kind)] +
               "\" stroke=\"white\" " + "stroke-width=\"0.3\"><title>" + timed.action.to_text() +
               "</title></rect>\n";
      }
      y += kBar;
    }
  }
  return svg + "</svg>\n";
}

}  // namespace gpipe::internal
