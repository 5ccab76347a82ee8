// The program of chapters 17 to 19, 21 and 22: exactness, memory, speed, errors, NaN.

#include <torch/torch.h>

#include <chrono>
#include <cmath>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "balance/fit.h"
#include "balance/memory_plan.h"
#include "diagnose/diagnose.h"
#include "diagnose/diagnosis_text.h"
#include "examples/guide/guide.h"
#include "gpipe/gpipe.h"
#include "gpipe/schedule/generators.h"
#include "gpipe/stage_memory.h"
#include "gpipe/timeline/simulate_again.h"
#include "gpipe/timeline/time_split_text.h"
#include "gpipe/timeline/timeline.h"
#include "gpipe/timeline/timeline_svg.h"
#include "meta/meta_scope.h"

namespace {

namespace nn = torch::nn;
namespace F = torch::nn::functional;
using gpipe::Checkpoint;

nn::Sequential make_model() {
  torch::manual_seed(0);
  return nn::Sequential(nn::Linear(8, 64), nn::Tanh(), nn::Linear(64, 64), nn::Tanh(),
                        nn::Linear(64, 1));
}

// --- 17: is it the same training?

const guide::Chapter kSame("17", [] {
  nn::Sequential plain = make_model();
  gpipe::GPipe pipe(make_model(), gpipe::GPipeOptions({2, 3}).chunks(4).cpu_threads_per_stage(1));
  torch::manual_seed(1);
  const torch::Tensor input = torch::randn({32, 8});
  const torch::Tensor target = torch::randn({32, 1});
  const int threads = at::get_num_threads();
  pipe->step({input}, {target}, nn::MSELoss());
  // [the_loop]
  at::set_num_threads(1);  // as many as a stage has
  std::vector<torch::Tensor> inputs = input.chunk(4);
  std::vector<torch::Tensor> targets = target.chunk(4);
  for (size_t k = 0; k < inputs.size(); ++k) {  // in the order of the schedule's backwards
    torch::Tensor loss = torch::mse_loss(plain->forward(inputs[k]), targets[k]);
    loss.backward(torch::tensor(1.0F / 4));  // its rows over all rows
  }
  // [/the_loop]
  at::set_num_threads(threads);
  for (size_t k = 0; k < plain->parameters().size(); ++k) {
    guide::expect(pipe->parameters()[k].grad().equal(plain->parameters()[k].grad()),
                  "the gradients are the loop's, bit by bit");
  }
});

const guide::Answer kWhole("17.1", [](std::ostream& out) {
  torch::manual_seed(1);
  const torch::Tensor input = torch::randn({32, 8});
  const torch::Tensor target = torch::randn({32, 1});
  nn::Sequential plain = make_model();
  torch::mse_loss(plain->forward(input), target).backward();
  for (const int64_t chunks : {1, 2, 8}) {
    gpipe::GPipe pipe(
        make_model(),
        gpipe::GPipeOptions({2, 3}).chunks(chunks).cpu_threads_per_stage(at::get_num_threads()));
    pipe->step({input}, {target}, nn::MSELoss());
    out << chunks << (chunks == 1 ? " chunk" : " chunks")
        << ": gradients differ from those of the whole mini-batch by "
        << (pipe->parameters()[0].grad() - plain->parameters()[0].grad()).abs().max().item<double>()
        << "\n";
  }
});

const guide::Answer kOrders("17.2", [](std::ostream& out) {
  torch::manual_seed(1);
  const torch::Tensor input = torch::randn({32, 8});
  const torch::Tensor target = torch::randn({32, 1});
  std::vector<torch::Tensor> gradients;
  for (const gpipe::ScheduleGenerator& schedule :
       {gpipe::ScheduleGenerator(gpipe::Schedule::one_f_one_b),
        gpipe::ScheduleGenerator(gpipe::fill_drain),
        gpipe::ScheduleGenerator(gpipe::Schedule::gpipe)}) {
    gpipe::GPipe pipe(make_model(), gpipe::GPipeOptions({2, 3}).chunks(4));
    pipe->step({input}, {target}, nn::MSELoss(), gpipe::StepOptions().schedule(schedule));
    gradients.push_back(pipe->parameters()[0].grad());
  }
  out << "1F1B and fill-drain: "
      << (gradients[0].equal(gradients[1]) ? "the same bits" : "other bits")
      << "; 1F1B and gpipe: " << (gradients[0].equal(gradients[2]) ? "the same bits" : "other bits")
      << "\n";
});

// --- 18: does it fit?

torch::Tensor square(const gpipe::Tensors& outputs, const gpipe::Tensors& /*targets*/) {
  return outputs.at(0).square().mean();
}

nn::Sequential my_model() {
  nn::Sequential model;
  for (int k = 0; k < 8; ++k) {
    model->push_back(nn::Linear(1024, 1024));
    model->push_back(nn::Tanh());
  }
  return model;
}

const guide::Chapter kFits("18", [] {
  const auto loss = square;
  {
    // [plan]
    // #include "balance/memory_plan.h", "meta/meta_scope.h"
    torch::nn::Sequential model = [] {
      gpipe::MetaScope meta;
      return my_model();
    }();
    auto input = torch::empty({1024, 1024}, torch::kMeta);
    auto plan = gpipe::balance::memory_plan(model, {input}, {}, loss,
                                            gpipe::balance::MemoryPlanOptions({8, 8}).chunks(8));
    for (const auto& device : plan.devices) std::cout << device.peak.bytes << " bytes\n";
    // [/plan]
    guide::expect(plan.devices.size() == 2 && plan.devices[0].peak.bytes > 0, "there is a plan");
  }
  {
    // [fit]
    // #include "balance/fit.h"
    gpipe::balance::Training training;
    training.make = my_model;
    training.inputs = {torch::empty({1024, 1024}, torch::kMeta)};
    training.loss = loss;
    const int64_t mib = 1 << 20;
    gpipe::balance::Fit fit = gpipe::balance::fit(training, {64 * mib, 64 * mib});
    if (!fit.fits) std::cout << fit.limit << "\n";
    // [/fit]
    guide::expect(fit.fits && fit.balance.size() == 2, "it fits on two devices of 64 MiB");
  }
  gpipe::GPipe pipe(my_model(), gpipe::GPipeOptions({8, 8}).chunks(8));
  const torch::Tensor input = torch::randn({1024, 1024});
  pipe->step({input}, {}, square);
  // [stage_memory]
  // #include "gpipe/stage_memory.h"
  gpipe::StageMemory memory(pipe);
  pipe->step({input}, {}, loss);
  for (const auto& peak : memory.stages()) {
    std::cout << "stage " << peak.stage << ": " << peak.model + peak.taken << " bytes\n";
  }
  // [/stage_memory]
  guide::expect(memory.stages().size() == 2 && memory.stages()[0].taken > 0, "memory is counted");
});

const guide::Answer kPlanned("18.1", [](std::ostream& out) {
  const auto print = [&out](int64_t chunks, Checkpoint mode) {
    nn::Sequential model = [] {
      gpipe::MetaScope meta;
      return my_model();
    }();
    const auto plan = gpipe::balance::memory_plan(
        model, {torch::empty({1024, 1024}, torch::kMeta)}, {}, square,
        gpipe::balance::MemoryPlanOptions({8, 8}).chunks(chunks).checkpoint(mode));
    out << chunks << " chunks, " << to_text(mode) << ":";
    for (const auto& device : plan.devices) {
      out << " " << static_cast<double>(device.peak.bytes) / (1 << 20) << " MiB";
    }
    out << "\n";
  };
  for (const int64_t chunks : {1, 8}) {
    for (const Checkpoint mode : {Checkpoint::kNever, Checkpoint::kAlways}) print(chunks, mode);
  }
});

const guide::Answer kSmallest("18.2", [](std::ostream& out) {
  gpipe::balance::Training training;
  training.make = my_model;
  training.inputs = {torch::empty({1024, 1024}, torch::kMeta)};
  training.loss = square;
  const int64_t mib = 1 << 20;
  for (const int64_t each : {96, 64, 48, 40}) {
    const gpipe::balance::Fit fit = gpipe::balance::fit(training, {each * mib, each * mib});
    out << "two devices of " << each << " MiB: ";
    if (fit.fits) {
      out << "it fits with " << fit.chunks << " chunks, " << to_text(fit.checkpoint) << "\n";
    } else {
      out << fit.limit << "\n";
    }
  }
});

// --- 19: why is it slow?

struct SleepImpl : nn::Module {
  explicit SleepImpl(int milliseconds) : milliseconds(milliseconds) {
    linear = register_module("linear", nn::Linear(8, 8));
  }
  torch::Tensor forward(torch::Tensor x) {
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    return linear(x);
  }
  int milliseconds;
  nn::Linear linear = nullptr;
};
TORCH_MODULE(Sleep);

const guide::Chapter kSlow("19", [] {
  nn::Sequential model(nn::Linear(8, 256), nn::Tanh(), nn::Linear(256, 256), nn::Linear(256, 1));
  const std::vector<int64_t> balance = {1, 3};
  const torch::Tensor input = torch::randn({256, 8});
  const torch::Tensor target = torch::randn({256, 1});
  const auto loss_fn = nn::MSELoss();
  const auto options = gpipe::DiagnoseOptions().seconds(0.02).chunks({1, 4});
  // [diagnose]
  // #include "diagnose/diagnose.h", "diagnose/diagnosis_text.h"
  gpipe::GPipe pipe(model, gpipe::GPipeOptions(balance).chunks(16));
  gpipe::Diagnosis diagnosis = gpipe::diagnose(pipe, {input}, {target}, loss_fn, options);
  std::cout << to_text(diagnosis);
  // [/diagnose]
  guide::expect(diagnosis.workers == 2 && diagnosis.step > 0, "two workers are diagnosed");
  // [follow]
  if (!diagnosis.advice.empty()) {
    const gpipe::PipelineSetup& better = diagnosis.advice.front().setup;
    gpipe::GPipe faster(model, gpipe::pipe_options(better));  // gpipe/setup.h
    faster->step({input}, {target}, loss_fn, gpipe::step_options(better));
  }
  // [/follow]
  // [timeline]
  // #include "gpipe/timeline/time_split_text.h", "gpipe/timeline/timeline.h"
  pipe->step({input}, {target}, loss_fn);  // a first step also makes what the later ones use again
  gpipe::Timeline timeline;
  pipe->step({input}, {target}, loss_fn, gpipe::StepOptions().on_event(timeline.observer()));
  std::cout << gpipe::to_text(gpipe::split_time(timeline.steps(), pipe->routes()));
  // [/timeline]
  // [picture]
  // #include "gpipe/timeline/simulate_again.h", "gpipe/timeline/timeline_svg.h"
  const gpipe::StepTimeline real = timeline.steps().back();
  std::vector<gpipe::TimelinePanel> panels = {{"measured", real}};
  if (const auto again = gpipe::simulate_again(real, pipe->routes())) {
    panels.push_back({"simulated", *again});
  }
  std::ofstream("step.svg") << gpipe::to_svg(panels, "1F1B");
  // [/picture]
  guide::expect(timeline.steps().size() == 1, "one step is recorded");
});

// Prints the split of the second step: a first step also starts what later steps find running.
void print_split(std::ostream& out, gpipe::GPipe& pipe) {
  const torch::Tensor input = torch::randn({8, 8});
  pipe->step({input}, {}, square);
  gpipe::Timeline timeline;
  pipe->step({input}, {}, square, gpipe::StepOptions().on_event(timeline.observer()));
  out << gpipe::to_text(gpipe::split_time(timeline.steps(), pipe->routes()));
}

const guide::Answer kImbalance("19.1", [](std::ostream& out) {
  gpipe::GPipe pipe(nn::Sequential(Sleep(6), Sleep(2)),
                    gpipe::GPipeOptions({1, 1}).chunks(8).checkpoint(Checkpoint::kNever));
  print_split(out, pipe);
});

const guide::Answer kRecompute("19.2", [](std::ostream& out) {
  for (const Checkpoint mode : {Checkpoint::kNever, Checkpoint::kAlways}) {
    gpipe::GPipe pipe(nn::Sequential(Sleep(4), Sleep(4)),
                      gpipe::GPipeOptions({1, 1}).chunks(8).checkpoint(mode));
    out << to_text(mode) << ":\n";
    print_split(out, pipe);
  }
});

// --- 21: it hangs

struct FailsImpl : nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    TORCH_CHECK_VALUE(x.max().item<double>() < 10, "a value of ", x.max().item<double>());
    return x;
  }
};
TORCH_MODULE(Fails);

const guide::Chapter kErrors("21", [] {
  gpipe::GPipe pipe(nn::Sequential(nn::Linear(8, 8), Fails(), nn::Linear(8, 1)),
                    gpipe::GPipeOptions({1, 2}).chunks(4));
  const torch::Tensor input = torch::full({8, 8}, 1e6);
  const torch::Tensor target = torch::zeros({8, 1});
  const auto loss_fn = nn::MSELoss();
  pipe->parameters()[0].data().fill_(1);
  // [catch]
  try {
    pipe->step({input}, {target}, loss_fn);
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << "\n";
    if (const auto failure = pipe->last_failure()) {
      std::cerr << failure->layer << ", micro-batch " << failure->micro_batch << "\n";
    }
  }
  // [/catch]
  guide::expect(pipe->last_failure().has_value(), "the layer's error arrives");
  guide::expect(pipe->last_failure()->stage == 1, "the failure knows its stage");
  pipe->zero_grad();
  guide::expect(std::isfinite(pipe->step({torch::zeros({8, 8})}, {target}, loss_fn).loss),
                "the pipeline works on");
});

const guide::Answer kMessage("21.1", [](std::ostream& out) {
  gpipe::GPipe pipe(nn::Sequential(nn::Linear(8, 8), nn::Linear(4, 1)),
                    gpipe::GPipeOptions({1, 1}).chunks(4));
  out << guide::message_of([&] { pipe->forward(torch::ones({8, 8})); }) << "\n";
});

const guide::Answer kDeadlock("21.2", [](std::ostream& out) {
  // Worker 1 wants micro-batch 1 first, worker 0 gives it only after the backward of 0.
  gpipe::GPipe pipe(nn::Sequential(nn::Linear(8, 8), nn::Linear(8, 1)),
                    gpipe::GPipeOptions({1, 1}).chunks(2));
  const auto schedule = gpipe::Schedule::from_text(
      "stages 2\nmicro_batches 2\n"
      "worker 0: F0.0 B0.0 F0.1 B0.1\n"
      "worker 1: F1.1 B1.1 F1.0 B1.0\n");
  out << guide::message_of([&] {
    pipe->step({torch::ones({8, 8})}, {}, square, gpipe::StepOptions().schedule(schedule));
  }) << "\n";
});

// --- 22: NaN

const guide::Chapter kNan("22", [] {
  gpipe::GPipe pipe(
      nn::Sequential(nn::Linear(8, 8), nn::Functional([](torch::Tensor x) { return x.log(); }),
                     nn::Linear(8, 1)),
      gpipe::GPipeOptions({1, 2}).chunks(4));
  const torch::Tensor input = torch::randn({8, 8});
  const torch::Tensor target = torch::zeros({8, 1});
  const auto loss_fn = nn::MSELoss();
  guide::expect(std::isnan(pipe->step({input}, {target}, loss_fn).loss),
                "a NaN loss does not throw");
  pipe->zero_grad();
  const std::string message = guide::message_of([&] {
    // [check_finite]
    pipe->step({input}, {target}, loss_fn, gpipe::StepOptions().check_finite(true));
    // [/check_finite]
  });
  guide::expect(message.find("layer 1 ('1')") != std::string::npos,
                "it names the layer: " + message);
});

const guide::Answer kNormAtZero("22.1", [](std::ostream& out) {
  gpipe::GPipe pipe(nn::Sequential(nn::Linear(nn::LinearOptions(8, 8).bias(false)),
                                   nn::Functional([](torch::Tensor x) {
                                     return x.square().sum(1, /*keepdim=*/true).sqrt();
                                   })),
                    gpipe::GPipeOptions({1, 1}).chunks(4));
  torch::manual_seed(0);
  torch::Tensor input = torch::randn({8, 8});
  input[5].fill_(0);
  const auto mean = [](const gpipe::Tensors& outputs, const gpipe::Tensors& /*targets*/) {
    return outputs.at(0).mean();
  };
  out << "loss " << pipe->step({input}, {}, mean).loss << ", gradient "
      << pipe->parameters()[0].grad().norm().item<double>() << "\n";
  pipe->zero_grad();
  out << guide::message_of([&] {
    pipe->step({input}, {}, mean, gpipe::StepOptions().check_finite(true));
  }) << "\n";
});

const guide::Answer kOnlyPadding("22.2", [](std::ostream& out) {
  const auto loss_fn = [](torch::Tensor output, torch::Tensor target) {
    return F::cross_entropy(output, target, F::CrossEntropyFuncOptions().ignore_index(-100));
  };
  const auto tokens = [](const gpipe::Tensors& targets) {
    return targets.at(0).ne(-100).sum().item<double>();
  };
  torch::Tensor target = torch::zeros({8}, torch::kLong);
  target.slice(0, 6).fill_(-100);  // the last of four micro-batches
  for (const bool weighted : {false, true}) {
    gpipe::GPipe pipe(nn::Sequential(nn::Linear(8, 8), nn::Linear(8, 4)),
                      gpipe::GPipeOptions({1, 1}).chunks(4));
    const auto options = weighted ? gpipe::StepOptions().weight(tokens) : gpipe::StepOptions();
    torch::manual_seed(0);
    out << (weighted ? "with weights: " : "without: ")
        << pipe->step({torch::randn({8, 8})}, {target}, loss_fn, options).loss << "\n";
  }
});

}  // namespace
