#include "python/extension/schedule.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gpipe/placement.h"
#include "gpipe/schedule/commands/comparison.h"
#include "gpipe/schedule/csv_schedule.h"
#include "gpipe/schedule/drawing.h"
#include "gpipe/schedule/named_schedule.h"
#include "gpipe/schedule/relabel.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/schedule/search.h"
#include "gpipe/schedule/simulate.h"
#include "python/extension/gil.h"

namespace gpipe::python {
namespace {

namespace py = pybind11;

// Forward, backward, input gradient, weight gradient.
using Costs = std::array<double, 4>;

StageCost cost_of(const Costs& costs) { return {costs[0], costs[1], costs[2], costs[3]}; }

std::vector<StageCost> costs_of(const std::vector<Costs>& costs) {
  std::vector<StageCost> converted;
  converted.reserve(costs.size());
  for (const Costs& cost : costs) converted.push_back(cost_of(cost));
  return converted;
}

// The costs for each stage. If `costs` has a single entry, all stages have that one.
std::vector<StageCost> costs_for(const Schedule& schedule, const std::vector<Costs>& costs) {
  const auto stages = static_cast<size_t>(schedule.stages());
  if (costs.size() == 1) return std::vector<StageCost>(stages, cost_of(costs.front()));
  if (costs.size() != stages) {
    throw py::value_error("got " + std::to_string(costs.size()) + " costs for " +
                          std::to_string(stages) +
                          " stages: give one for each stage, or one for all");
  }
  return costs_of(costs);
}

SimulateOptions simulate_options(std::vector<StageCost> costs, double transfer) {
  SimulateOptions options;
  options.action = stage_costs(std::move(costs));
  options.transfer = [transfer](const Transfer&) { return transfer; };
  return options;
}

Sends sends_of(const std::string& name) {
  if (name == "buffered") return Sends::kBuffered;
  if (name == "rendezvous") return Sends::kRendezvous;
  if (name == "posted ahead") return Sends::kPostedAhead;
  throw py::value_error("sends is not one of 'buffered', 'rendezvous' or 'posted ahead': '" + name +
                        "'");
}

// Runs a function that may take seconds, without the GIL. Ctrl-C ends it: `function` gets a
// callback that says whether to stop.
template <typename Function>
auto interruptible(const Function& function) {
  std::optional<py::error_already_set> error;
  auto result = without_gil([&] {
    return function([&error] {
      const WithGil gil;
      if (!error && PyErr_CheckSignals() != 0) error.emplace();
      return error.has_value();
    });
  });
  if (error) throw py::error_already_set(*error);
  return result;
}

using ActionTuple = std::tuple<std::string, int32_t, int32_t>;

std::vector<std::vector<ActionTuple>> table_of(const Schedule& schedule) {
  std::vector<std::vector<ActionTuple>> table;
  for (const std::vector<Action>& worker : schedule.table()) {
    table.emplace_back();
    for (const Action& action : worker) {
      table.back().emplace_back(std::string(1, letter(action.kind)), action.stage,
                                action.micro_batch);
    }
  }
  return table;
}

Schedule create(int64_t stages, int64_t micro_batches,
                const std::vector<std::vector<std::string>>& workers) {
  std::vector<std::vector<Action>> table;
  for (const std::vector<std::string>& worker : workers) {
    table.emplace_back();
    for (const std::string& action : worker) table.back().push_back(Action::from_text(action));
  }
  return Schedule::create(stages, micro_batches, std::move(table));
}

Schedule by_name(const std::string& name, int64_t stages, int64_t micro_batches,
                 int64_t stages_per_worker, const Costs& costs, double transfer) {
  NamedScheduleOptions options;
  options.stages_per_worker = stages_per_worker;
  options.costs = {cost_of(costs), transfer};
  return without_gil([&] { return schedule_by_name(name, stages, micro_batches, options); });
}

py::dict verified(const Schedule& schedule, const std::string& sends_name) {
  const Sends sends = sends_of(sends_name);
  const ScheduleFacts facts = without_gil([&] { return schedule.verify(sends); });
  py::dict ahead;
  for (const ReceivesAhead& each : facts.receives_ahead) {
    ahead[py::make_tuple(each.from_worker, each.to_worker)] = each.actions;
  }
  py::dict result;
  result["makespan"] = facts.makespan;
  result["bubble"] = facts.bubble_ratio;
  result["peak_live"] = facts.peak_live;
  result["alive"] = facts.alive;
  result["idle"] = facts.idle;
  result["worker_peak_live"] = facts.worker_peak_live;
  result["worker_alive"] = facts.worker_alive;
  result["worker_idle"] = facts.worker_idle;
  result["ascending"] = facts.ascending;
  result["receives_ahead"] = ahead;
  return result;
}

py::dict simulated(const Schedule& schedule, const std::vector<Costs>& costs, double transfer) {
  const SimulateOptions options = simulate_options(costs_for(schedule, costs), transfer);
  const Simulation run = without_gil([&] { return simulate(schedule, options); });
  py::list workers;
  for (const std::vector<TimedAction>& worker : run.workers) {
    py::list timed;
    for (const TimedAction& each : worker) {
      timed.append(py::make_tuple(std::string(1, letter(each.action.kind)), each.action.stage,
                                  each.action.micro_batch, each.start, each.end));
    }
    workers.append(timed);
  }
  py::dict result;
  result["makespan"] = run.makespan;
  result["bubble"] = run.bubble_ratio();
  result["busy"] = run.busy;
  result["workers"] = workers;
  return result;
}

std::string svg(const Schedule& schedule, const std::vector<Costs>& costs, double transfer,
                std::string title) {
  const std::vector<StageCost> each = costs_for(schedule, costs);
  return without_gil([&] {
    internal::ComparisonRow row{std::move(title), schedule, each};
    row.makespan = simulate(schedule, simulate_options(each, transfer)).makespan;
    const std::vector<int64_t> live = schedule.verify(Sends::kBuffered).worker_peak_live;
    row.peak = static_cast<double>(*std::max_element(live.begin(), live.end())) *
               static_cast<double>(schedule.workers()) / static_cast<double>(schedule.stages());
    return internal::to_svg({row}, transfer);
  });
}

struct Comparison {
  std::vector<internal::ComparisonRow> rows;
  double transfer;
};

Comparison compare(int64_t workers, int64_t micro_batches, const Costs& worker_cost,
                   double transfer, std::vector<double> slowness, double memory, double tolerance,
                   bool search, int64_t budget) {
  internal::ComparisonOptions options;
  options.workers = workers;
  options.micro_batches = micro_batches;
  options.worker_cost = cost_of(worker_cost);
  options.transfer = transfer;
  options.slowness = std::move(slowness);
  options.memory = memory;
  options.tolerance = tolerance;
  options.search = search;
  options.budget = budget;
  return {interruptible([&](auto stop) {
            options.stop = stop;
            return internal::compare(options);
          }),
          transfer};
}

py::list rows_of(const Comparison& comparison) {
  py::list rows;
  for (const internal::ComparisonRow& row : comparison.rows) {
    rows.append(py::make_tuple(row.name, row.schedule, row.makespan, row.bubble, row.peak,
                               row.splits, row.transfers, row.slack, row.fits));
  }
  return rows;
}

py::dict searched(const std::vector<int64_t>& worker_of_stage, int64_t micro_batches,
                  const std::vector<Costs>& costs, std::vector<double> activation_transfer,
                  std::vector<double> gradient_transfer, std::vector<double> activation_bytes,
                  std::vector<double> waiting_bytes, std::vector<double> memory_limit, bool split,
                  bool slack, double tolerance, int64_t budget) {
  SearchOptions options;
  options.placement = Placement::of(worker_of_stage);
  options.micro_batches = micro_batches;
  options.costs = costs_of(costs);
  options.activation_transfer = std::move(activation_transfer);
  options.gradient_transfer = std::move(gradient_transfer);
  options.activation_bytes = std::move(activation_bytes);
  options.waiting_bytes = std::move(waiting_bytes);
  options.memory_limit = std::move(memory_limit);
  options.split = split;
  options.objective = slack ? Objective::kSlack : Objective::kMakespan;
  options.tolerance = tolerance;
  options.budget = budget;
  const SearchResult found = interruptible([&](auto stop) {
    options.stop = stop;
    return search(options);
  });
  py::dict result;
  result["schedule"] = found.schedule;
  result["origin"] = found.origin;
  result["makespan"] = found.makespan;
  result["lower_bound"] = found.lower_bound;
  result["slack"] = found.slack;
  result["peak_bytes"] = found.peak_bytes;
  return result;
}

}  // namespace

void add_schedule(py::module_& m) {
  py::class_<Schedule>(m, "ScheduleTable")
      .def_static("create", &create)
      .def_static("by_name", &by_name)
      .def_static("from_text",
                  [](const std::string& text) {
                    return without_gil([&] { return Schedule::from_text(text); });
                  })
      .def_static("from_csv",
                  [](const std::string& text) {
                    return without_gil([&] { return schedule_from_csv(text); });
                  })
      .def("stages", &Schedule::stages)
      .def("micro_batches", &Schedule::micro_batches)
      .def("worker_of_stage",
           [](const Schedule& schedule) { return schedule.placement().worker_of_stage(); })
      .def("to_text", &Schedule::to_text)
      .def("table", &table_of)
      .def("verify", &verified)
      .def("simulate", &simulated)
      .def("draw",
           [](const Schedule& schedule, const std::array<int64_t, 4>& columns) {
             return without_gil([&] {
               return draw(schedule, {columns[0], columns[1], columns[2], columns[3]});
             });
           })
      .def("svg", &svg)
      .def(
          "relabeled",
          [](const Schedule& schedule) { return without_gil([&] { return relabeled(schedule); }); })
      .def("equals", [](const Schedule& a, const Schedule& b) { return a == b; });

  py::class_<Comparison>(m, "Comparison")
      .def("rows", &rows_of)
      .def("text", [](const Comparison& comparison) { return internal::to_text(comparison.rows); })
      .def("svg", [](const Comparison& comparison) {
        return without_gil([&] { return internal::to_svg(comparison.rows, comparison.transfer); });
      });

  m.def("compare_schedules", &compare);
  m.def("search_schedule", &searched);
}

}  // namespace gpipe::python
