// The program of chapters 1 to 4: the bubble, a first pipeline, models as lists of layers, cuts.

#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "balance/balance.h"
#include "balance/check_rows.h"
#include "balance/explanation_text.h"
#include "examples/guide/guide.h"
#include "gpipe/extend.h"
#include "gpipe/gpipe.h"
#include "gpipe/schedule/drawing.h"
#include "gpipe/schedule/simulate.h"
#include "gpipe/several_arguments.h"
#include "meta/meta_scope.h"
#include "models/unet.h"
#include "tied/tied_layer.h"

namespace {

namespace nn = torch::nn;

// "{4, 2}"
std::string text(const std::vector<int64_t>& balance) {
  std::string list;
  for (const int64_t layers : balance) list += (list.empty() ? "{" : ", ") + std::to_string(layers);
  return list + "}";
}

// --- 1: what pipelining is

const guide::Chapter kBubble("1", [] {
  // [bubble]
  // #include "gpipe/schedule/drawing.h"
  const auto schedule = gpipe::Schedule::gpipe(/*stages=*/3, /*micro_batches=*/4);
  std::cout << gpipe::draw(schedule);
  std::cout << schedule.verify().bubble_ratio << "\n";  // (p - 1) / (m + p - 1)
  // [/bubble]
  guide::expect(std::fabs(schedule.verify().bubble_ratio - 2.0 / 6.0) < 1e-12,
                "the bubble is (p - 1) / (m + p - 1)");
});

const guide::Answer kBubbleTable("1.table", [](std::ostream& out) {
  for (const int64_t m : {1, 2, 4, 8, 16, 32}) {
    out << m << ": " << std::round(100 * gpipe::Schedule::gpipe(4, m).verify().bubble_ratio)
        << " %\n";
  }
});

const guide::Answer kFewestMicroBatches("1.1", [](std::ostream& out) {
  int64_t m = 1;
  while (gpipe::Schedule::gpipe(8, m).verify().bubble_ratio > 0.1) ++m;
  out << m << " micro-batches: idle " << 100 * gpipe::Schedule::gpipe(8, m).verify().bubble_ratio
      << " %; with " << m - 1 << ": "
      << 100 * gpipe::Schedule::gpipe(8, m - 1).verify().bubble_ratio << " %\n";
});

const guide::Answer kSlowBackwards("1.2", [](std::ostream& out) {
  const auto schedule = gpipe::Schedule::gpipe(4, 8);
  for (const double backward : {1.0, 2.0, 3.0}) {
    const gpipe::Simulation run =
        gpipe::simulate(schedule, {gpipe::uniform_cost({/*forward=*/1.0, backward}), {}});
    out << "a backward of " << backward << ": a step takes " << run.makespan << ", idle "
        << 100 * run.bubble_ratio() << " %\n";
  }
});

const guide::Answer kOneSlowStage("1.3", [](std::ostream& out) {
  for (const double slow : {1.0, 1.5, 2.0}) {
    const gpipe::ActionCost costs =
        gpipe::stage_costs({{1.0, 2.0}, {slow, 2 * slow}, {1.0, 2.0}, {1.0, 2.0}});
    const gpipe::Simulation run = gpipe::simulate(gpipe::Schedule::gpipe(4, 8), {costs, {}});
    out << "stage 1 takes " << slow << " times as long: a step takes " << run.makespan << ", idle "
        << 100 * run.bubble_ratio() << " %\n";
  }
});

// --- 2: the first pipeline

const guide::Chapter kFirst("2", [] {
  torch::manual_seed(0);
  // [first_pipeline]
  torch::nn::Sequential model(torch::nn::Linear(8, 32), torch::nn::ReLU(),
                              torch::nn::Linear(32, 2));
  gpipe::GPipe pipe(model, gpipe::GPipeOptions({1, 2}).chunks(4));  // 2 stages, 4 micro-batches
  torch::optim::SGD optimizer(pipe->parameters(), 0.5);
  // [/first_pipeline]
  const torch::Tensor input = torch::randn({64, 8});
  const torch::Tensor target = (input.sum(1) > 0).to(torch::kLong);
  double first = 0;
  double last = 0;
  for (int i = 0; i < 100; ++i) {
    // [first_step]
    optimizer.zero_grad();
    double loss = pipe->step({input}, {target}, torch::nn::CrossEntropyLoss()).loss;
    optimizer.step();
    // [/first_step]
    if (i == 0) first = loss;
    last = loss;
  }
  guide::expect(first > 0.4 && last < 0.1, "the first pipeline learns");

  pipe->zero_grad();
  pipe->step({input}, {target}, nn::CrossEntropyLoss());
  const torch::Tensor by_step = pipe->parameters()[0].grad().clone();
  pipe->zero_grad();
  // [like_a_module]
  torch::Tensor output = pipe->forward(input);
  torch::Tensor loss = torch::nn::functional::cross_entropy(output, target);
  loss.backward();
  // [/like_a_module]
  guide::expect(torch::allclose(pipe->parameters()[0].grad(), by_step),
                "both ways give the same gradients, up to rounding");

  pipe->zero_grad();
  pipe->forward(input).square().mean().backward();
  const torch::Tensor once = pipe->parameters()[0].grad().clone();
  pipe->zero_grad();
  // [backward_twice]
  torch::Tensor again = pipe->forward(input).square().mean();
  again.backward({}, /*retain_graph=*/true);  // keeps what all micro-batches hold
  again.backward();                           // frees it
  // [/backward_twice]
  guide::expect(torch::allclose(pipe->parameters()[0].grad(), 2 * once),
                "the second backward adds the same gradients");
  const torch::Tensor output_again = pipe->forward(input);
  output_again.sum().backward();
  const std::string message = guide::message_of([&] { (output_again * 2).sum().backward(); });
  guide::expect(message.find("retain_graph") != std::string::npos,
                "a second backward without retain_graph says what to do: " + message);
});

gpipe::GPipe small_pipeline(std::vector<int64_t> balance, int64_t chunks) {
  torch::manual_seed(0);
  nn::Sequential model(nn::Linear(8, 32), nn::ReLU(), nn::Linear(32, 2));
  return gpipe::GPipe(model, gpipe::GPipeOptions(std::move(balance)).chunks(chunks));
}

const guide::Answer kNames("2.1", [](std::ostream& out) {
  for (const std::vector<int64_t>& balance : {std::vector<int64_t>{1, 2}, {2, 1}}) {
    out << text(balance) << ":";
    for (const auto& parameter : small_pipeline(balance, 4)->named_parameters()) {
      out << " " << parameter.key();
    }
    out << "\n";
  }
});

const guide::Answer kRows("2.2", [](std::ostream& out) {
  for (const int64_t rows : {8, 5, 2}) {
    const gpipe::StepResult result = small_pipeline({1, 2}, 4)->step(
        {torch::randn({rows, 8})}, {torch::zeros({rows}, torch::kLong)}, nn::CrossEntropyLoss());
    out << rows << " rows in 4 chunks: " << result.losses.size() << " micro-batches\n";
  }
});

const guide::Answer kAccumulates("2.3", [](std::ostream& out) {
  gpipe::GPipe pipe = small_pipeline({1, 2}, 4);
  const torch::Tensor input = torch::randn({16, 8});
  const torch::Tensor target = torch::zeros({16}, torch::kLong);
  pipe->step({input}, {target}, nn::CrossEntropyLoss());
  const torch::Tensor once = pipe->parameters()[0].grad().clone();
  pipe->step({input}, {target}, nn::CrossEntropyLoss());
  const torch::Tensor twice = pipe->parameters()[0].grad();
  out << "the gradient's norm: " << once.norm().item<double>() << ", then "
      << twice.norm().item<double>() << "\n";
});

// --- 3: making a model sequential

// [batch_first]
struct EncoderImpl : torch::nn::Module {
  EncoderImpl() { block = register_module("block", torch::nn::TransformerEncoderLayer(16, 2)); }
  // (N, T, 16) -> (N, T, 16). LibTorch's layer takes (T, N, 16).
  torch::Tensor forward(torch::Tensor x) {
    return block->forward(x.transpose(0, 1)).transpose(0, 1);
  }
  torch::nn::TransformerEncoderLayer block = nullptr;
};
TORCH_MODULE(Encoder);
// [/batch_first]

// [lstm]
struct RecurrentImpl : torch::nn::Module {
  RecurrentImpl() {
    lstm =
        register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(16, 16).batch_first(true)));
  }
  // (N, T, 16) -> (N, T, 16): the outputs without the last state.
  torch::Tensor forward(torch::Tensor x) { return std::get<0>(lstm->forward(x)); }
  torch::nn::LSTM lstm = nullptr;
};
TORCH_MODULE(Recurrent);
// [/lstm]

// [several_values]
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width) {
    linear = register_module("linear", torch::nn::Linear(width, width));
  }
  // x: (N, width); mask: (N, width), zeros and ones.
  torch::Tensor forward(torch::Tensor x, torch::Tensor mask) {
    return torch::relu(linear(x)) * mask;
  }
  torch::nn::Linear linear = nullptr;
};
// [/several_values]

// [tied]
struct TiedHeadImpl : torch::nn::Module {
  explicit TiedHeadImpl(torch::Tensor weight) : weight(std::move(weight)) {}
  torch::Tensor forward(torch::Tensor x) { return torch::nn::functional::linear(x, weight); }
  torch::Tensor weight;  // not registered: the embedding has it
};
TORCH_MODULE(TiedHead);
// [/tied]

// [tied_devices]
struct MovableHeadImpl : TiedHeadImpl, gpipe::TiedLayer {  // tied/tied_layer.h
  using TiedHeadImpl::TiedHeadImpl;
  std::vector<torch::Tensor> tied_parameters() const override { return {weight}; }
  void use_tied_parameters(const std::vector<torch::Tensor>& those) override { weight = those[0]; }
};
TORCH_MODULE(MovableHead);
// [/tied_devices]

nn::Sequential nested() {
  // [nested]
  torch::nn::Sequential model;
  for (int64_t k = 0; k < 3; ++k) {
    torch::nn::Sequential block(torch::nn::Linear(16, 16), torch::nn::ReLU());
    gpipe::extend(model, "block" + std::to_string(k), block);  // its layers, one after another
  }
  model->push_back("flatten", torch::nn::Functional([](torch::Tensor x) { return x.flatten(1); }));
  // [/nested]
  return model;
}

nn::Sequential language_model(bool tied) {
  torch::manual_seed(0);
  nn::Embedding words(20, 16);
  nn::Sequential model(words, nn::Linear(16, 16), nn::GELU());
  if (tied) {
    model->push_back(TiedHead(words->weight));
  } else {
    model->push_back(nn::Linear(nn::LinearOptions(16, 20).bias(false)));
  }
  return model;
}

torch::Tensor mean(const gpipe::Tensors& outputs, const gpipe::Tensors& /*targets*/) {
  return outputs.at(0).mean();
}

const guide::Chapter kSequential("3", [] {
  torch::manual_seed(0);
  const torch::Tensor input = torch::randn({4, 6, 16});
  gpipe::GPipe pipe(nn::Sequential(Encoder(), Recurrent(), nn::Linear(16, 1)),
                    gpipe::GPipeOptions({1, 1, 1}).chunks(2));
  pipe->eval();  // the encoder drops out otherwise
  torch::NoGradGuard no_grad;
  const torch::Tensor piped = pipe->forward(input);
  guide::expect(torch::allclose(piped, pipe->sequential()->forward(input), 1e-4, 1e-6),
                "rows do not depend on their batch");

  guide::expect(nested()->size() == 7, "nested() has seven layers");
  guide::expect(
      gpipe::GPipe(nested(), {4, 3})->forward(input).sizes() == torch::IntArrayRef({4, 6 * 16}),
      "a function may be a layer");

  torch::AutoGradMode grad(true);
  const torch::Tensor x = torch::randn({8, 64});
  const torch::Tensor mask = torch::randint(2, {8, 64}).to(torch::kFloat);
  const torch::Tensor target = torch::zeros({8, 64});
  const auto loss_fn = nn::MSELoss();
  // [several_values_pipeline]
  torch::nn::Sequential model(gpipe::SeveralArguments<BlockImpl>(64),
                              gpipe::SeveralArguments<BlockImpl>(64), gpipe::First());
  gpipe::GPipe masked(model, gpipe::GPipeOptions({1, 2}).chunks(4));
  masked->step({x, mask}, {target}, loss_fn);
  // [/several_values_pipeline]
  guide::expect(masked->parameters()[0].grad().defined(), "a mask travels with x");
  // [check_rows]
  // #include "balance/check_rows.h"
  for (const auto& problem : gpipe::balance::check_rows(model, {x, mask})) {
    std::cerr << problem.text << "\n";
  }
  // [/check_rows]
  guide::expect(gpipe::balance::check_rows(model, {x, mask}).empty(), "rows are not mixed");

  gpipe::GPipe tied(language_model(true), gpipe::GPipeOptions({2, 2}).chunks(2));
  tied->step({torch::randint(20, {8, 5})}, {}, mean);
  guide::expect(tied->parameters().size() == 3, "a tied weight is listed once");

  const nn::Embedding words(20, 16);
  const MovableHead head(words->weight);
  gpipe::GPipe movable(nn::Sequential(words, head), gpipe::GPipeOptions({1, 1}).chunks(2));
  movable->step({torch::randint(20, {8, 5})}, {}, mean);
  guide::expect(head->weight.is_same(words->weight) && words->weight.grad().defined(),
                "a head that can take a copy has the embedding's weight between calls");
});

const guide::Answer kLstmAlone("3.1", [](std::ostream& out) {
  gpipe::GPipe pipe(nn::Sequential(nn::LSTM(16, 16)), {1});
  out << guide::message_of([&] { pipe->forward(torch::randn({4, 6, 16})); }) << "\n";
});

const guide::Answer kTimeFirst("3.2", [](std::ostream& out) {
  torch::manual_seed(0);
  nn::TransformerEncoderLayer layer(16, 2);
  layer->eval();
  torch::NoGradGuard no_grad;
  const torch::Tensor rows = torch::randn({4, 6, 16});  // meant as (N, T, C)
  const torch::Tensor whole = layer->forward(rows);
  const torch::Tensor first = layer->forward(rows.narrow(0, 0, 2));
  out << "row 0 alone and beside others differs by "
      << (whole[0] - first[0]).abs().max().item<double>() << " with LibTorch's layer";
  Encoder encoder;
  encoder->block = layer;
  out << ", by " << (encoder(rows)[0] - encoder(rows.narrow(0, 0, 2))[0]).abs().max().item<double>()
      << " with Encoder\n";
});

const guide::Answer kTied("3.3", [](std::ostream& out) {
  for (const bool tied : {false, true}) {
    gpipe::GPipe pipe(language_model(tied), gpipe::GPipeOptions({2, 2}).chunks(2));
    int64_t numbers = 0;
    for (const torch::Tensor& parameter : pipe->parameters()) numbers += parameter.numel();
    pipe->step({torch::arange(20).reshape({4, 5})}, {}, mean);
    out << (tied ? "tied: " : "untied: ") << numbers << " parameters; the embedding's gradient has "
        << "the norm " << pipe->parameters()[0].grad().norm().item<double>() << "\n";
  }
});

// --- 4: cutting it

const guide::Chapter kCuts("4", [] {
  // [partition]
  // #include "balance/balance.h"
  std::vector<double> costs = {1, 2, 3, 4, 5, 6};  // of each layer, in any unit
  std::vector<int64_t> balance = gpipe::balance::partition(costs, /*partitions=*/2);  // {4, 2}
  // [/partition]
  guide::expect(balance == std::vector<int64_t>{4, 2}, "the costs are cut into {4, 2}");

  const nn::Sequential model =
      gpipe::models::unet(gpipe::models::UNetOptions().depth(2).num_convs(1).base_channels(4));
  {
    // [by_time]
    torch::Tensor micro_batch = torch::rand({4, 3, 32, 32});  // not the mini-batch
    auto balance = gpipe::balance::balance_by_time(2, model, micro_batch);
    gpipe::GPipe pipe(model, gpipe::GPipeOptions(balance).chunks(8));
    // [/by_time]
    guide::expect(pipe->balance().size() == 2, "there are two partitions");
    guide::expect(pipe->forward(torch::rand({8, 3, 32, 32})).size(0) == 8, "it runs");
  }
  const torch::Tensor micro_batch = torch::rand({4, 3, 32, 32});
  // [explain]
  // #include "balance/explanation_text.h"
  auto profile = gpipe::balance::profile(model, micro_batch);
  gpipe::balance::ExplainOptions explain;
  explain.chunks = 8;
  auto best = gpipe::balance::best_balance(profile, 2, explain);
  std::cout << to_text(gpipe::balance::explain(profile, best, explain));
  // [/explain]
  guide::expect(best.size() == 2, "the best cut has two partitions");
});

const guide::Answer kSlowDevice("4.1", [](std::ostream& out) {
  const std::vector<double> costs(12, 1.0);
  out << "alike: " << text(gpipe::balance::partition(costs, 3));
  gpipe::balance::PartitionOptions options;
  options.slowness = {1, 1, 2};
  out << "; the third half as fast: " << text(gpipe::balance::partition(costs, 3, options)) << "\n";
});

const guide::Answer kBySize("4.2", [](std::ostream& out) {
  const nn::Sequential model = [] {
    gpipe::MetaScope meta;
    return gpipe::models::unet();
  }();
  const torch::Tensor micro_batch = torch::empty({4, 3, 192, 192}, torch::kMeta);
  for (const double scale : {gpipe::balance::ParamScale::kSgd, gpipe::balance::ParamScale::kAdam}) {
    const auto options = gpipe::balance::SizeOptions().param_scale(scale);
    const auto balance = gpipe::balance::balance_by_size(4, model, micro_batch, options);
    out << scale << " bytes for each byte of parameters: " << text(balance) << "\n";
  }
});

const guide::Answer kTogether("4.3", [](std::ostream& out) {
  const std::vector<double> costs = {1, 1, 4, 4, 1, 1};
  gpipe::balance::PartitionOptions options;
  options.keep_together = {{2, 3}};
  out << text(gpipe::balance::partition(costs, 2)) << ", and with layers 2 and 3 together "
      << text(gpipe::balance::partition(costs, 2, options)) << "\n";
});

}  // namespace
