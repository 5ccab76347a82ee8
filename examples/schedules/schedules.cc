// The example of chapter 23 of docs/guide: a step under schedules written by hand. Each is checked,
// drawn, predicted, run, traced, and compared with 1F1B.

#include <torch/torch.h>

#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/schedule/drawing.h"
#include "gpipe/schedule/simulate.h"
#include "gpipe/timeline/time_split_text.h"
#include "gpipe/timeline/timeline.h"
#include "gpipe/timeline/timeline_svg.h"

namespace {

namespace nn = torch::nn;
using gpipe::Schedule;

// After ZB-H1 (Qi et al., "Zero Bubble Pipeline Parallelism", 2023): a backward (B) is cut into the
// gradients of the inputs (I), which the previous stage waits for, and those of the weights (W).
const char kZeroBubble[] = R"(
stages 2
micro_batches 4
worker 0: F0.0 F0.1 I0.0 F0.2 W0.0 I0.1 F0.3 W0.1 I0.2 W0.2 I0.3 W0.3
worker 1: F1.0 I1.0 F1.1 W1.0 I1.1 F1.2 W1.1 I1.2 F1.3 W1.2 I1.3 W1.3
)";

// This schedule has two stages on one worker.
const char kOneWorker[] = R"(
stages 2
micro_batches 4
worker 0: F0.0 F1.0 B1.0 B0.0 F0.1 F1.1 B1.1 B0.1 F0.2 F1.2 B1.2 B0.2 F0.3 F1.3 B1.3 B0.3
)";

struct Result {
  double loss;
  std::vector<torch::Tensor> gradients;
};

Result step_under(const Schedule& schedule, gpipe::Timeline& timeline) {
  torch::manual_seed(0);
  nn::Sequential model(nn::Linear(8, 256), nn::Tanh(), nn::Linear(256, 256), nn::Tanh(),
                       nn::Linear(256, 256), nn::Tanh(), nn::Linear(256, 1));
  gpipe::GPipe pipe(model, gpipe::GPipeOptions({3, 4}).chunks(4).cpu_threads_per_stage(1));
  const torch::Tensor input = torch::randn({512, 8});
  const auto loss_fn = [](const gpipe::Tensors& outputs, const gpipe::Tensors& targets) {
    return nn::functional::mse_loss(outputs.at(0), targets.at(0));
  };
  Result result;
  // The first step compiles the schedule and warms up.
  for (int round = 0; round < 2; ++round) {
    pipe->zero_grad();
    result.loss = pipe->step({input}, {input.sum(1, /*keepdim=*/true)}, loss_fn,
                             gpipe::StepOptions().schedule(schedule).on_event(timeline.observer()))
                      .loss;
  }
  for (const torch::Tensor& parameter : pipe->parameters()) {
    result.gradients.push_back(parameter.grad());
  }
  return result;
}

bool same(const Result& a, const Result& b) {
  bool equal = a.loss == b.loss && a.gradients.size() == b.gradients.size();
  for (size_t k = 0; equal && k < a.gradients.size(); ++k) {
    equal = torch::equal(a.gradients[k], b.gradients[k]);
  }
  return equal;
}

}  // namespace

// schedules [TRACE [PICTURE]]: writes the trace of the steps, and a picture of the last one beside
// its simulation.
int main(int argc, char** argv) {
  if (argc > 2 && std::string(argv[1]) == argv[2]) {
    std::cerr << "TRACE and PICTURE are the same file, " << argv[1] << ": give each its own\n";
    return 2;
  }
  const gpipe::ActionCost costs = gpipe::uniform_cost(
      {/*forward=*/1.0, /*backward=*/2.0, /*input_gradient=*/1.0, /*weight_gradient=*/1.0});
  std::cout << "1F1B: predicted "
            << gpipe::simulate(Schedule::one_f_one_b(2, 4), {costs, {}}).makespan << "\n\n";
  gpipe::Timeline timeline;
  const Result expected = step_under(Schedule::one_f_one_b(2, 4), timeline);
  bool good = true;
  for (const char* text : {kOneWorker, kZeroBubble}) {
    const Schedule schedule = Schedule::from_text(text);
    schedule.verify(gpipe::Sends::kBuffered);  // throws and says what is wrong with it
    const gpipe::Simulation predicted = gpipe::simulate(schedule, {costs, {}});
    const Result result = step_under(schedule, timeline);
    const gpipe::StepTimeline step = timeline.steps().back();
    std::cout << gpipe::draw(schedule) << "predicted " << predicted.makespan << ", idle "
              << predicted.bubble_ratio() << "; loss " << result.loss << "\n\n";
    std::cout << gpipe::to_text(gpipe::split_time(step)) << "\n";
    good = good && same(result, expected) && step.workers.size() == predicted.workers.size();
    if (argc > 2) {
      // The unit of the simulation is chosen such that both pictures are equally long.
      const double seconds = static_cast<double>(step.end() - step.begin()) / 1e9;
      std::ofstream picture(argv[2]);
      picture << gpipe::to_svg(
                     {{"really run", step},
                      {"simulated", gpipe::to_timeline(predicted, seconds / predicted.makespan)}},
                     "A step")
              << std::flush;
      if (!picture) {
        std::cerr << "cannot write " << argv[2] << "\n";
        return 1;
      }
    }
  }
  if (argc > 1) timeline.write_chrome_trace(argv[1]);
  if (!good) std::cerr << "not what 1F1B computes\n";
  return good ? 0 : 1;
}
