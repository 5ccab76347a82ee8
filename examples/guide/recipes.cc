// The program of chapter 34: recipes. It runs alone, and under a launcher with 2.

#include <torch/torch.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "examples/guide/guide.h"
#include "gpipe/distributed/any_rank.h"
#include "gpipe/distributed/from_rank_0.h"
#include "gpipe/gpipe.h"
#include "gpipe/saving/saving.h"
#include "tied/tied_layer.h"

namespace {

namespace nn = torch::nn;
namespace F = torch::nn::functional;

constexpr int64_t kWords = 20;

// A head that is tied to the embedding. The embedding's weight is in another partition, and over
// processes in another process.
struct HeadImpl : nn::Module, gpipe::TiedLayer {
  explicit HeadImpl(torch::Tensor weight) : weight(std::move(weight)) {}
  torch::Tensor forward(torch::Tensor x) { return F::linear(x, weight); }
  std::vector<torch::Tensor> tied_parameters() const override { return {weight}; }
  void use_tied_parameters(const std::vector<torch::Tensor>& those) override { weight = those[0]; }
  torch::Tensor weight;
};
TORCH_MODULE(Head);

nn::Sequential make_model() {
  torch::manual_seed(0);
  nn::Embedding words(kWords, 16);
  return nn::Sequential(words, nn::Linear(16, 16), nn::GELU(), nn::Dropout(0.1),
                        Head(words->weight));
}

torch::Tensor loss_fn(const gpipe::Tensors& outputs, const gpipe::Tensors& targets) {
  return F::cross_entropy(outputs.at(0).flatten(0, 1), targets.at(0).flatten());
}

// The rule to learn: the next word is the word times 3.
torch::Tensor batch(int64_t number, int64_t rows = 8) {
  torch::manual_seed(1000 + number);
  return torch::randint(kWords, {rows, 6});
}
torch::Tensor next(const torch::Tensor& words) { return words * 3 % kWords; }

using Batches = std::vector<std::pair<torch::Tensor, torch::Tensor>>;

// Every sixth target breaks the rule, so a model that is too sure of the rule has a larger loss.
Batches validation_batches() {
  Batches batches;
  for (const int64_t rows : {8, 8, 3}) {
    const torch::Tensor words = batch(-1 - static_cast<int64_t>(batches.size()), rows);
    torch::Tensor next_words = next(words);
    next_words.select(1, 5).fill_(7);
    batches.emplace_back(words, next_words);
  }
  return batches;
}

// [rate_factor]
// Rises in proportion to the step during the warm-up, then falls along half a cosine. From step 1.
double rate_factor(int64_t step, int64_t warm_up, int64_t steps) {
  if (step <= warm_up) return static_cast<double>(step) / static_cast<double>(warm_up);
  const double done =
      static_cast<double>(step - 1 - warm_up) / static_cast<double>(steps - warm_up);
  return 0.5 * (1 + std::cos(std::acos(-1.0) * done));
}
// [/rate_factor]

// [mean_loss]
// The mean over the rows of all mini-batches, without dropout.
double mean_loss(gpipe::GPipe& pipe, const Batches& batches) {
  pipe->eval();
  double sum = 0;
  double rows = 0;
  for (const auto& [words, next_words] : batches) {
    const auto count = static_cast<double>(words.size(0));
    sum += count * pipe->evaluate({words}, {next_words}, loss_fn).loss;
    rows += count;
  }
  pipe->train();
  return sum / rows;
}
// [/mean_loss]

// [average]
std::vector<torch::Tensor> copies(gpipe::GPipe& pipe) {
  std::vector<torch::Tensor> values;
  for (const torch::Tensor& parameter : pipe->local_parameters()) {
    values.push_back(parameter.detach().clone());
  }
  return values;
}

void add_to(std::vector<torch::Tensor>& average, gpipe::GPipe& pipe, double decay) {
  const torch::NoGradGuard no_grad;
  const std::vector<torch::Tensor> parameters = pipe->local_parameters();
  for (size_t k = 0; k < average.size(); ++k) average[k].lerp_(parameters[k], 1 - decay);
}

// The pipeline gets the averages, and `average` the values that the pipeline had.
void exchange(std::vector<torch::Tensor>& average, gpipe::GPipe& pipe) {
  const torch::NoGradGuard no_grad;
  const std::vector<torch::Tensor> values = copies(pipe);
  std::vector<torch::Tensor> parameters = pipe->local_parameters();
  for (size_t k = 0; k < average.size(); ++k) {
    parameters[k].copy_(average[k]);  // counts as a change: the copies of a tied weight follow
    average[k].copy_(values[k]);
  }
}
// [/average]

struct Outcome {
  int64_t steps = 0;
  double best = 0;
  double averaged = 0;  // loss of the averages
  std::string hash;
};

void remove_checkpoint(const std::string& path) {
  for (const auto& file : std::filesystem::directory_iterator(path)) {
    std::filesystem::remove(file.path());
  }
  std::filesystem::remove(path);
}

// Saves the averages, and gives the run its parameters back. Returns the loss of the averages.
double save_average(std::vector<torch::Tensor>& average, gpipe::GPipe& pipe,
                    torch::optim::AdamW& optimizer, int64_t step, const std::string& average_path,
                    const Batches& validation) {
  const std::string last = pipe->parameter_hash();
  // Without gradients a copy of a tied weight is renewed only where a change has been counted.
  optimizer.zero_grad();
  (void)mean_loss(pipe, validation);
  // [average_saved]
  exchange(average, pipe);
  const double averaged = mean_loss(pipe, validation);
  gpipe::save_checkpoint(pipe, optimizer, {step, /*rows=*/8 * step}, average_path);
  exchange(average, pipe);
  // [/average_saved]
  guide::expect(pipe->parameter_hash() == last, "the second exchange undoes the first");
  return averaged;
}

// Loads both checkpoints, the run itself last.
void load_both(std::vector<torch::Tensor>& average, gpipe::GPipe& pipe,
               torch::optim::AdamW& optimizer, const std::string& path,
               const std::string& average_path) {
  const std::string hash = pipe->parameter_hash();
  const std::vector<torch::Tensor> before = std::move(average);
  // [average_loaded]
  gpipe::load_checkpoint(pipe, optimizer, average_path);
  average = copies(pipe);
  gpipe::load_checkpoint(pipe, optimizer, path);  // the run itself, second
  // [/average_loaded]
  for (size_t k = 0; k < average.size(); ++k) {
    guide::expect(average[k].equal(before[k]), "the averages come back");
  }
  guide::expect(pipe->parameter_hash() == hash, "so does the run");
}

// Learned words follow the rule.
void check_predictions(gpipe::GPipe& pipe) {
  const torch::Tensor all = torch::arange(120).reshape({20, 6}) % kWords;
  // [predict]
  const torch::NoGradGuard no_grad;
  pipe->eval();
  std::vector<torch::Tensor> parts;
  for (const torch::Tensor& words : all.split(8)) {
    const torch::Tensor output = pipe->forward(words);
    if (pipe->is_here(-1)) parts.push_back(output.argmax(-1).cpu());  // where the last layer is
  }
  const torch::Tensor predicted = parts.empty() ? torch::Tensor() : torch::cat(parts);
  // [/predict]
  pipe->train();
  guide::expect(pipe->is_here(-1) == predicted.defined(), "predictions are in the last process");
  guide::expect(
      !predicted.defined() || predicted.eq(next(all)).to(torch::kFloat).mean().item<float>() > 0.9,
      "it has learned the rule");
}

Outcome train(gpipe::GPipe& pipe, const std::string& path) {
  constexpr int64_t kSteps = 200;
  const Batches validation = validation_batches();

  // [groups]
  std::set<const void*> left;  // what this process trains; in one process all parameters
  for (const torch::Tensor& parameter : pipe->local_parameters()) {
    left.insert(parameter.unsafeGetTensorImpl());
  }
  std::vector<std::vector<torch::Tensor>> members(2);
  for (const auto& parameter : pipe->named_parameters()) {
    // A parameter of another process is not in `left`.
    if (left.erase(parameter.value().unsafeGetTensorImpl()) == 0) continue;
    members[parameter.key() == "0.weight" ? 0 : 1].push_back(parameter.value());
  }
  const std::vector<double> rates = {0.01, 0.02};  // of the embedding, and of all else
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (size_t k = 0; k < rates.size(); ++k) {
    groups.emplace_back(members[k], std::make_unique<torch::optim::AdamWOptions>(rates[k]));
  }
  torch::optim::AdamW optimizer(groups, torch::optim::AdamWOptions());
  // [/groups]
  guide::expect(left.empty(), "each parameter is in a group");

  std::vector<torch::Tensor> average = copies(pipe);
  Outcome outcome;
  // [loop]
  double best = std::numeric_limits<double>::infinity();
  int64_t waits = 0;  // evaluations since the best one
  int64_t step = 0;
  while (step < kSteps && waits < 3) {
    const double factor = rate_factor(++step, /*warm_up=*/10, kSteps);
    for (size_t k = 0; k < rates.size(); ++k) {
      optimizer.param_groups()[k].options().set_lr(rates[k] * factor);
    }
    const torch::Tensor words = batch(step);
    const torch::Tensor next_words = next(words);
    optimizer.zero_grad();
    pipe->step({words}, {next_words}, loss_fn);
    pipe->clip_grad_norm_(1.0);
    optimizer.step();
    add_to(average, pipe, /*decay=*/0.9);
    if (step % 10 != 0) continue;

    const double loss = mean_loss(pipe, validation);  // the same on all ranks
    if (loss < best) {
      best = loss;
      waits = 0;
      gpipe::save_checkpoint(pipe, optimizer, {step, /*rows=*/8 * step}, path);
    } else {
      ++waits;
    }
  }
  // [/loop]
  outcome.steps = step;
  outcome.best = best;

  const std::string average_path = path + "_average";
  outcome.averaged = save_average(average, pipe, optimizer, step, average_path, validation);
  gpipe::load_checkpoint(pipe, optimizer, path);
  guide::expect(mean_loss(pipe, validation) == best, "the best checkpoint has the best loss");
  load_both(average, pipe, optimizer, path, average_path);
  outcome.hash = pipe->parameter_hash();
  check_predictions(pipe);
  (void)gpipe::any_rank(pipe->world(), false);  // all have read the checkpoints
  if (pipe->world().rank() == 0) {
    remove_checkpoint(path);
    remove_checkpoint(average_path);
  }
  return outcome;
}

const guide::Chapter kRecipes("34", [] {
  const auto world = gpipe::World::from_environment();
  const std::string path = gpipe::from_rank_0(world, [] {
    const char* folder = std::getenv("TEST_TMPDIR");
    return std::string(folder != nullptr ? folder : "/tmp") + "/gpipe_guide_recipes_" +
           std::to_string(getpid());
  });
  const auto options = gpipe::GPipeOptions({2, 3}).chunks(4).cpu_threads_per_stage(1);
  gpipe::GPipe pipe(make_model(), gpipe::GPipeOptions(options).world(world));
  const Outcome outcome = train(pipe, path);
  gpipe::GPipe alone(make_model(), options);
  const Outcome expected = train(alone, path + "_alone_" + std::to_string(world.rank()));
  std::cout << outcome.steps << " steps, best " << outcome.best << ", averaged " << outcome.averaged
            << std::endl;
  guide::expect(outcome.steps < 200, "it stops early");
  guide::expect(outcome.steps == expected.steps && outcome.best == expected.best,
                "all ranks stop where one process does");
  guide::expect(outcome.averaged == expected.averaged, "averages are those of one process");
  guide::expect(outcome.hash == expected.hash, "the same bits");
});

const guide::Answer kFactors("34.1", [](std::ostream& out) {
  for (const int64_t step : {1, 10, 11, 105, 200}) {
    out << "step " << step << ": " << rate_factor(step, 10, 200) << "\n";
  }
});

const guide::Answer kMemory("34.2", [](std::ostream& out) {
  gpipe::GPipe pipe(nn::Sequential(nn::Linear(nn::LinearOptions(1, 1).bias(false))), {1});
  const torch::NoGradGuard no_grad;
  pipe->parameters()[0].zero_();
  std::vector<torch::Tensor> average = copies(pipe);
  pipe->parameters()[0].fill_(1);
  for (int64_t step = 1; step <= 30; ++step) {
    add_to(average, pipe, 0.9);
    if (step % 10 == 0) {
      out << "after " << step << " steps: " << average[0].item<float>() << "\n";
    }
  }
});

}  // namespace
