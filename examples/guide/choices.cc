// The program of chapters 5 to 7, 20 and 23: chunks, checkpoint modes, schedules.

#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <iomanip>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "examples/guide/guide.h"
#include "gpipe/distributed/from_rank_0.h"
#include "gpipe/gpipe.h"
#include "gpipe/schedule/drawing.h"
#include "gpipe/schedule/generators.h"
#include "gpipe/schedule/named_schedule.h"
#include "gpipe/schedule/offloads.h"
#include "gpipe/schedule/relabel.h"
#include "gpipe/schedule/search.h"
#include "gpipe/schedule/sequential.h"
#include "gpipe/schedule/simulate.h"
#include "gpipe/stage_memory.h"
#include "gpipe/timing.h"

namespace {

namespace nn = torch::nn;
using gpipe::Checkpoint;
using gpipe::Schedule;

torch::Tensor square(const gpipe::Tensors& outputs, const gpipe::Tensors& /*targets*/) {
  return outputs.at(0).square().mean();
}

// --- measured layers, which sleep, so that the number of the machine's cores does not matter

void sleep_for(double milliseconds) {
  std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(milliseconds));
}

struct SleepFunction : torch::autograd::Function<SleepFunction> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, torch::Tensor x,
                               double milliseconds) {
    sleep_for(milliseconds);
    context->saved_data["milliseconds"] = milliseconds;
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    sleep_for(2 * context->saved_data["milliseconds"].toDouble());
    return {gradients[0], torch::Tensor()};
  }
};

// Takes `milliseconds` for each row in forward, and twice that in backward.
struct SleepImpl : nn::Module {
  explicit SleepImpl(double milliseconds) : milliseconds(milliseconds) {
    scale = register_parameter("scale", torch::ones({1}));
  }
  torch::Tensor forward(torch::Tensor x) {
    return SleepFunction::apply(x * scale, milliseconds * static_cast<double>(x.size(0)));
  }
  double milliseconds;
  torch::Tensor scale;
};
TORCH_MODULE(Sleep);

// Four stages in which a mini-batch of 32 rows takes 128 ms forward and 256 ms backward each.
constexpr int64_t kStages = 4;
constexpr int64_t kRows = 32;
gpipe::GPipe sleepers(int64_t chunks, Checkpoint mode) {
  nn::Sequential model;
  for (int64_t k = 0; k < kStages; ++k) model->push_back(Sleep(4.0));
  return gpipe::GPipe(
      model, gpipe::GPipeOptions(std::vector<int64_t>(kStages, 1)).chunks(chunks).checkpoint(mode));
}
// The median of some steps, in milliseconds.
double step_time(gpipe::GPipe& pipe, const gpipe::StepOptions& options = {}) {
  const torch::Tensor input = torch::ones({kRows, 1});
  pipe->step({input}, {}, square, options);
  std::vector<double> times;
  for (int k = 0; k < 3; ++k) {
    times.push_back(gpipe::seconds_of([&] { pipe->step({input}, {}, square, options); }));
  }
  return 1e3 * gpipe::median(times);
}

// The most memory that the four stages take beside their parameters, in KiB: twelve layers of
// {64, 256} numbers, 64 KiB each.
std::string memory(int64_t chunks, Checkpoint mode, const gpipe::StepOptions& options = {}) {
  nn::Sequential model;
  for (int k = 0; k < 12; ++k) model->push_back(nn::Tanh());
  gpipe::GPipe pipe(model, gpipe::GPipeOptions({3, 3, 3, 3}).chunks(chunks).checkpoint(mode));
  const torch::Tensor input = torch::rand({64, 256}).requires_grad_();
  pipe->step({input}, {}, square, options);
  const gpipe::StageMemory counter(pipe);
  pipe->step({input}, {}, square, options);
  std::string text;
  for (const gpipe::StagePeak& peak : counter.stages()) {
    text += (text.empty() ? "" : ", ") + std::to_string(peak.taken / 1024);
  }
  return text;
}

// --- 5: how many chunks

const guide::Chapter kChunks("5", [] {
  torch::manual_seed(0);
  torch::nn::Sequential model(nn::Linear(8, 8), nn::Linear(8, 8));
  const torch::Tensor input = torch::randn({64, 8});
  const auto loss_fn = square;
  // [chunks]
  gpipe::GPipe pipe(model, gpipe::GPipeOptions({1, 1}).chunks(8));
  gpipe::StepResult result = pipe->step({input}, {}, loss_fn);  // 64 rows: 8 micro-batches of 8
  std::cout << result.losses.size() << " micro-batches\n";
  // [/chunks]
  guide::expect(result.losses.size() == 8, "64 rows in 8 chunks are 8 micro-batches");
});

const guide::Answer kChunksTable(
    "5.table",
    [](std::ostream& out) {
      out << "chunks, bubble by formula (%), step (ms), bubble measured (%), memory by stage "
             "(KiB)\n";
      for (const int64_t chunks : {1, 2, 4, 8, 16, 32}) {
        gpipe::GPipe pipe = sleepers(chunks, Checkpoint::kNever);
        const double step = step_time(pipe);
        const double formula = 100.0 * (kStages - 1) / static_cast<double>(chunks + kStages - 1);
        out << chunks << ", " << std::fixed << std::setprecision(0) << formula << ", " << step
            << ", " << 100 * (1 - 3 * 4.0 * kRows / step) << ", "
            << memory(chunks, Checkpoint::kNever) << "\n";
      }
    },
    guide::Answer::Kind::kMeasured);

const guide::Answer kFixedCost("5.1", [](std::ostream& out) {
  for (const int64_t chunks : {4, 8, 16, 32, 64}) {
    // A forward takes 2 ms and 1 ms for each row, a backward twice that.
    const double forward = 2.0 + 64.0 / static_cast<double>(chunks);
    const gpipe::Simulation run =
        gpipe::simulate(Schedule::one_f_one_b(4, chunks),
                        {gpipe::uniform_cost({forward, /*backward=*/2 * forward}), {}});
    out << chunks << " chunks: " << run.makespan << " ms, idle "
        << std::round(100 * run.bubble_ratio()) << " %\n";
  }
});

const guide::Answer kSameLoss("5.2", [](std::ostream& out) {
  for (const int64_t chunks : {1, 3, 8}) {
    torch::manual_seed(0);
    nn::Sequential model(nn::Linear(8, 64), nn::Tanh(), nn::Linear(64, 1));
    gpipe::GPipe pipe(model, gpipe::GPipeOptions({1, 2}).chunks(chunks));
    const torch::Tensor input = torch::randn({64, 8});
    const double loss = pipe->step({input}, {}, square).loss;
    out << chunks << " chunks: loss " << std::setprecision(9) << loss << ", gradient "
        << pipe->parameters()[0].grad().norm().item<double>() << "\n";
  }
});

// --- 6: which checkpoint mode

// [counts_calls]
struct CountsCallsImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    if (!gpipe::is_recomputing()) ++calls;  // a side effect, which a recompute must not repeat
    return x.tanh();
  }
  std::atomic<int> calls{0};
};
TORCH_MODULE(CountsCalls);
// [/counts_calls]

struct CountsForwardsImpl : nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    ++(gpipe::is_recomputing() ? recomputes : forwards);
    return x.tanh();
  }
  std::atomic<int> forwards{0};
  std::atomic<int> recomputes{0};
};
TORCH_MODULE(CountsForwards);

const guide::Chapter kCheckpoints("6", [] {
  CountsCalls counter;
  nn::Sequential model(nn::Linear(8, 8), counter, nn::Linear(8, 8), nn::Tanh());
  const torch::Tensor input = torch::randn({8, 8});
  {
    // [mode]
    gpipe::GPipe pipe(model,
                      gpipe::GPipeOptions({2, 2}).chunks(4).checkpoint(gpipe::Checkpoint::kAlways));
    // [/mode]
    pipe->step({input}, {}, square);
    guide::expect(counter->calls == 4, "a side effect happens once for each micro-batch");
  }
  // [mode_of_each]
  gpipe::GPipe pipe(model, gpipe::GPipeOptions({2, 2}).chunks(4).partition_checkpoints(
                               {gpipe::Checkpoint::kAlways, gpipe::Checkpoint::kNever}));
  // [/mode_of_each]
  pipe->step({input}, {}, square);
  guide::expect(pipe->partition_checkpoints()[1] == Checkpoint::kNever, "modes can be read");
});

const guide::Answer kCheckpointsTable(
    "6.table",
    [](std::ostream& out) {
      out << "mode, step (ms), memory by stage (KiB)\n";
      for (const Checkpoint mode :
           {Checkpoint::kNever, Checkpoint::kExceptLast, Checkpoint::kAlways}) {
        gpipe::GPipe pipe = sleepers(8, mode);
        out << to_text(mode) << ", " << std::fixed << std::setprecision(0) << step_time(pipe)
            << ", " << memory(8, mode) << "\n";
      }
    },
    guide::Answer::Kind::kMeasured);

void print_forwards(std::ostream& out, int64_t chunks, const gpipe::StepOptions& options) {
  for (const Checkpoint mode : {Checkpoint::kNever, Checkpoint::kExceptLast, Checkpoint::kAlways}) {
    nn::Sequential model;
    std::vector<CountsForwards> layers(2);
    for (const CountsForwards& layer : layers) model->push_back(layer);
    gpipe::GPipe pipe(model, gpipe::GPipeOptions({1, 1}).chunks(chunks).checkpoint(mode));
    pipe->step({torch::randn({8, 8}).requires_grad_()}, {}, square, options);
    out << "  " << to_text(mode) << ":";
    for (const CountsForwards& layer : layers) {
      out << " " << layer->forwards << " forwards and " << layer->recomputes << " recomputes;";
    }
    out << "\n";
  }
}

const guide::Answer kRecomputes("6.1", [](std::ostream& out) {
  out << "1F1B:\n";
  print_forwards(out, 4, {});
  out << "gpipe:\n";
  print_forwards(out, 4, gpipe::StepOptions().schedule(Schedule::gpipe));
});

const guide::Answer kOneChunk("6.2", [](std::ostream& out) { print_forwards(out, 1, {}); });

const guide::Answer kMemoryOfModes("6.3", [](std::ostream& out) {
  for (const Checkpoint mode : {Checkpoint::kNever, Checkpoint::kAlways}) {
    out << to_text(mode) << ": 1F1B " << memory(8, mode) << " KiB, gpipe "
        << memory(8, mode, gpipe::StepOptions().schedule(Schedule::gpipe)) << " KiB\n";
  }
});

// --- 7: in which order

const guide::Chapter kOrder("7", [] {
  nn::Sequential model(nn::Linear(8, 8), nn::Linear(8, 8));
  gpipe::GPipe pipe(model, gpipe::GPipeOptions({1, 1}).chunks(4));
  const torch::Tensor input = torch::randn({8, 8});
  const torch::Tensor target = torch::randn({8, 8});
  const auto loss_fn = nn::MSELoss();
  // [schedule_option]
  auto options = gpipe::StepOptions().schedule(gpipe::Schedule::gpipe);
  pipe->step({input}, {target}, loss_fn, options);
  // [/schedule_option]
  std::cout << gpipe::draw(Schedule::one_f_one_b(3, 4));  // which the chapter shows
});

const guide::Answer kOrderTable(
    "7.table",
    [](std::ostream& out) {
      out << "schedule, step (ms), held micro-batches by stage, memory by stage (KiB)\n";
      for (const auto& [name, generator] :
           {std::pair<const char*, gpipe::ScheduleGenerator>{"gpipe", Schedule::gpipe},
            {"1f1b", Schedule::one_f_one_b}}) {
        gpipe::GPipe pipe = sleepers(8, Checkpoint::kNever);
        const auto options = gpipe::StepOptions().schedule(generator);
        out << name << ", " << std::fixed << std::setprecision(0) << step_time(pipe, options)
            << ",";
        for (const int64_t held : generator(kStages, 8).verify().peak_live) out << " " << held;
        out << ", " << memory(8, Checkpoint::kNever, options) << "\n";
      }
    },
    guide::Answer::Kind::kMeasured);

const guide::Answer kHeld("7.1", [](std::ostream& out) {
  for (const int64_t micro_batches : {8, 64}) {
    out << micro_batches << " micro-batches: gpipe holds";
    for (const int64_t held : Schedule::gpipe(4, micro_batches).verify().peak_live) {
      out << " " << held;
    }
    out << ", 1F1B";
    for (const int64_t held : Schedule::one_f_one_b(4, micro_batches).verify().peak_live) {
      out << " " << held;
    }
    out << "\n";
  }
});

torch::Tensor gradient_under(const gpipe::ScheduleGenerator& generator) {
  torch::manual_seed(0);
  nn::Sequential model(nn::Linear(8, 64), nn::Tanh(), nn::Linear(64, 8));
  gpipe::GPipe pipe(model, gpipe::GPipeOptions({2, 1}).chunks(8));
  const torch::Tensor input = torch::randn({64, 8});
  pipe->step({input}, {input.cos()}, nn::MSELoss(), gpipe::StepOptions().schedule(generator));
  return pipe->parameters()[0].grad();
}

const guide::Answer kBits("7.2", [](std::ostream& out) {
  const torch::Tensor expected = gradient_under(Schedule::one_f_one_b);
  for (const auto& [name, generator] :
       {std::pair<const char*, gpipe::ScheduleGenerator>{"fill-drain", gpipe::fill_drain},
        {"zb-h1", gpipe::zb_h1},
        {"gpipe", Schedule::gpipe}}) {
    const torch::Tensor gradient = gradient_under(generator);
    out << name << ": " << (gradient.equal(expected) ? "the bits of 1F1B" : "other bits")
        << ", the largest difference is " << (gradient - expected).abs().max().item<double>()
        << "\n";
  }
});

// --- 20: which schedule when

const guide::Chapter kWhich("20", [] {
  nn::Sequential model;
  for (int k = 0; k < 10; ++k) model->push_back(nn::Linear(8, 8));
  const torch::Tensor input = torch::randn({16, 8});
  const torch::Tensor target = torch::randn({16, 8});
  const auto loss_fn = nn::MSELoss();
  {
    // [by_name]
    // #include "gpipe/schedule/named_schedule.h"
    gpipe::GPipe pipe(
        model, gpipe::GPipeOptions({3, 3, 2, 2}).chunks(8).placement(gpipe::Placement::v_shape(2)));
    pipe->step({input}, {target}, loss_fn,
               gpipe::StepOptions().schedule(gpipe::schedule_by_name("zb-v")));
    // [/by_name]
    guide::expect(pipe->placement().worker_of(3) == 0, "the last stage is on the first worker");
  }
  const auto options = gpipe::GPipeOptions({3, 3, 2, 2}).chunks(4);
  const int64_t stages = 4;
  {
    // [one_worker]
    gpipe::GPipe pipe(model, gpipe::GPipeOptions(options).placement(
                                 gpipe::Placement::loop(/*workers=*/1, stages)));
    pipe->step({input}, {target}, loss_fn);  // gpipe::sequential
    // [/one_worker]
    guide::expect(pipe->placement().workers() == 1, "all stages are on one worker");
  }
  // [search]
  // #include "gpipe/schedule/search.h"
  gpipe::SearchOptions search;
  search.placement = gpipe::Placement::v_shape(4);
  search.micro_batches = 8;
  search.costs = {{1.0, 1.7, 1.1, 0.7}};  // F, B, I, W; one for all stages, or one for each
  search.memory_limit = {8.0};            // of each worker, in micro-batches of one stage
  gpipe::SearchResult result = gpipe::search(search);
  std::cout << result.origin << ": " << result.makespan << ", at most " << 100 * result.gap()
            << " % above the best\n";
  // [/search]
  guide::expect(result.makespan <= gpipe::simulate(gpipe::zb_v(4, 8, {{1.0, 1.7, 1.1, 0.7}}),
                                                   gpipe::simulate_options(search))
                                           .makespan +
                                       1e-9,
                "the search is no worse than ZB-V");
  const gpipe::World world;
  // [search_of_one]
  // #include "gpipe/distributed/from_rank_0.h"
  const auto table = gpipe::Schedule::from_text(
      gpipe::from_rank_0(world, [&] { return gpipe::search(search).schedule.to_text(); }));
  // [/search_of_one]
  guide::expect(table == result.schedule, "a search gives the same result each time");
});

// The makespan of a named schedule whose workers, four of them, have layers of F = 1, I = 1, W = 1
// and B = 2 for each micro-batch, divided among their stages.
double makespan(const std::string& name, int64_t micro_batches, double transfer) {
  int64_t v = 1;
  for (const gpipe::NamedSchedule& each : gpipe::named_schedules()) {
    if (each.name != name) continue;
    const bool several =
        each.shape == gpipe::PlacementShape::kLoop || each.shape == gpipe::PlacementShape::kVShape;
    v = several ? 2 : 1;
  }
  const double part = 1.0 / static_cast<double>(v);
  const Schedule schedule = gpipe::schedule_by_name(name, 4 * v, micro_batches);
  return gpipe::simulate(schedule, {gpipe::uniform_cost({part, 2 * part, part, part}),
                                    [transfer](const gpipe::Transfer&) { return transfer; }})
      .makespan;
}

const guide::Answer kManyMicroBatches("20.1", [](std::ostream& out) {
  for (const char* name : {"1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe-v"}) {
    out << name << ": " << makespan(name, 8, 0) << " with quick transfers, "
        << makespan(name, 8, 0.5) << " with ones of half a forward\n";
  }
});

const guide::Answer kLittleMemory("20.2", [](std::ostream& out) {
  for (const char* name : {"1f1b", "zb-v", "v-half", "v-min"}) {
    const int64_t stages = std::string(name) == "1f1b" ? 4 : 8;
    const Schedule schedule = gpipe::schedule_by_name(name, stages, 16);
    int64_t held = 0;
    for (const int64_t each : schedule.verify(gpipe::Sends::kBuffered).worker_peak_live) {
      held = std::max(held, each);
    }
    out << name << ": holds " << static_cast<double>(held) / static_cast<double>(stages / 4)
        << " micro-batches of a worker's layers, a step takes " << makespan(name, 16, 0) << "\n";
  }
});

// --- 23: schedules of your own

// [own_table]
const char kTable[] = R"(
stages 2
micro_batches 4
worker 0: F0.0 F0.1 I0.0 F0.2 W0.0 I0.1 F0.3 W0.1 I0.2 W0.2 I0.3 W0.3
worker 1: F1.0 I1.0 F1.1 W1.0 I1.1 F1.2 W1.1 I1.2 F1.3 W1.2 I1.3 W1.3
)";
// [/own_table]

const guide::Chapter kOwn("23", [] {
  nn::Sequential model(nn::Linear(8, 8), nn::Linear(8, 8));
  gpipe::GPipe pipe(model, gpipe::GPipeOptions({1, 1}).chunks(4));
  const torch::Tensor input = torch::randn({8, 8});
  const torch::Tensor target = torch::randn({8, 8});
  const auto loss_fn = nn::MSELoss();
  // [own_schedule]
  auto schedule = gpipe::Schedule::from_text(kTable);
  schedule.verify(gpipe::Sends::kBuffered);  // throws a list of what is wrong with it
  std::cout << gpipe::draw(schedule);        // gpipe/schedule/drawing.h
  auto costs = gpipe::uniform_cost({/*forward=*/1.0, /*backward=*/2.0, /*input_gradient=*/1.0,
                                    /*weight_gradient=*/1.0});
  std::cout << gpipe::simulate(schedule, {costs, {}}).makespan
            << "\n";  // gpipe/schedule/simulate.h
  pipe->step({input}, {target}, loss_fn, gpipe::StepOptions().schedule(schedule));
  // [/own_schedule]
  guide::expect(gpipe::simulate(schedule, {costs, {}}).makespan == 14 &&
                    gpipe::simulate(Schedule::one_f_one_b(2, 4), {costs, {}}).makespan == 15,
                "the table takes 14 units of time and 1F1B 15");
  // [own_generator]
  // Forwards of all micro-batches, then backwards, the last stage's first.
  gpipe::ScheduleGenerator generator = [](int64_t stages, int64_t micro_batches) {
    std::vector<std::vector<gpipe::Action>> workers(stages);
    for (int32_t stage = 0; stage < stages; ++stage) {
      for (const auto kind : {gpipe::ActionKind::kForward, gpipe::ActionKind::kBackward}) {
        for (int32_t k = 0; k < micro_batches; ++k) workers[stage].push_back({kind, stage, k});
      }
    }
    return gpipe::Schedule::create(stages, micro_batches, workers);
  };
  pipe->step({input}, {target}, loss_fn, gpipe::StepOptions().schedule(generator));
  // [/own_generator]
  guide::expect(generator(2, 4) == gpipe::fill_drain(2, 4), "the generator is fill-drain's");
  // [own_offloads]
  gpipe::SimulateOptions link;  // in seconds and bytes
  link.action = gpipe::uniform_cost({/*forward=*/0.01, /*backward=*/0.02});
  link.offload.bytes = [](const gpipe::Action&) { return 200e6; };  // what a cell keeps
  link.offload.to_host = link.offload.to_device = 20e9;             // bytes per second
  auto plain = gpipe::Schedule::gpipe(/*stages=*/2, /*micro_batches=*/8);
  auto low = gpipe::with_offloads(plain, gpipe::Routes::create(2), link);
  std::cout << gpipe::simulate(plain, link).peak[0] / 1e6 << " MB, offloaded "
            << gpipe::simulate(low, link).peak[0] / 1e6 << " MB\n";
  // [/own_offloads]
  guide::expect(gpipe::simulate(low, link).peak[0] < gpipe::simulate(plain, link).peak[0] / 2,
                "offloads keep it low");
});

const guide::Answer kWrongTable("23.1", [](std::ostream& out) {
  out << guide::message_of([] {
    Schedule::from_text(
        "stages 2\nmicro_batches 2\n"
        "worker 0: F0.0 B0.0 F0.1 B0.1\n"
        "worker 1: F1.1 B1.1 F1.0 B1.0\n")
        .verify(gpipe::Sends::kBuffered);
  }) << "\n";
});

const guide::Answer kSplits("23.2", [](std::ostream& out) {
  const Schedule schedule = Schedule::from_text(kTable);
  for (const double split : {2.0, 2.2, 2.4, 2.6}) {
    const gpipe::ActionCost costs = gpipe::uniform_cost({1.0, 2.0, split / 2, split / 2});
    out << "I and W take " << split << " together, B 2: the table takes "
        << gpipe::simulate(schedule, {costs, {}}).makespan << ", 1F1B "
        << gpipe::simulate(Schedule::one_f_one_b(2, 4), {costs, {}}).makespan << "\n";
  }
});

const guide::Answer kRelabeled("23.3", [](std::ostream& out) {
  const Schedule schedule = Schedule::from_text(
      "stages 2\nmicro_batches 2\n"
      "worker 0: F0.1 F0.0 B0.1 B0.0\n"
      "worker 1: F1.1 B1.1 F1.0 B1.0\n");
  out << schedule.to_text() << "ascending: " << schedule.verify(gpipe::Sends::kBuffered).ascending
      << "\nrelabeled:\n"
      << gpipe::relabeled(schedule).value().to_text();
});

}  // namespace
