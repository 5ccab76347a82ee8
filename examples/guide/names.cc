// The program of chapters 26 to 30: what has which name here, settings, limits.

#include <torch/torch.h>

#include <atomic>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "examples/guide/guide.h"
#include "gpipe/gpipe.h"
#include "gpipe/schedule/drawing.h"
#include "gpipe/schedule/named_schedule.h"

namespace {

namespace nn = torch::nn;
using gpipe::Checkpoint;

torch::Tensor square(const gpipe::Tensors& outputs, const gpipe::Tensors& /*targets*/) {
  return outputs.at(0).square().mean();
}

nn::Sequential make_model() {
  torch::manual_seed(0);
  return nn::Sequential(nn::Linear(8, 8), nn::Tanh(), nn::Linear(8, 8), nn::Tanh());
}

// --- 26: from torchgpipe

const guide::Chapter kTorchgpipe("26", [] {
  const torch::Tensor input = torch::randn({8, 8});
  const torch::Tensor target = torch::randn({8, 8});
  auto model = make_model();
  // [as_torchgpipe]
  gpipe::GPipe pipe(model, gpipe::GPipeOptions({2, 2}).chunks(4));
  torch::Tensor output = pipe(input);
  torch::mse_loss(output, target).backward();
  // [/as_torchgpipe]
  guide::expect(pipe->parameters()[0].grad().defined(), "torchgpipe's loop works");
});

struct CountsImpl : nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    if (gpipe::is_recomputing()) ++recomputes;
    return x.tanh();
  }
  std::atomic<int> recomputes{0};
};
TORCH_MODULE(Counts);

const guide::Answer kShortBatch("26.1", [](std::ostream& out) {
  for (const int64_t rows : {8, 2}) {
    Counts counts;
    gpipe::GPipe pipe(nn::Sequential(nn::Linear(8, 8), counts),
                      gpipe::GPipeOptions({1, 1}).chunks(4));
    pipe->forward(torch::randn({rows, 8})).sum().backward();
    out << rows << " rows in 4 chunks, except_last, forward and backward: " << counts->recomputes
        << " recomputes in the last partition\n";
  }
});

const guide::Answer kShared("26.2", [](std::ostream& out) {
  const torch::Tensor weight = torch::randn({8, 8}).requires_grad_();
  struct UsesImpl : nn::Module {
    UsesImpl(torch::Tensor weight, bool registers) : weight(std::move(weight)) {
      if (registers) register_parameter("weight", this->weight);
    }
    torch::Tensor forward(torch::Tensor x) { return x.matmul(weight); }
    torch::Tensor weight;
  };
  gpipe::GPipe pipe(nn::Sequential(std::make_shared<UsesImpl>(weight, true),
                                   std::make_shared<UsesImpl>(weight, false)),
                    gpipe::GPipeOptions({1, 1}).chunks(4));
  pipe->step({torch::randn({8, 8})}, {}, square);
  const auto parameters = pipe->parameters();
  out << "a weight of two partitions: " << parameters.size() << " parameter, gradient "
      << (parameters[0].grad().defined() ? "of both uses" : "missing") << "\n";
});

// --- 27: from torch.distributed.pipelining

const guide::Chapter kPipelining("27", [] {
  const torch::Tensor input = torch::randn({16, 8});
  const torch::Tensor target = torch::randn({16, 8});
  const auto loss_fn = nn::MSELoss();
  auto model = make_model();
  // [as_pipelining]
  // #include "gpipe/schedule/named_schedule.h"
  gpipe::GPipe pipe(model, gpipe::GPipeOptions({2, 2}).chunks(8));
  auto options = gpipe::StepOptions().schedule(gpipe::schedule_by_name("1f1b")).keep_outputs(true);
  gpipe::StepResult result = pipe->step({input}, {target}, loss_fn, options);
  std::vector<double> losses = result.losses;    // of each micro-batch
  torch::Tensor outputs = result.outputs.at(0);  // of the mini-batch
  // [/as_pipelining]
  guide::expect(losses.size() == 8 && outputs.size(0) == 16, "losses and outputs are there");
});

const guide::Answer kScale("27.1", [](std::ostream& out) {
  const torch::Tensor input = torch::randn({16, 8});
  nn::Sequential plain = make_model();
  plain->forward(input).square().mean().backward();
  gpipe::GPipe pipe(make_model(), gpipe::GPipeOptions({2, 2}).chunks(8));
  pipe->step({input}, {}, square);
  out << "the gradient of the plain model has the norm "
      << plain->parameters()[0].grad().norm().item<double>() << ", the pipeline's "
      << pipe->parameters()[0].grad().norm().item<double>() << "\n";
});

const guide::Answer kInterleaved("27.2", [](std::ostream& out) {
  out << gpipe::draw(gpipe::schedule_by_name("interleaved", /*stages=*/4, /*micro_batches=*/4));
});

// --- 28: environment variables

const guide::Answer kThreads("28.1", [](std::ostream& out) {
  gpipe::GPipe pipe(make_model(), gpipe::GPipeOptions({2, 2}));
  out << at::get_num_threads() << " threads for the plain model, " << pipe->cpu_threads_per_stage()
      << " for each of two stages\n";
});

// --- 29: limits

const guide::Answer kDoubleBackward("29.1", [](std::ostream& out) {
  gpipe::GPipe pipe(make_model(), gpipe::GPipeOptions({2, 2}).chunks(2));
  const torch::Tensor input = torch::randn({8, 8}).requires_grad_();
  const torch::Tensor loss = pipe->forward(input).sum();
  out << guide::message_of([&] {
    torch::autograd::grad({loss}, {input}, {}, /*retain_graph=*/true, /*create_graph=*/true);
  }) << "\n";
});

const guide::Answer kInPlace("29.2", [](std::ostream& out) {
  nn::Sequential model(nn::Linear(8, 8), nn::ReLU(nn::ReLUOptions().inplace(true)),
                       nn::Linear(8, 8));
  const torch::Tensor input = torch::randn({8, 8});
  gpipe::GPipe pipe(model, gpipe::GPipeOptions({1, 2}).chunks(2).checkpoint(Checkpoint::kAlways));
  out << guide::message_of([&] { pipe->step({input}, {}, square); }) << "\n";
  gpipe::GPipe other(model, gpipe::GPipeOptions({2, 1}).chunks(2).checkpoint(Checkpoint::kAlways));
  out << "with the cut behind it: loss " << other->step({input}, {}, square).loss << "\n";
});

const guide::Answer kScalarOutput("29.3", [](std::ostream& out) {
  nn::Sequential model(nn::Linear(8, 8), nn::Functional([](torch::Tensor x) { return x.mean(); }));
  gpipe::GPipe pipe(model, gpipe::GPipeOptions({1, 1}).chunks(2));
  out << guide::message_of([&] { pipe->forward(torch::randn({8, 8})); }) << "\n";
});

// --- 30: questions

const guide::Answer kFewRows("30.1", [](std::ostream& out) {
  gpipe::GPipe pipe(make_model(), gpipe::GPipeOptions({2, 2}).chunks(8));
  for (const int64_t rows : {9, 3}) {
    out << rows
        << " rows in 8 chunks: " << pipe->step({torch::randn({rows, 8})}, {}, square).losses.size()
        << " micro-batches\n";
  }
});

const guide::Answer kTypeOfModel("30.2", [](std::ostream& out) {
  gpipe::GPipe pipe(make_model(), gpipe::GPipeOptions({1, 3}).chunks(2));
  out << *pipe << "\n";
});

}  // namespace
