// The program of chapters 8 to 10 and 12: losses, batch norms, random numbers, mixed precision.

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <cmath>
#include <iomanip>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "examples/guide/guide.h"
#include "gpipe/gpipe.h"
#include "gpipe/grad_scaler.h"
#include "gpipe/optim/fused.h"
#include "gpipe/stage_memory.h"

namespace {

namespace nn = torch::nn;
namespace F = torch::nn::functional;
using gpipe::Checkpoint;

// --- 8: losses

constexpr int64_t kWords = 50;

nn::Sequential language_model() {
  torch::manual_seed(0);
  return nn::Sequential(nn::Embedding(kWords, 16), nn::Linear(16, 64), nn::Tanh(),
                        nn::Linear(64, kWords));
}

// Sentences of different lengths: row n has n words less than the longest, and padding instead.
struct Sentences {
  Sentences() {
    torch::manual_seed(1);
    words = torch::randint(kWords, {14, 9});
    next_words = torch::randint(kWords, {14, 9});
    for (int64_t n = 0; n < 14; ++n) next_words[n].slice(0, 9 - n * 9 / 14).fill_(-100);
  }
  torch::Tensor words;
  torch::Tensor next_words;
};

// [token_loss]
// The mean over the tokens that are not padding. (N, T, words) and (N, T).
torch::Tensor token_loss(const gpipe::Tensors& outputs, const gpipe::Tensors& targets) {
  return F::cross_entropy(outputs.at(0).flatten(0, 1), targets.at(0).flatten(),
                          F::CrossEntropyFuncOptions().ignore_index(-100));
}

double count_tokens(const gpipe::Tensors& targets) {
  return targets.at(0).ne(-100).sum().item<double>();
}
// [/token_loss]

const guide::Chapter kLosses("8", [] {
  const Sentences sentences;
  const torch::Tensor words = sentences.words;
  const torch::Tensor next_words = sentences.next_words;
  nn::Sequential plain = language_model();
  const double expected = token_loss({plain->forward(words)}, {next_words}).item<double>();
  gpipe::GPipe pipe(language_model(), gpipe::GPipeOptions({2, 2}).chunks(4));
  // [token_weight]
  auto options = gpipe::StepOptions().weight(count_tokens);
  double loss = pipe->step({words}, {next_words}, token_loss, options).loss;
  // [/token_weight]
  guide::expect(std::fabs(loss - expected) < 1e-5, "the loss is that of the plain model");

  torch::manual_seed(0);
  gpipe::GPipe classifier(nn::Sequential(nn::Linear(8, 8), nn::Linear(8, 3)),
                          gpipe::GPipeOptions({1, 1}).chunks(4));
  const torch::Tensor input = torch::randn({10, 8});
  const torch::Tensor target = torch::randint(3, {10});
  {
    // [class_weights]
    torch::Tensor w = torch::tensor({1.0F, 2.0F, 5.0F});  // of each class
    auto loss_fn = [w](torch::Tensor output, torch::Tensor target) {
      return F::cross_entropy(output, target, F::CrossEntropyFuncOptions().weight(w));
    };
    auto options = gpipe::StepOptions().weight([w](const gpipe::Tensors& targets) {
      return w.index({targets.at(0)}).sum().item<double>();
    });
    double loss = classifier->step({input}, {target}, loss_fn, options).loss;
    // [/class_weights]
    const double whole = loss_fn(classifier->sequential()->forward(input), target).item<double>();
    guide::expect(std::fabs(loss - whole) < 1e-5, "classes count by their weights");
  }
  // [sum]
  auto sum_of_squares = [](torch::Tensor output, torch::Tensor target) {
    return F::mse_loss(output, target, F::MSELossFuncOptions().reduction(torch::kSum));
  };
  auto sums = gpipe::StepOptions().reduction(gpipe::LossReduction::kSum);
  double sum = classifier->step({input}, {torch::zeros({10, 3})}, sum_of_squares, sums).loss;
  // [/sum]
  const double whole = classifier->sequential()->forward(input).square().sum().item<double>();
  guide::expect(std::fabs(sum - whole) < 1e-4 * whole, "a sum is the sum over the mini-batch");
});

const guide::Answer kWrongOption("8.1", [](std::ostream& out) {
  const Sentences sentences;
  out << std::setprecision(6) << "the plain model: "
      << token_loss({language_model()->forward(sentences.words)}, {sentences.next_words})
             .item<double>();
  for (const bool weighted : {true, false}) {
    gpipe::GPipe pipe(language_model(), gpipe::GPipeOptions({2, 2}).chunks(4));
    const auto options =
        weighted ? gpipe::StepOptions().weight(count_tokens) : gpipe::StepOptions();
    out << (weighted ? "; with weights: " : "; without: ")
        << pipe->step({sentences.words}, {sentences.next_words}, token_loss, options).loss;
  }
  out << "\n";
});

const guide::Answer kPenalty("8.2", [](std::ostream& out) {
  for (const int64_t chunks : {1, 4}) {
    for (const bool mean : {true, false}) {
      torch::manual_seed(0);
      nn::Linear last(8, 1);
      gpipe::GPipe pipe(nn::Sequential(nn::Linear(8, 8), last),
                        gpipe::GPipeOptions({1, 1}).chunks(chunks));
      const auto loss_fn = [last, mean](torch::Tensor output, torch::Tensor /*target*/) {
        const torch::Tensor penalty = last->weight.square().sum();
        return (mean ? output.square().mean() : output.square().sum()) + penalty;
      };
      const auto options = gpipe::StepOptions().reduction(mean ? gpipe::LossReduction::kMean
                                                               : gpipe::LossReduction::kSum);
      const torch::Tensor input = torch::randn({16, 8});
      out << chunks << (chunks == 1 ? " chunk, " : " chunks, ") << (mean ? "mean: " : "sum: ")
          << pipe->step({input}, {input}, loss_fn, options).loss << "\n";
    }
  }
});

// --- 9: batch norm

nn::Sequential with_batch_norm() {
  torch::manual_seed(0);
  return nn::Sequential(nn::Linear(8, 16), nn::BatchNorm1d(16), nn::ReLU(), nn::Linear(16, 1));
}

const guide::Chapter kBatchNorm("9", [] {
  const torch::Tensor input = torch::randn({32, 8});
  nn::Sequential model = with_batch_norm();
  // [deferred]
  gpipe::GPipe pipe(model, gpipe::GPipeOptions({2, 2}).chunks(4).deferred_batch_norm(true));
  // [/deferred]
  pipe->forward(input);
  nn::Sequential plain = with_batch_norm();
  plain->forward(input);
  const auto have = pipe->named_buffers();
  const auto want = plain->named_buffers();
  guide::expect(have["1.num_batches_tracked"].item<int64_t>() == 1, "a mini-batch counts once");
  for (const char* name : {"1.running_mean", "1.running_var"}) {
    guide::expect(torch::allclose(have[name], want[name], 1e-5, 1e-6),
                  "running statistics are those of the whole mini-batch");
  }
});

const guide::Answer kStatistics("9.1", [](std::ostream& out) {
  torch::manual_seed(3);
  const torch::Tensor input = torch::randn({32, 8});
  nn::Sequential plain = with_batch_norm();
  plain->forward(input);
  const auto print = [&out](const char* what, const auto& buffers) {
    out << what << ": " << buffers["1.num_batches_tracked"].template item<int64_t>()
        << " counted, running_var of channel 0 is "
        << buffers["1.running_var"][0].template item<double>() << "\n";
  };
  print("whole mini-batch", plain->named_buffers());
  for (const bool deferred : {false, true}) {
    gpipe::GPipe pipe(with_batch_norm(),
                      gpipe::GPipeOptions({2, 2}).chunks(4).deferred_batch_norm(deferred));
    pipe->forward(input);
    print(deferred ? "4 chunks, deferred" : "4 chunks", pipe->named_buffers());
  }
});

const guide::Answer kNormalized("9.2", [](std::ostream& out) {
  torch::manual_seed(3);
  const torch::Tensor input = torch::randn({32, 8});
  const torch::Tensor whole = with_batch_norm()->forward(input);
  for (const bool deferred : {false, true}) {
    for (const int64_t chunks : {1, 4, 16}) {
      gpipe::GPipe pipe(with_batch_norm(),
                        gpipe::GPipeOptions({2, 2}).chunks(chunks).deferred_batch_norm(deferred));
      out << chunks << (deferred ? " chunks, deferred" : " chunks") << ": outputs differ by "
          << (pipe->forward(input) - whole).abs().max().item<double>() << "\n";
    }
  }
});

const guide::Answer kOneRow("9.3", [](std::ostream& out) {
  gpipe::GPipe pipe(with_batch_norm(), gpipe::GPipeOptions({2, 2}).chunks(4));
  out << guide::message_of([&] { pipe->forward(torch::randn({4, 8})); }) << "\n";
});

// --- 10: random numbers

nn::Sequential with_dropout() {
  torch::manual_seed(0);
  return nn::Sequential(nn::Linear(8, 32), nn::Dropout(0.5), nn::ReLU(), nn::Linear(32, 1));
}

double loss_with_seed(const gpipe::GPipeOptions& options, int64_t seed) {
  gpipe::GPipe pipe(with_dropout(), options);
  torch::manual_seed(7);
  const torch::Tensor input = torch::randn({32, 8});
  const torch::Tensor target = torch::zeros({32, 1});
  const auto loss_fn = nn::MSELoss();
  // [seed]
  torch::manual_seed(seed);
  double loss = pipe->step({input}, {target}, loss_fn).loss;
  // [/seed]
  return loss;
}

const guide::Chapter kRandom("10", [] {
  const double expected =
      loss_with_seed(gpipe::GPipeOptions({4}).chunks(4).cpu_threads_per_stage(1), 1);
  for (const std::vector<int64_t>& balance : {std::vector<int64_t>{2, 2}, {1, 1, 1, 1}}) {
    for (const Checkpoint mode : {Checkpoint::kNever, Checkpoint::kAlways}) {
      const auto options =
          gpipe::GPipeOptions(balance).chunks(4).checkpoint(mode).cpu_threads_per_stage(1);
      guide::expect(loss_with_seed(options, 1) == expected, "the seed alone decides");
    }
  }
});

const guide::Answer kSeeds("10.1", [](std::ostream& out) {
  out << std::setprecision(9);
  for (const std::vector<int64_t>& balance : {std::vector<int64_t>{4}, {1, 3}, {1, 1, 1, 1}}) {
    for (const int64_t seed : {1, 2}) {
      out << balance.size() << " partitions, seed " << seed << ": "
          << loss_with_seed(gpipe::GPipeOptions(balance).chunks(4).cpu_threads_per_stage(1), seed)
          << "\n";
    }
  }
});

const guide::Answer kNextStep("10.2", [](std::ostream& out) {
  gpipe::GPipe pipe(with_dropout(), gpipe::GPipeOptions({2, 2}).chunks(4));
  const torch::Tensor input = torch::ones({8, 8});
  torch::manual_seed(1);
  for (int step = 0; step < 2; ++step) {
    out << "step " << step << ": " << pipe->forward(input).sum().item<double>() << "\n";
  }
  torch::manual_seed(1);
  out << "seeded again: " << pipe->forward(input).sum().item<double>() << "\n";
});

// --- 12: mixed precision

// [autocast]
// #include <ATen/autocast_mode.h>
class Autocast {
 public:
  Autocast(torch::DeviceType device, torch::Dtype type) : device_(device) {
    at::autocast::set_autocast_dtype(device, type);
    at::autocast::set_autocast_enabled(device, true);
  }
  ~Autocast() {
    at::autocast::clear_cache();  // a pipeline has put nothing there
    at::autocast::set_autocast_enabled(device_, false);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  torch::DeviceType device_;
};
// [/autocast]

nn::Sequential classifier() {
  torch::manual_seed(0);
  return nn::Sequential(nn::Linear(64, 256), nn::ReLU(), nn::Linear(256, 256), nn::ReLU(),
                        nn::Linear(256, 4));
}

const guide::Chapter kMixed("12", [] {
  gpipe::GPipe pipe(classifier(), gpipe::GPipeOptions({2, 3}).chunks(4).cpu_threads_per_stage(1));
  torch::manual_seed(1);
  const torch::Tensor input = torch::randn({32, 64});
  const torch::Tensor target = torch::randint(4, {32});
  nn::CrossEntropyLoss loss_fn;
  // [autocast_step]
  {
    Autocast autocast(torch::kCPU, torch::kBFloat16);  // or torch::kCUDA
    pipe->step({input}, {target}, loss_fn);
  }
  // [/autocast_step]
  guide::expect(pipe->parameters()[0].grad().dtype() == torch::kFloat, "gradients are float32");

  // The plain model, micro-batch by micro-batch, on as many threads.
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  at::autocast::set_autocast_cache_enabled(false);
  nn::Sequential plain = classifier();
  for (int64_t k = 0; k < 4; ++k) {
    const Autocast autocast(torch::kCPU, torch::kBFloat16);
    const torch::Tensor output = plain->forward(input.narrow(0, 8 * k, 8));
    F::cross_entropy(output, target.narrow(0, 8 * k, 8)).backward(torch::tensor(0.25F));
  }
  at::autocast::set_autocast_cache_enabled(true);
  at::set_num_threads(threads);
  for (size_t k = 0; k < plain->parameters().size(); ++k) {
    guide::expect(pipe->parameters()[k].grad().equal(plain->parameters()[k].grad()),
                  "the gradients are those of the plain model under autocast, bit by bit");
  }

  pipe->zero_grad();
  // [fused]
  gpipe::FusedAdamW optimizer(pipe->local_parameters(), torch::optim::AdamWOptions(3e-4));
  // [/fused]
  // [loss_scale]
  gpipe::GradScaler scaler(pipe);
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const double loss =
        pipe->step({input}, {target}, loss_fn, gpipe::StepOptions().loss_scale(scaler.scale()))
            .loss;
    std::cout << "loss " << loss << "\n";
    scaler.unscale_();  // before anything that reads gradients, such as clipping
    pipe->clip_grad_norm_(1.0);
    scaler.step(optimizer);  // left out if a gradient is not finite
    scaler.update();         // then halved; doubled after 2,000 steps without
  }
  // [/loss_scale]
  guide::expect(scaler.scale() == 65536, "all gradients were finite");
});

const guide::Answer kTypes("12.1", [](std::ostream& out) {
  gpipe::GPipe pipe(classifier(), gpipe::GPipeOptions({2, 3}).chunks(4));
  const torch::Tensor input = torch::randn({32, 64});
  const torch::Tensor target = torch::zeros({32}, torch::kLong);
  const Autocast autocast(torch::kCPU, torch::kBFloat16);
  const gpipe::StepResult result = pipe->step({input}, {target}, nn::CrossEntropyLoss(),
                                              gpipe::StepOptions().keep_outputs(true));
  out << "outputs: " << result.outputs.at(0).dtype()
      << ", parameters: " << pipe->parameters()[0].dtype()
      << ", gradients: " << pipe->parameters()[0].grad().dtype() << "\n";
});

const guide::Answer kActivations("12.2", [](std::ostream& out) {
  const torch::Tensor input = torch::randn({1024, 64});
  const torch::Tensor target = torch::zeros({1024}, torch::kLong);
  for (const bool half : {false, true}) {
    gpipe::GPipe pipe(classifier(),
                      gpipe::GPipeOptions({2, 3}).chunks(4).checkpoint(Checkpoint::kNever));
    const auto step = [&] {
      if (half) {
        const Autocast autocast(torch::kCPU, torch::kBFloat16);
        pipe->step({input}, {target}, nn::CrossEntropyLoss());
      } else {
        pipe->step({input}, {target}, nn::CrossEntropyLoss());
      }
    };
    step();
    const gpipe::StageMemory memory(pipe);
    step();
    out << (half ? "bfloat16:" : "float32:");
    for (const gpipe::StagePeak& peak : memory.stages()) {
      out << " stage " << peak.stage << " takes " << peak.taken / 1024 << " KiB;";
    }
    out << "\n";
  }
});

}  // namespace
