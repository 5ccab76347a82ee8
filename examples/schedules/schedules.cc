// The program of docs/schedules.md: a step under schedules written by hand, each checked, drawn,
// predicted, run, traced, and compared with 1F1B.

#include <torch/torch.h>

#include <fstream>
#include <iostream>
#include <mutex>
#include <string>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/schedule/drawing.h"
#include "gpipe/schedule/simulate.h"

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

// Two stages on one worker.
const char kOneWorker[] = R"(
stages 2
micro_batches 4
worker 0: F0.0 F1.0 B1.0 B0.0 F0.1 F1.1 B1.1 B0.1 F0.2 F1.2 B1.2 B0.2 F0.3 F1.3 B1.3 B0.3
)";

// Collects the events of a step as a Chrome trace, which Perfetto opens. Workers report at once.
class Trace {
 public:
  void add(const gpipe::Event& event) {
    const auto time = std::chrono::duration<double, std::micro>(event.time.time_since_epoch());
    const char* phase = event.edge == gpipe::Event::Edge::kBegin ? "B" : "E";
    std::lock_guard<std::mutex> lock(mutex_);
    json_ += std::string(json_.empty() ? "[" : ",\n") + "{\"name\":\"" + event.action.to_text() +
             "\",\"ph\":\"" + phase + "\",\"pid\":0,\"tid\":" + std::to_string(event.worker) +
             ",\"ts\":" + std::to_string(time.count()) + "}";
    ++events_;
  }
  int64_t events() const { return events_; }
  void write(const std::string& path) const { std::ofstream(path) << json_ << "]\n"; }

 private:
  std::mutex mutex_;
  std::string json_;
  int64_t events_ = 0;
};

struct Result {
  double loss;
  std::vector<torch::Tensor> gradients;
};

Result step_under(const Schedule& schedule, Trace& trace) {
  torch::manual_seed(0);
  nn::Sequential model(nn::Linear(8, 16), nn::Tanh(), nn::Linear(16, 16), nn::Tanh(),
                       nn::Linear(16, 1));
  gpipe::GPipe pipe(model, gpipe::GPipeOptions({2, 3}).chunks(4).cpu_threads_per_stage(1));
  const torch::Tensor input = torch::randn({32, 8});
  const auto loss_fn = [](const gpipe::Tensors& outputs, const gpipe::Tensors& targets) {
    return nn::functional::mse_loss(outputs.at(0), targets.at(0));
  };
  Result result;
  result.loss = pipe->step({input}, {input.sum(1, /*keepdim=*/true)}, loss_fn,
                           gpipe::StepOptions().schedule(schedule).on_event(
                               [&](const gpipe::Event& event) { trace.add(event); }))
                    .loss;
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

// schedules [FILE]: writes the trace of the last step to FILE.
int main(int argc, char** argv) {
  const gpipe::ActionCost costs = gpipe::uniform_cost(
      {/*forward=*/1.0, /*backward=*/2.0, /*input_gradient=*/1.0, /*weight_gradient=*/1.0});
  std::cout << "1F1B: predicted "
            << gpipe::simulate(Schedule::one_f_one_b(2, 4), {costs, {}}).makespan << "\n\n";
  Trace ignored;
  const Result expected = step_under(Schedule::one_f_one_b(2, 4), ignored);
  bool good = true;
  for (const char* text : {kOneWorker, kZeroBubble}) {
    const Schedule schedule = Schedule::from_text(text);
    schedule.verify(gpipe::Sends::kBuffered);  // throws and says what is wrong with it
    const gpipe::Simulation predicted = gpipe::simulate(schedule, {costs, {}});
    Trace trace;
    const Result result = step_under(schedule, trace);
    std::cout << gpipe::draw(schedule) << "predicted " << predicted.makespan << ", idle "
              << predicted.bubble_ratio() << "; loss " << result.loss << "\n\n";
    good = good && same(result, expected) && trace.events() > 0;
    if (argc > 1) trace.write(argv[1]);
  }
  if (!good) std::cerr << "not what 1F1B computes\n";
  return good ? 0 : 1;
}
