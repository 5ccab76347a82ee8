// Calls every public function of the package with extreme values, argument by argument. Each call
// must return, or throw std::invalid_argument, c10::Error or, if its header says so,
// std::overflow_error or std::runtime_error.
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "balance/balance.h"
#include "balance/choose/fit.h"
#include "balance/choose/pipeline_plan.h"
#include "balance/choose/plan.h"
#include "balance/choose/plan_check.h"
#include "balance/choose/plan_options.h"
#include "balance/choose/training.h"
#include "balance/costs/check_rows.h"
#include "balance/costs/flops.h"
#include "balance/costs/profile.h"
#include "balance/costs/profile_file.h"
#include "balance/cut/partition.h"
#include "balance/memory/memory_plan.h"
#include "balance/memory/memory_plan_text.h"
#include "balance/memory/memory_trace.h"
#include "balance/memory/plan_uncertainty.h"
#include "balance/step/explain.h"
#include "balance/step/explanation_text.h"
#include "gpipe/schedule/schedule.h"
#include "meta/meta_scope.h"
#include "tools/testing/edge_values.h"

namespace gpipe::balance {
namespace {

using testing::calls;
using testing::EdgeRow;
using testing::integers;
using testing::lengths;
using testing::numbers;
using testing::texts;
using Rows = std::vector<EdgeRow>;

class EdgeTest : public ::testing::TestWithParam<EdgeRow> {};

TEST_P(EdgeTest, ReturnsOrThrowsWhatIsDocumented) {
  testing::expect_documented<std::invalid_argument, std::out_of_range, std::overflow_error,
                             std::runtime_error, c10::Error>(GetParam());
}

Profile three_layers() {
  Profile profile;
  profile.device = "test";
  profile.batch_rows = 2;
  profile.input = 1000;
  for (int k = 0; k < 3; ++k) {
    LayerProfile layer;
    layer.name = std::to_string(k);
    layer.forward = 1;
    layer.backward = 2;
    layer.parameters = 10;
    layer.buffers = 1;
    layer.kept = 100;
    layer.workspace = 7;
    layer.output = 50;
    layer.split = SplitBackward{1, 1, 50};
    profile.layers.push_back(layer);
  }
  profile.skips = {{0, 2, 5}};
  return profile;
}

Rows partitions() {
  Rows rows;
  const std::vector<double> costs = {1, 2, 3};
  rows.push_back(numbers("partition", "costs", [](double value) { partition({1, value, 3}, 2); }));
  rows.push_back(lengths("partition", "costs", 2,
                         [](size_t count) { partition(std::vector<double>(count, 1.0), 2); }));
  rows.push_back(
      integers("partition", "partitions", [costs](int64_t value) { partition(costs, value); }));
  const auto with = [&](const char* argument, auto change) {
    rows.push_back(numbers("partition", argument, [=](double value) {
      PartitionOptions options;
      change(&options, value);
      partition(costs, 2, options);
    }));
  };
  with("slowness", [](auto* options, double v) { options->slowness = {1, v}; });
  with("send_costs", [](auto* options, double v) { options->send_costs = {v, 1}; });
  with("receive_costs", [](auto* options, double v) { options->receive_costs = {v, 1}; });
  rows.push_back(integers("partition", "sizes and size_limits", [costs](int64_t value) {
    for (const bool limit : {false, true}) {
      PartitionOptions options;
      options.sizes = {1, limit ? 1 : value, 1};
      options.size_limits = {9, limit ? value : 9};
      try {
        partition(costs, 2, options);
      } catch (const std::invalid_argument&) {
      }
    }
  }));
  rows.push_back(integers("partition", "keep_together", [costs](int64_t value) {
    PartitionOptions options;
    options.keep_together = {{value, value}};
    partition(costs, 2, options);
  }));
  rows.push_back(lengths("partition", "lists", 2, [costs](size_t count) {
    PartitionOptions options;
    options.slowness.assign(count, 1);
    options.send_costs.assign(count, 1);
    options.receive_costs.assign(count, 1);
    options.sizes.assign(count + 1, 1);
    options.size_limits.assign(count, 9);
    partition(costs, 2, options);
  }));
  return rows;
}

// `call` takes a profile with one wrong value.
void add_profiles(Rows* rows, const std::string& function,
                  const std::function<void(const Profile&)>& call) {
  const auto number = [&](const std::string& argument, auto change) {
    rows->push_back(numbers(function, argument, [=](double value) {
      Profile profile = three_layers();
      change(&profile.layers[1], value);
      call(profile);
    }));
  };
  number("forward", [](LayerProfile* layer, double v) { layer->forward = v; });
  number("backward", [](LayerProfile* layer, double v) { layer->backward = v; });
  number("split.input", [](LayerProfile* layer, double v) { layer->split->input = v; });
  number("split.weight", [](LayerProfile* layer, double v) { layer->split->weight = v; });
  const auto integer = [&](const std::string& argument, auto change) {
    rows->push_back(integers(function, argument, [=](int64_t value) {
      Profile profile = three_layers();
      change(&profile, value);
      call(profile);
    }));
  };
  integer("input", [](Profile* p, int64_t v) { p->input = v; });
  integer("batch_rows", [](Profile* p, int64_t v) { p->batch_rows = v; });
  integer("parameters", [](Profile* p, int64_t v) { p->layers[1].parameters = v; });
  integer("buffers", [](Profile* p, int64_t v) { p->layers[1].buffers = v; });
  integer("kept", [](Profile* p, int64_t v) { p->layers[1].kept = v; });
  integer("workspace", [](Profile* p, int64_t v) { p->layers[1].workspace = v; });
  integer("output", [](Profile* p, int64_t v) { p->layers[1].output = v; });
  integer("split.waiting", [](Profile* p, int64_t v) { p->layers[1].split->waiting = v; });
  integer("skips.from", [](Profile* p, int64_t v) { p->skips[0].from = v; });
  integer("skips.to", [](Profile* p, int64_t v) { p->skips[0].to = v; });
  integer("skips.bytes", [](Profile* p, int64_t v) { p->skips[0].bytes = v; });
  rows->push_back(lengths(function, "layers", 3, [=](size_t count) {
    Profile profile = three_layers();
    profile.layers.resize(count);
    call(profile);
  }));
  rows->push_back(calls(function, "halves", {{"of one layer are missing", [=] {
                                                Profile profile = three_layers();
                                                profile.layers[1].split.reset();
                                                call(profile);
                                              }}}));
}

// `call` takes options for two partitions and four micro-batches, one of which is wrong.
void add_machines(Rows* rows, const std::string& function,
                  const std::function<void(const ExplainOptions&)>& call) {
  const auto number = [&](const std::string& argument, auto change) {
    rows->push_back(numbers(function, argument, [=](double value) {
      ExplainOptions options;
      options.chunks = 4;
      change(&options, value);
      call(options);
    }));
  };
  number("bandwidth", [](auto* options, double v) { options->bandwidth = v; });
  number("latency", [](auto* options, double v) { options->latency = v; });
  number("host_bandwidth", [](auto* options, double v) { options->host_bandwidth = v; });
  number("overhead", [](auto* options, double v) { options->overhead = v; });
  number("contention", [](auto* options, double v) { options->contention = v; });
  number("param_scale", [](auto* options, double v) { options->param_scale = v; });
  number("slowness", [](auto* options, double v) { options->slowness = {1, v}; });
  number("micro_batch_sizes", [](auto* options, double v) {
    options->chunks = 2;
    options->micro_batch_sizes = {v, 1};
  });
  rows->push_back(integers(function, "cores", [=](int64_t value) {
    ExplainOptions options;
    options.chunks = 4;
    options.cores = value;
    call(options);
  }));
  rows->push_back(integers(function, "chunks", [=](int64_t value) {
    ExplainOptions options;
    options.chunks = value;
    call(options);
  }));
  rows->push_back(integers(function, "keep_together", [=](int64_t value) {
    ExplainOptions options;
    options.chunks = 4;
    options.keep_together = {{value, value}};
    call(options);
  }));
  rows->push_back(lengths(function, "slowness, sizes and modes", 2, [=](size_t count) {
    ExplainOptions options;
    options.chunks = 4;
    options.slowness.assign(count, 1);
    call(options);
  }));
  rows->push_back(lengths(function, "micro_batch_sizes", 4, [=](size_t count) {
    ExplainOptions options;
    options.chunks = 4;
    options.micro_batch_sizes.assign(count, 1);
    call(options);
  }));
  rows->push_back(lengths(function, "partition_checkpoints", 2, [=](size_t count) {
    ExplainOptions options;
    options.chunks = 4;
    options.partition_checkpoints.assign(count, Checkpoint::kAlways);
    call(options);
  }));
}

Rows explanations() {
  Rows rows;
  const auto both = [](const Profile& profile, const ExplainOptions& options) {
    for (const bool best : {false, true}) {
      try {
        if (best) best_balance(profile, 2, options);
        if (best) offloaded_schedule(profile, {1, 2}, options);
        if (best) continue;
        const Explanation explanation = explain(profile, {1, 2}, options);
        to_text(explanation);
        to_json(explanation);
      } catch (const std::invalid_argument&) {
      }
    }
  };
  const std::string functions = "explain, best_balance, offloaded_schedule, to_text and to_json";
  add_profiles(&rows, functions, [=](const Profile& profile) {
    ExplainOptions options;
    options.chunks = 4;
    both(profile, options);
  });
  add_machines(&rows, functions,
               [=](const ExplainOptions& options) { both(three_layers(), options); });
  rows.push_back(numbers("offloaded_schedule", "more_time", [](double value) {
    ExplainOptions options;
    options.host_bandwidth = 1;
    offloaded_schedule(three_layers(), {1, 2}, options, value);
  }));
  rows.push_back(integers("explain", "balance", [](int64_t value) {
    explain(three_layers(), {1, value});
  }));
  rows.push_back(integers("explain", "a balance whose sum wraps", [](int64_t value) {
    explain(three_layers(), {value, std::numeric_limits<int64_t>::max(), 4 - value});
  }));
  rows.push_back(lengths("explain", "balance", 3, [](size_t count) {
    explain(three_layers(), std::vector<int64_t>(count, 1));
  }));
  rows.push_back(integers("best_balance", "partitions",
                          [](int64_t value) { best_balance(three_layers(), value); }));
  rows.push_back(integers("checkpoint_modes", "partitions", [](int64_t value) {
    try {
      checkpoint_modes({}, value);
    } catch (const std::invalid_argument&) {
    }
    ExplainOptions options;
    options.partition_checkpoints = {Checkpoint::kAlways};
    checkpoint_modes(options, value);
  }));
  rows.push_back(numbers("split_backward, scale_times and add_times", "factor", [](double value) {
    LayerProfile layer = three_layers().layers[0];
    scale_times(layer, value);
    add_times(layer, layer);
    split_backward(layer);
  }));
  rows.push_back(integers("in_proportion and between", "rows", [](int64_t value) {
    Profile twice = three_layers();
    twice.batch_rows *= 2;
    try {
      in_proportion(three_layers(), value);
    } catch (const std::invalid_argument&) {
    }
    between(three_layers(), twice, value);
  }));
  rows.push_back(integers("in_proportion and between", "batch_rows", [](int64_t value) {
    Profile profile = three_layers();
    profile.batch_rows = value;
    try {
      in_proportion(profile, 2);
    } catch (const std::invalid_argument&) {
    }
    between(profile, three_layers(), 2);
  }));
  rows.push_back(calls("between", "layers", {{"one too few", [] {
                                                Profile twice = three_layers();
                                                twice.batch_rows *= 2;
                                                twice.layers.pop_back();
                                                between(three_layers(), twice, 3);
                                              }}}));
  rows.push_back(numbers("check_finite_step", "bandwidth", [](double value) {
    ExplainOptions machine;
    machine.bandwidth = value;
    check_finite_step(three_layers(), {1, 1}, machine, "");
  }));
  rows.push_back(numbers("check_machine", "param_scale", [](double value) {
    ExplainOptions machine;
    machine.param_scale = value;
    check_machine(machine, "");
  }));
  rows.push_back(numbers("check_machine", "contention", [](double value) {
    ExplainOptions machine;
    machine.contention = value;
    check_machine(machine, "");
  }));
  add_profiles(&rows, "to_json, save_profile and profile_from_json", [](const Profile& profile) {
    const std::string text = to_json(SavedProfile{"", profile});
    EXPECT_EQ(to_json(profile_from_json(text, "file")), text);
  });
  rows.push_back(texts("profile_from_json", "text",
                       [](const std::string& text) { profile_from_json(text, "file"); }));
  for (const char* function : {"load_profile", "save_profile", "load_plan"}) {
    const std::string name = function;
    rows.push_back(texts(name, "path", [name](const std::string& path) {
      const std::string nowhere = "/no/such/folder/" + path;
      if (name == "load_profile") load_profile(nowhere);
      if (name == "save_profile") save_profile(nowhere, {"", three_layers()});
      if (name == "load_plan") load_plan(nowhere);
    }));
  }
  return rows;
}

PipelinePlan good_plan() {
  PipelinePlan plan;
  plan.rows = 4;
  plan.balance = {1, 2};
  plan.chunks = 4;
  plan.checkpoints = {Checkpoint::kNever, Checkpoint::kNever};
  plan.schedule = Schedule::one_f_one_b(2, 4);
  plan.devices = {{}, {}};
  return plan;
}

// `call` takes a plan with one wrong value.
void add_plans(Rows* rows, const std::string& function,
               const std::function<void(const PipelinePlan&)>& call) {
  const auto integer = [&](const std::string& argument, auto change) {
    rows->push_back(integers(function, argument, [=](int64_t value) {
      PipelinePlan plan = good_plan();
      change(&plan, value);
      call(plan);
    }));
  };
  integer("rows", [](auto* plan, int64_t v) { plan->rows = v; });
  integer("balance", [](auto* plan, int64_t v) { plan->balance = {1, v}; });
  // The two numbers sum to 3 if their sum wraps around.
  integer("balance whose sum wraps", [](auto* plan, int64_t v) {
    const auto rest = static_cast<int64_t>(3 - static_cast<uint64_t>(v));
    plan->balance = {v, rest};
  });
  integer("chunks", [](auto* plan, int64_t v) { plan->chunks = v; });
  integer("shared_inputs", [](auto* plan, int64_t v) { plan->shared_inputs = {v}; });
  integer("devices.limit", [](auto* plan, int64_t v) { plan->devices[0].limit = v; });
  integer("devices.live", [](auto* plan, int64_t v) { plan->devices[0].live = v; });
  integer("devices.reserved", [](auto* plan, int64_t v) { plan->devices[0].reserved = v; });
  for (double PipelinePlan::*field : {&PipelinePlan::step, &PipelinePlan::lower_bound}) {
    rows->push_back(numbers(function, "step and lower_bound", [=](double value) {
      PipelinePlan plan = good_plan();
      plan.*field = value;
      call(plan);
    }));
  }
  const auto length = [&](const std::string& argument, auto change) {
    rows->push_back(lengths(function, argument, 2, [=](size_t count) {
      PipelinePlan plan = good_plan();
      change(&plan, count);
      call(plan);
    }));
  };
  length("balance", [](auto* plan, size_t n) { plan->balance.assign(n, 1); });
  length("checkpoints", [](auto* plan, size_t n) { plan->checkpoints.resize(n); });
  length("devices", [](auto* plan, size_t n) { plan->devices.resize(n); });
  length("schedule", [](auto* plan, size_t n) {
    plan->schedule =
        n == 0 ? Schedule::create(1, 1, {}) : Schedule::one_f_one_b(static_cast<int64_t>(n), 4);
  });
  rows->push_back(texts(function, "schedule_name", [=](const std::string& name) {
    PipelinePlan plan = good_plan();
    plan.schedule_name = name;
    call(plan);
  }));
}

Rows plans() {
  Rows rows;
  add_plans(&rows, "check_plan_value",
            [](const PipelinePlan& plan) { check_plan_value(plan, "plan: "); });
  add_plans(&rows, "plan_to_text and plan_to_json", [](const PipelinePlan& plan) {
    check_plan_value(plan, "plan: ");  // only valid plans have a text
    plan_from_text(plan_to_text(plan), "file");
    plan_from_json(plan_to_json(plan), "file");
  });
  add_plans(&rows, "pipe_options and step_options", [](const PipelinePlan& plan) {
    check_plan_value(plan, "plan: ");
    pipe_options(plan);
    step_options(plan);
  });
  rows.push_back(lengths("pipe_options", "devices", 2, [](size_t count) {
    pipe_options(good_plan(), std::vector<c10::Device>(count, c10::Device(c10::kCPU)));
  }));
  rows.push_back(texts("plan_from_text", "text",
                       [](const std::string& text) { plan_from_text(text, "file"); }));
  rows.push_back(texts("plan_from_json", "text",
                       [](const std::string& text) { plan_from_json(text, "file"); }));
  rows.push_back(integers("bytes_text", "bytes", [](int64_t value) { bytes_text(value); }));
  return rows;
}

// `call` takes a trace with one wrong number.
void add_traces(Rows* rows, const std::string& function,
                const std::function<void(const MemoryTrace&)>& call) {
  const auto traced = [&](const std::string& argument, auto change) {
    rows->push_back(integers(function, argument, [=](int64_t value) {
      MemoryTrace trace;
      trace.devices = 2;
      trace.turns.resize(1);
      trace.blocks.resize(1);
      trace.events = {{0, 0, false}, {0, 0, true}};
      change(&trace, value);
      call(trace);
    }));
  };
  const auto narrow = [](int64_t value) { return static_cast<int32_t>(value); };
  traced("trace.devices", [=](auto* trace, int64_t v) { trace->devices = narrow(v); });
  traced("trace.events.block", [=](auto* trace, int64_t v) { trace->events[0].block = narrow(v); });
  traced("trace.events.turn", [=](auto* trace, int64_t v) { trace->events[0].turn = narrow(v); });
  traced("trace.blocks.device",
         [=](auto* trace, int64_t v) { trace->blocks[0].device = narrow(v); });
  traced("trace.blocks.use",
         [](auto* trace, int64_t v) { trace->blocks[0].use = static_cast<MemoryUse>(v & 0xff); });
  traced("trace.blocks.bytes", [](auto* trace, int64_t v) { trace->blocks[0].bytes = v; });
}

Rows traces() {
  Rows rows;
  add_traces(&rows, "peaks and curves", [](const MemoryTrace& trace) {
    try {
      curves(trace);
    } catch (const std::exception&) {
    }
    peaks(trace);
  });
  rows.push_back(integers("name_of", "use and turn", [](int64_t value) {
    (void)name_of(static_cast<MemoryUse>(value & 0xff));
    (void)name_of(Turn{static_cast<Turn::Kind>(value & 0xff), Action{}});
  }));
  rows.push_back(texts("uncertainties", "operators", [](const std::string& name) {
    (void)uncertainties({name}, c10::kCUDA);
    (void)uncertainties({}, c10::kMeta);
  }));
  return rows;
}

Rows checks() {
  Rows rows;
  const std::vector<double> sizes = {1, 1, 1, 1};
  add_plans(&rows, "check_plan",
            [=](const PipelinePlan& plan) { check_plan(plan, three_layers(), sizes, {}); });
  const auto both = [=](const Profile& profile, const std::vector<double>& given,
                        const ExplainOptions& machine) {
    for (const bool bound : {false, true}) {
      try {
        bound ? (void)step_lower_bound(profile, given, 2, machine)
              : (void)check_plan(good_plan(), profile, given, machine);
      } catch (const std::invalid_argument&) {
      }
    }
  };
  const std::string functions = "check_plan and step_lower_bound";
  add_profiles(&rows, functions, [=](const Profile& profile) { both(profile, sizes, {}); });
  add_machines(&rows, functions,
               [=](const ExplainOptions& machine) { both(three_layers(), sizes, machine); });
  rows.push_back(numbers(functions, "sizes", [=](double value) {
    both(three_layers(), {1, value, 1, 1}, {});
  }));
  rows.push_back(lengths(functions, "sizes", 4, [=](size_t count) {
    both(three_layers(), std::vector<double>(count, 1), {});
  }));
  rows.push_back(integers("step_lower_bound", "devices", [=](int64_t value) {
    step_lower_bound(three_layers(), sizes, value, {});
  }));
  add_traces(&rows, "check_plan", [=](const MemoryTrace& trace) {
    check_plan(good_plan(), three_layers(), sizes, {}, &trace);
  });
  return rows;
}

torch::nn::Sequential small_model() {
  return torch::nn::Sequential(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4),
                               torch::nn::Linear(4, 4));
}

Training small_training() {
  Training training;
  training.make = small_model;
  training.inputs = {at::empty({4, 4}, at::kMeta)};
  training.targets = {at::empty({4, 4}, at::kMeta)};
  training.loss = sum_of_first_output;
  return training;
}

torch::nn::Sequential meta_model() {
  const MetaScope meta;
  return small_model();
}

// Functions that run a model, or a search over it. They get few values each, because they take
// time.
Rows models() {
  Rows rows;
  const at::Tensor sample = at::ones({4, 4});
  const at::Tensor none = at::empty({4, 4}, at::kMeta);
  rows.push_back(integers("balance_by_time and balance_by_size", "partitions", [=](int64_t value) {
    try {
      balance_by_time(value, small_model(), sample, TimeOptions().timeout(1e-3));
    } catch (const std::invalid_argument&) {
    } catch (const c10::Error&) {
    }
    balance_by_size(value, small_model(), sample);
  }));
  rows.push_back(numbers("profile_times and balance_by_time", "timeout", [=](double value) {
    if (value > 1) return;  // an hour is a valid time; infinity has its own row
    profile_times(small_model(), sample, TimeOptions().timeout(value));
  }));
  rows.push_back(calls("profile_times", "timeout",
                       {{"inf", [=] {
                           profile_times(
                               small_model(), sample,
                               TimeOptions().timeout(std::numeric_limits<double>::infinity()));
                         }}}));
  rows.push_back(integers("profile_times and profile", "micro_batch_rows", [=](int64_t value) {
    profile_times(small_model(), sample, TimeOptions().timeout(1e-3).micro_batch_rows(value));
  }));
  rows.push_back(integers("profile_times", "cpu_threads", [=](int64_t value) {
    profile_times(small_model(), sample, TimeOptions().timeout(1e-3).cpu_threads(value));
  }));
  rows.push_back(integers("profile_sizes and flops", "rows and shared_inputs", [=](int64_t value) {
    profile_sizes(small_model(), std::vector<at::Tensor>{at::ones({0, 4})});
    flops(small_model(), {sample}, {value});
  }));
  rows.push_back(integers("check_rows", "shared_inputs", [](int64_t value) {
    check_rows(torch::nn::Sequential(torch::nn::Linear(2, 2)), {at::ones({2, 2})}, {value});
  }));
  rows.push_back(integers("flops", "shared_inputs",
                          [=](int64_t value) { flops(small_model(), {sample}, {value}); }));
  for (double NominalDevice::*field :
       {&NominalDevice::flops_per_second, &NominalDevice::bytes_per_second,
        &NominalDevice::seconds_per_operator}) {
    rows.push_back(numbers("profile_on_meta", "device", [=](double value) {
      NominalDevice device;
      device.*field = value;
      profile_on_meta(meta_model(), {none}, device);
    }));
  }
  rows.push_back(integers("memory_plan, to_text, to_json and to_svg", "balance", [=](int64_t v) {
    const MemoryPlan plan = memory_plan(meta_model(), {none}, {none}, sum_of_first_output,
                                        MemoryPlanOptions({3 - v, v}));
    to_text(plan);
    to_json(plan);
    to_svg(plan, "");
  }));
  const auto planned = [&](const char* argument, auto change) {
    rows.push_back(integers("memory_plan", argument, [=](int64_t value) {
      MemoryPlanOptions options({1, 2});
      change(&options, value);
      memory_plan(meta_model(), {none}, {none}, sum_of_first_output, options);
    }));
  };
  planned("chunks", [](auto* options, int64_t v) { options->chunks(v); });
  planned("shared_inputs", [](auto* options, int64_t v) { options->shared_inputs({v}); });
  planned("groups", [](auto* options, int64_t v) { options->groups(v); });
  planned("device_of_stage", [](auto* options, int64_t v) { options->device_of_stage({0, v}); });
  planned("capacity", [](auto* options, int64_t v) { options->capacity(v); });
  rows.push_back(integers("fit", "device_bytes", [](int64_t value) {
    fit(small_training(), {value, 100000});
  }));
  rows.push_back(integers("fit", "options.margin", [](int64_t value) {
    fit(small_training(), {100000, 100000}, FitOptions().margin(value));
  }));
  rows.push_back(integers("fit", "options.chunks", [](int64_t value) {
    fit(small_training(), {100000, 100000}, FitOptions().chunks({value}));
  }));
  rows.push_back(calls(
      "fit", "device_bytes",
      {{"none", [] { fit(small_training(), {}); }},
       {"more than layers", [] { fit(small_training(), std::vector<int64_t>(4, 100000)); }}}));
  rows.push_back(integers("largest", "most", [](int64_t value) {
    const auto family = [](int64_t) { return small_training(); };
    if (value < 1000) largest(family, value, {100000, 100000});
  }));
  const auto chosen = [&](const char* argument, auto change) {
    rows.push_back(integers("plan, to_text and to_json", argument, [=](int64_t value) {
      PlanOptions options(2);
      options.schedules({"1f1b"}).stages_per_device({1}).chunks({2});
      change(&options, value);
      const PlanReport report = plan(meta_model(), {none}, options);
      to_text(report);
      to_json(report);
    }));
  };
  chosen("devices", [](auto* options, int64_t v) { options->devices(v); });
  chosen("memory", [](auto* options, int64_t v) { options->memory(v); });
  chosen("chunks", [](auto* options, int64_t v) { options->chunks({v}); });
  chosen("stages_per_device", [](auto* options, int64_t v) { options->stages_per_device({v}); });
  chosen("shared_inputs", [](auto* options, int64_t v) { options->shared_inputs({v}); });
  chosen("cpu_threads", [](auto* options, int64_t v) { options->cpu_threads(v); });
  chosen("host_memory", [](auto* options, int64_t v) {
    ExplainOptions machine;
    machine.host_bandwidth = 1e9;
    options->machine(machine).least_memory(1.0).host_memory(v);
  });
  rows.push_back(calls("sum_of_first_output", "outputs",
                       {{"one", [=] { sum_of_first_output({sample}, {}); }}}));
  return rows;
}

INSTANTIATE_TEST_SUITE_P(Partitions, EdgeTest, ::testing::ValuesIn(partitions()));
INSTANTIATE_TEST_SUITE_P(Explanations, EdgeTest, ::testing::ValuesIn(explanations()));
INSTANTIATE_TEST_SUITE_P(Plans, EdgeTest, ::testing::ValuesIn(plans()));
INSTANTIATE_TEST_SUITE_P(Traces, EdgeTest, ::testing::ValuesIn(traces()));
INSTANTIATE_TEST_SUITE_P(Models, EdgeTest, ::testing::ValuesIn(models()));
INSTANTIATE_TEST_SUITE_P(Checks, EdgeTest, ::testing::ValuesIn(checks()));

}  // namespace
}  // namespace gpipe::balance
