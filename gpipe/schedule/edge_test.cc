// Calls every public function of the package with values at which code often breaks, argument by
// argument: it must return, or throw std::invalid_argument or, for a stage or worker that does not
// exist, std::out_of_range.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/placement.h"
#include "gpipe/schedule/action.h"
#include "gpipe/schedule/csv_schedule.h"
#include "gpipe/schedule/default_schedule.h"
#include "gpipe/schedule/drawing.h"
#include "gpipe/schedule/named_schedule.h"
#include "gpipe/schedule/offloads.h"
#include "gpipe/schedule/program.h"
#include "gpipe/schedule/relabel.h"
#include "gpipe/schedule/routes.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/schedule/search/generators.h"
#include "gpipe/schedule/search/join.h"
#include "gpipe/schedule/search/search.h"
#include "gpipe/schedule/sequential.h"
#include "gpipe/schedule/simulate.h"
#include "tools/testing/edge_values.h"

namespace gpipe {
namespace {

using testing::EdgeRow;
using testing::integers;
using testing::lengths;
using testing::numbers;
using testing::texts;
using Rows = std::vector<EdgeRow>;

class EdgeTest : public ::testing::TestWithParam<EdgeRow> {};

TEST_P(EdgeTest, ReturnsOrThrowsWhatIsDocumented) {
  testing::expect_documented<std::invalid_argument, std::out_of_range>(GetParam());
}

Rows generators() {
  Rows rows;
  // Every generator that has a name is given wrong costs. Also a generator that does not use costs
  // must refuse them.
  for (const NamedSchedule& named : named_schedules()) {
    for (double StageCost::*cost : {&StageCost::forward, &StageCost::backward,
                                    &StageCost::input_gradient, &StageCost::weight_gradient}) {
      rows.push_back(numbers("schedule_by_name and placement_by_name", "options.costs",
                             [name = named.name, cost](double value) {
                               NamedScheduleOptions options;
                               options.costs.stage.*cost = value;
                               schedule_by_name(name, 2, 2, options);
                               placement_by_name(name, 2, options);
                             }));
    }
  }
  // These generators take two counts. Those below take three.
  using Two = Schedule (*)(int64_t, int64_t);
  for (const auto& [name, make] :
       std::vector<std::pair<std::string, Two>>{{"fill_drain", fill_drain},
                                                {"zb_h1", zb_h1},
                                                {"sequential", sequential},
                                                {"gpipe", Schedule::gpipe},
                                                {"one_f_one_b", Schedule::one_f_one_b}}) {
    const Two call = make;
    rows.push_back(integers(name, "stages", [call](int64_t value) { call(value, 2); }));
    rows.push_back(integers(name, "micro_batches", [call](int64_t value) { call(2, value); }));
  }
  using Three = Schedule (*)(int64_t, int64_t, int64_t);
  for (const auto& [name, make] : std::vector<std::pair<std::string, Three>>{
           {"interleaved", interleaved},
           {"looped_breadth_first", looped_breadth_first},
           {"zero_bubble_interleaved", zero_bubble_interleaved}}) {
    const Three call = make;
    rows.push_back(integers(name, "workers", [call](int64_t value) { call(value, 2, 2); }));
    rows.push_back(integers(name, "v", [call](int64_t value) { call(2, value, 2); }));
    rows.push_back(integers(name, "micro_batches", [call](int64_t value) { call(2, 2, value); }));
  }
  using Searched = Schedule (*)(int64_t, int64_t, const GeneratorCosts&);
  for (const auto& [name, make] :
       std::vector<std::pair<std::string, Searched>>{{"zb_h2", zb_h2},
                                                     {"zb_v", zb_v},
                                                     {"v_half", v_half},
                                                     {"v_min", v_min},
                                                     {"dualpipe_v", dualpipe_v}}) {
    const Searched call = make;
    rows.push_back(integers(name, "workers", [call](int64_t value) { call(value, 1, {}); }));
    rows.push_back(integers(name, "micro_batches", [call](int64_t value) { call(2, value, {}); }));
    for (double StageCost::*cost : {&StageCost::forward, &StageCost::backward,
                                    &StageCost::input_gradient, &StageCost::weight_gradient}) {
      rows.push_back(numbers(name, "costs.stage", [call, cost](double value) {
        GeneratorCosts costs;
        costs.stage.*cost = value;
        call(1, 1, costs);
      }));
    }
    rows.push_back(numbers(name, "costs.transfer", [call](double value) {
      GeneratorCosts costs;
      costs.transfer = value;
      call(2, 1, costs);
    }));
  }
  rows.push_back(texts("schedule_by_name", "name",
                       [](const std::string& name) { schedule_by_name(name, 2, 2); }));
  rows.push_back(integers("schedule_by_name", "stages",
                          [](int64_t value) { schedule_by_name("1f1b", value, 2); }));
  rows.push_back(integers("schedule_by_name", "micro_batches",
                          [](int64_t value) { schedule_by_name("1f1b", 2, value); }));
  rows.push_back(integers("schedule_by_name", "options.stages_per_worker", [](int64_t value) {
    NamedScheduleOptions options;
    options.stages_per_worker = value;
    schedule_by_name("interleaved", 4, 2, options);
    schedule_by_name("interleaved", options)(4, 2);
  }));
  rows.push_back(texts("placement_by_name", "name",
                       [](const std::string& name) { placement_by_name(name, 2); }));
  rows.push_back(integers("placement_by_name", "stages",
                          [](int64_t value) { placement_by_name("zb-v", value); }));
  rows.push_back(integers("placement_by_name", "options.stages_per_worker", [](int64_t value) {
    NamedScheduleOptions options;
    options.stages_per_worker = value;
    placement_by_name("interleaved", 4, options);
  }));
  rows.push_back(testing::calls("named_schedules", "none", {{"", [] { named_schedules(); }}}));
  rows.push_back(testing::calls("schedule_names", "none", {{"", [] { schedule_names(); }}}));
  for (const auto make : {default_schedule, fill_drain_on}) {
    rows.push_back(integers("default_schedule and fill_drain_on", "micro_batches",
                            [make](int64_t value) { make(Placement::loop(2, 2), value); }));
  }
  rows.push_back(integers("default_schedule", "micro_batches",
                          [](int64_t value) { default_schedule(Placement::v_shape(2), value); }));
  rows.push_back(integers("fill_drain_on", "micro_batches", [](int64_t value) {
    fill_drain_on(Placement::of({0, 1, 1}), value);
  }));
  rows.push_back(lengths("placed_fill_drain", "placement", 3, [](size_t stages) {
    placed_fill_drain(Schedule::gpipe(3, 2), Placement::one_each(static_cast<int64_t>(stages)));
  }));
  return rows;
}

SimulateOptions with_links() {
  SimulateOptions options;
  options.offload.bytes = [](const Action&) { return 1.0; };
  options.offload.to_host = options.offload.to_device = 2.0;
  return options;
}

// Calls of `call` with tables that no generator makes.
std::vector<EdgeRow::Call> tables(const std::function<void(const Schedule&)>& call) {
  const Schedule all = Schedule::one_f_one_b(3, 4);
  const Schedule missing = Schedule::create(3, 4, {all.actions(0), all.actions(1)});
  const Schedule twice =
      Schedule::create(3, 4, {all.actions(0), all.actions(0), all.actions(1), all.actions(2)});
  const Schedule backwards =
      all.only({ActionKind::kBackward, ActionKind::kInputGradient, ActionKind::kWeightGradient});
  std::vector<EdgeRow::Call> result;
  for (const auto& [name, schedule] : std::vector<std::pair<std::string, Schedule>>{
           {"no workers", Schedule::create(1, 1, {})},
           {"empty lists", Schedule::create(3, 4, {{}, {}, {}})},
           {"a stage less", Schedule::one_f_one_b(2, 4)},
           {"a stage more", Schedule::one_f_one_b(4, 4)},
           {"many stages more", Schedule::one_f_one_b(200, 4)},
           {"a micro-batch less", Schedule::one_f_one_b(3, 3)},
           {"a micro-batch more", Schedule::one_f_one_b(3, 5)},
           {"one micro-batch", Schedule::one_f_one_b(3, 1)},
           {"many micro-batches more", Schedule::one_f_one_b(3, 4000)},
           {"another placement", interleaved(1, 3, 4)},
           {"a worker's list missing", missing},
           {"a worker's list twice", twice},
           {"forwards", all.only({ActionKind::kForward})},
           {"backwards", backwards},
           {"no kinds", all.only({})},
           {"descending", Schedule::gpipe(3, 4)},
           {"offloads", with_offloads(Schedule::gpipe(3, 4), Routes::create(3), with_links())}}) {
    const Schedule table = schedule;
    result.push_back({name, [call, table] { call(table); }});
  }
  return result;
}

SearchOptions three_stages() {
  SearchOptions options;
  options.placement = Placement::one_each(3);
  options.micro_batches = 4;
  options.budget = 2000;
  return options;
}

Rows schedules() {
  Rows rows;
  rows.push_back(
      integers("create", "stages", [](int64_t value) { Schedule::create(value, 1, {}); }));
  rows.push_back(
      integers("create", "micro_batches", [](int64_t value) { Schedule::create(1, value, {}); }));
  for (const int32_t value :
       {-1, 2, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()}) {
    rows.push_back(
        testing::calls("create", "workers",
                       {{"stage " + std::to_string(value),
                         [value] {
                           Schedule::create(2, 2, {{{ActionKind::kForward, value, 0}}});
                         }},
                        {"micro-batch " + std::to_string(value),
                         [value] {
                           Schedule::create(2, 2, {{{ActionKind::kForward, 0, value}}});
                         }},
                        {"kind", [] {
                           Schedule::create(2, 2, {{{static_cast<ActionKind>(9), 0, 0}}});
                         }}}));
  }
  const Schedule schedule = Schedule::one_f_one_b(3, 4);
  rows.push_back(
      integers("actions", "worker", [schedule](int64_t value) { (void)schedule.actions(value); }));
  rows.push_back(integers("worker_of", "stage",
                          [schedule](int64_t value) { (void)schedule.worker_of(value); }));
  rows.push_back(
      texts("from_text", "text", [](const std::string& text) { Schedule::from_text(text); }));
  rows.push_back(
      texts("from_text", "text", [](const std::string& text) { Action::from_text(text); }));
  rows.push_back(
      texts("schedule_from_csv", "text", [](const std::string& text) { schedule_from_csv(text); }));
  rows.push_back(
      testing::calls("letter", "kind", {{"9", [] { (void)letter(static_cast<ActionKind>(9)); }}}));
  rows.push_back(testing::calls("computes", "kind",
                                {{"9", [] { (void)computes(static_cast<ActionKind>(9)); }}}));
  rows.push_back(
      integers("create", "stages of routes", [](int64_t value) { Routes::create(value); }));
  for (const int32_t value :
       {-1, 3, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()}) {
    rows.push_back(testing::calls("create", "skips of routes",
                                  {{"from " + std::to_string(value),
                                    [value] {
                                      Routes::create(3, {{value, 2, ""}});
                                    }},
                                   {"to " + std::to_string(value), [value] {
                                      Routes::create(3, {{0, value, ""}});
                                    }}}));
  }
  const Routes routes = Routes::create(3);
  rows.push_back(
      integers("outgoing", "stage", [routes](int64_t value) { (void)routes.outgoing(value); }));
  rows.push_back(
      integers("incoming", "stage", [routes](int64_t value) { (void)routes.incoming(value); }));
  rows.push_back(integers("skip and to_text", "id", [routes](int64_t value) {
    (void)routes.skip(static_cast<RouteId>(value));
    (void)to_text(static_cast<RouteId>(value));
  }));
  rows.push_back(integers("bubble", "worker", [schedule](int64_t value) {
    (void)simulate(schedule).bubble(value);
    (void)simulate(schedule).bubble_ratio();
  }));
  const auto of_tables = [&](const char* name, const std::function<void(const Schedule&)>& call) {
    rows.push_back(testing::calls(name, "schedule", tables(call)));
  };
  of_tables("relabeled", [](const Schedule& table) { relabeled(table); });
  of_tables("splits", [](const Schedule& table) { splits(table); });
  of_tables("draw", [](const Schedule& table) { draw(table); });
  of_tables("compile", [](const Schedule& table) { compile(table, Routes::create(3)); });
  of_tables("verify", [](const Schedule& table) {
    table.verify();
    table.verify(Routes::create(3));
  });
  of_tables("check", [](const Schedule& table) { table.check(Placement::one_each(3)); });
  of_tables("placement", [](const Schedule& table) { table.placement(); });
  of_tables("placed_fill_drain",
            [](const Schedule& table) { placed_fill_drain(table, Placement::loop(1, 3)); });
  of_tables("simulate", [](const Schedule& table) {
    simulate(table, {stage_costs(std::vector<StageCost>(3)), {}});
  });
  of_tables("simulate with the costs of a search", [](const Schedule& table) {
    SearchOptions options = three_stages();
    options.activation_transfer = options.gradient_transfer = {0.5};
    simulate(table, simulate_options(options));
  });
  of_tables("simulate with routes", [](const Schedule& table) {
    SearchOptions options = three_stages();
    options.skips = {{0, 2, 0.5, 0.5}};
    simulate(table, search_routes(options), simulate_options(options));
  });
  of_tables("joined", [](const Schedule& table) {
    joined(table, simulate_options(three_stages()));
    joined(table, Routes::create(3), simulate_options(three_stages()));
  });
  of_tables("without_offloads", [](const Schedule& table) { without_offloads(table); });
  of_tables("with_offloads", [](const Schedule& table) {
    with_offloads(table, Routes::create(3), with_links());
    simulate(table, with_links());
  });
  rows.push_back(numbers("with_offloads", "more_time", [schedule](double value) {
    with_offloads(schedule, Routes::create(3), with_links(), value);
  }));
  for (double OffloadCosts::*rate : {&OffloadCosts::to_host, &OffloadCosts::to_device}) {
    rows.push_back(numbers("with_offloads", "rates of links", [schedule, rate](double value) {
      SimulateOptions options = with_links();
      options.offload.*rate = value;
      with_offloads(schedule, Routes::create(3), options);
      simulate(schedule, options);
    }));
  }
  rows.push_back(numbers("with_offloads", "bytes", [schedule](double value) {
    SimulateOptions options = with_links();
    options.offload.bytes = [value](const Action&) { return value; };
    with_offloads(schedule, Routes::create(3), options);
  }));
  for (const int32_t value : {-1, 2, std::numeric_limits<int32_t>::max()}) {
    rows.push_back(testing::calls("with_offloads", "links",
                                  {{std::to_string(value), [schedule, value] {
                                      SimulateOptions options = with_links();
                                      options.offload.link = {value, value, value};
                                      with_offloads(schedule, Routes::create(3), options);
                                    }}}));
  }
  rows.push_back(lengths("with_offloads", "links", 3, [schedule](size_t count) {
    SimulateOptions options = with_links();
    options.offload.link = std::vector<int32_t>(count);
    with_offloads(schedule, Routes::create(3), options);
  }));
  rows.push_back(lengths("with_offloads", "most", 3, [schedule](size_t count) {
    with_offloads(schedule, Routes::create(3), with_links(), 0.0, std::vector<int64_t>(count, 1));
  }));
  rows.push_back(integers("with_offloads", "most", [schedule](int64_t value) {
    with_offloads(schedule, Routes::create(3), with_links(), 0.0, {value, value, value});
  }));
  of_tables("peak_bytes", [](const Schedule& table) { peak_bytes(table, three_stages()); });
  of_tables("link_slack", [](const Schedule& table) { link_slack(table, three_stages(), 100); });
  rows.push_back(numbers("link_slack", "deadline", [schedule](double value) {
    link_slack(schedule, three_stages(), value);
  }));
  for (int64_t DrawingCosts::*cost :
       {&DrawingCosts::forward, &DrawingCosts::backward, &DrawingCosts::input_gradient,
        &DrawingCosts::weight_gradient}) {
    rows.push_back(integers("draw", "costs", [schedule, cost](int64_t value) {
      DrawingCosts costs;
      costs.*cost = value;
      draw(schedule, costs);
    }));
  }
  for (double StageCost::*cost : {&StageCost::forward, &StageCost::backward}) {
    rows.push_back(numbers("uniform_cost", "cost", [schedule, cost](double value) {
      StageCost costs;
      costs.*cost = value;
      simulate(schedule, {uniform_cost(costs), {}});
      joined(schedule, {uniform_cost(costs), {}});
    }));
  }
  rows.push_back(numbers("simulate", "options.transfer", [schedule](double value) {
    simulate(schedule, {uniform_cost({}), [=](const Transfer&) { return value; }});
    joined(schedule, {uniform_cost({}), [=](const Transfer&) { return value; }});
  }));
  rows.push_back(lengths("stage_costs", "costs", 3, [schedule](size_t count) {
    simulate(schedule, {stage_costs(std::vector<StageCost>(count)), {}});
  }));
  rows.push_back(lengths("joined", "costs", 3, [schedule](size_t count) {
    joined(schedule, {stage_costs(std::vector<StageCost>(count)), {}});
  }));
  rows.push_back(testing::calls("simulate", "options.action",
                                {{"empty",
                                  [schedule] {
                                    simulate(schedule, {{}, {}});
                                  }},
                                 {"asked for another stage",
                                  [] {
                                    stage_costs({{}})({ActionKind::kForward, -1, 0});
                                  }},
                                 {"asked for another kind", [] {
                                    uniform_cost({})({static_cast<ActionKind>(9), 0, 0});
                                  }}}));
  return rows;
}

// Rows in which all functions that take SearchOptions are called with one option at an edge of its
// range.
Rows options() {
  Rows rows;
  const auto all = [](const SearchOptions& options) {
    const Schedule schedule = Schedule::one_f_one_b(3, 4);
    // If one of these calls throws, the other calls are made all the same.
    const std::vector<std::function<void()>> calls = {
        [&] { search_routes(options); },
        [&] { simulate(schedule, search_routes(options), simulate_options(options)); },
        [&] { peak_bytes(schedule, options); },
        [&] { link_slack(schedule, options, 100); },
        [&] {
          int asked = 0;
          SearchOptions ends = options;
          ends.stop = [&] { return ++asked > 300; };
          search(ends);
        },
    };
    for (const auto& call : calls) {
      try {
        call();
      } catch (const std::invalid_argument&) {
      }
    }
  };
  const std::string functions =
      "search, search_routes, simulate_options, peak_bytes and link_slack";
  for (const Objective objective : {Objective::kMakespan, Objective::kSlack}) {
    const auto with = [=](const std::function<void(SearchOptions*)>& change) {
      SearchOptions options = three_stages();
      options.objective = objective;
      change(&options);
      all(options);
    };
    const auto number = [&](const char* argument,
                            const std::function<void(SearchOptions*, double)>& change) {
      rows.push_back(numbers(functions, argument, [=](double value) {
        with([&](SearchOptions* options) { change(options, value); });
      }));
    };
    const auto integer = [&](const char* argument,
                             const std::function<void(SearchOptions*, int64_t)>& change) {
      rows.push_back(integers(functions, argument, [=](int64_t value) {
        with([&](SearchOptions* options) { change(options, value); });
      }));
    };
    const auto length = [&](const char* argument, size_t right,
                            const std::function<void(SearchOptions*, size_t)>& change) {
      rows.push_back(lengths(functions, argument, right, [=](size_t count) {
        with([&](SearchOptions* options) { change(options, count); });
      }));
    };
    length("placement", 3, [](auto* options, size_t count) {
      options->placement = Placement::one_each(static_cast<int64_t>(count));
    });
    integer("micro_batches", [](auto* options, int64_t v) { options->micro_batches = v; });
    integer("budget", [](auto* options, int64_t v) { options->budget = v; });
    number("tolerance", [](auto* options, double v) { options->tolerance = v; });
    number("costs.forward", [](auto* options, double v) { options->costs[0].forward = v; });
    number("costs.backward", [](auto* options, double v) { options->costs[0].backward = v; });
    number("costs.input_gradient",
           [](auto* options, double v) { options->costs[0].input_gradient = v; });
    number("costs.weight_gradient",
           [](auto* options, double v) { options->costs[0].weight_gradient = v; });
    number("activation_transfer", [](auto* options, double v) {
      options->activation_transfer = {v, 0.1};
    });
    number("gradient_transfer", [](auto* options, double v) { options->gradient_transfer = {v}; });
    number("activation_bytes", [](auto* options, double v) { options->activation_bytes = {v}; });
    number("waiting_bytes", [](auto* options, double v) { options->waiting_bytes = {v}; });
    number("memory_limit", [](auto* options, double v) { options->memory_limit = {v}; });
    number("skips.activation_transfer", [](auto* options, double v) {
      options->skips = {{0, 2, v, 0}};
    });
    number("skips.gradient_transfer", [](auto* options, double v) {
      options->skips = {{0, 2, 0, v}};
    });
    integer("skips.from_stage", [](auto* options, int64_t v) { options->skips = {{v, 2, 0, 0}}; });
    integer("skips.to_stage", [](auto* options, int64_t v) { options->skips = {{0, v, 0, 0}}; });
    length("costs", 3, [](auto* options, size_t n) { options->costs.assign(n, {1, 2, 1, 1}); });
    length("activation_transfer", 2,
           [](auto* options, size_t n) { options->activation_transfer.assign(n, 0.1); });
    length("gradient_transfer", 2,
           [](auto* options, size_t n) { options->gradient_transfer.assign(n, 0.1); });
    length("activation_bytes", 3,
           [](auto* options, size_t n) { options->activation_bytes.assign(n, 1.0); });
    length("waiting_bytes", 3,
           [](auto* options, size_t n) { options->waiting_bytes.assign(n, 1.0); });
    length("memory_limit", 3,
           [](auto* options, size_t n) { options->memory_limit.assign(n, 9.0); });
  }
  return rows;
}

INSTANTIATE_TEST_SUITE_P(Generators, EdgeTest, ::testing::ValuesIn(generators()));
INSTANTIATE_TEST_SUITE_P(Schedules, EdgeTest, ::testing::ValuesIn(schedules()));
INSTANTIATE_TEST_SUITE_P(Options, EdgeTest, ::testing::ValuesIn(options()));

// Functions that take a schedule and SearchOptions throw if the two are for different pipelines.
TEST(EdgeTest, AScheduleOfOtherMicroBatchesIsRefused) {
  const Schedule more = Schedule::one_f_one_b(3, 5);
  EXPECT_THROW(peak_bytes(more, three_stages()), std::invalid_argument);
  EXPECT_THROW(link_slack(more, three_stages(), 100), std::invalid_argument);
  EXPECT_THROW(link_slack(Schedule::one_f_one_b(3, 4), three_stages(),
                          std::numeric_limits<double>::quiet_NaN()),
               std::invalid_argument);
  for (const ActionKind kind : {ActionKind::kForward, ActionKind::kBackward}) {
    const Schedule half = Schedule::one_f_one_b(3, 4).only({kind});
    EXPECT_THROW(peak_bytes(half, three_stages()), std::invalid_argument);
    EXPECT_THROW(link_slack(half, three_stages(), 100), std::invalid_argument);
  }
  const Schedule deeper = Schedule::one_f_one_b(4, 4);
  EXPECT_THROW(simulate(deeper, simulate_options(three_stages())), std::out_of_range);
  EXPECT_THROW(joined(deeper, simulate_options(three_stages())), std::out_of_range);
}

}  // namespace
}  // namespace gpipe
