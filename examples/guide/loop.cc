// The program of chapters 13 to 16: devices, evaluation, learning rates, saved states.

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "examples/guide/guide.h"
#include "gpipe/clip_grad.h"
#include "gpipe/gpipe.h"
#include "gpipe/saving/saving.h"
#include "safetensors/safetensors.h"

namespace {

namespace nn = torch::nn;
namespace F = torch::nn::functional;

constexpr int64_t kWords = 20;

nn::Sequential make_model() {
  torch::manual_seed(0);
  return nn::Sequential(nn::Embedding(kWords, 16), nn::Linear(16, 16), nn::GELU(), nn::Dropout(0.1),
                        nn::Linear(16, kWords));
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

std::filesystem::path scratch_folder() {
  const char* folder = std::getenv("TEST_TMPDIR");
  return folder != nullptr ? std::filesystem::path(folder) : std::filesystem::temp_directory_path();
}

// A folder that is deleted at the end of the scope.
class Folder {
 public:
  explicit Folder(const std::string& name) : path_(scratch_folder() / ("gpipe_guide_" + name)) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() {
    // This does not use remove_all, because LibTorch 2.11 exports one of another libstdc++, which
    // crashes here.
    for (const char* name :
         {"last/model.safetensors", "last/optimizer.safetensors", "last/progress.safetensors",
          "last", "model.pt", "trained.safetensors"}) {
      std::filesystem::remove(path_ / name);
    }
    std::filesystem::remove(path_);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

// --- 13: devices

const guide::Chapter kDevices("13", [] {
  nn::Sequential model = make_model();
  // [devices]
  const bool gpus = torch::cuda::device_count() >= 3;
  std::vector<torch::Device> devices;
  for (int8_t k = 0; k < 3; ++k) {
    devices.push_back(gpus ? torch::Device(torch::kCUDA, k) : torch::Device(torch::kCPU));
  }
  gpipe::GPipe pipe(model, gpipe::GPipeOptions({1, 2, 2}).devices(devices).chunks(4));
  torch::optim::Adam optimizer(pipe->parameters(), 1e-3);  // after the pipeline has moved them
  // [/devices]
  const torch::Tensor words = batch(0);
  const torch::Tensor next_words = next(words);
  // [device_step]
  torch::Tensor inputs = words.to(devices.front(), /*non_blocking=*/true);
  torch::Tensor targets = next_words.to(devices.back(), /*non_blocking=*/true);
  optimizer.zero_grad();
  pipe->step({inputs}, {targets}, loss_fn);
  gpipe::clip_grad_norm_(pipe->parameters(), 1.0);
  optimizer.step();
  // [/device_step]
  guide::expect(pipe->devices().size() == 3, "each partition has a device");
});

const guide::Answer kWhere("13.1", [](std::ostream& out) {
  gpipe::GPipe pipe(make_model(), gpipe::GPipeOptions({1, 2, 2}).chunks(4));
  size_t layer = 0;
  for (size_t partition = 0; partition < pipe->balance().size(); ++partition) {
    for (int64_t k = 0; k < pipe->balance()[partition]; ++k) {
      out << "layer " << layer << ": " << pipe->devices()[partition] << "\n";
      ++layer;
    }
  }
});

const guide::Answer kElsewhere("13.2", [](std::ostream& out) {
  gpipe::GPipe pipe(make_model(), gpipe::GPipeOptions({1, 2, 2}).chunks(4));
  const torch::Tensor elsewhere =
      torch::empty({8, 6}, torch::dtype(torch::kLong).device(torch::kMeta));
  out << guide::message_of([&] { pipe->forward(elsewhere); }) << "\n";
  out << guide::message_of([&] { pipe->to(torch::Device(torch::kCPU)); }) << "\n";
});

// --- 14: evaluation

const guide::Chapter kEvaluation("14", [] {
  gpipe::GPipe pipe(make_model(), gpipe::GPipeOptions({2, 3}).chunks(4));
  const torch::Tensor words = batch(-1, 10);
  const torch::Tensor next_words = next(words);
  // [evaluate]
  pipe->eval();
  gpipe::StepResult result =
      pipe->evaluate({words}, {next_words}, loss_fn, gpipe::StepOptions().keep_outputs(true));
  torch::Tensor right = result.outputs.at(0).argmax(-1).eq(next_words);  // (N, T)
  std::cout << "loss " << result.loss << ", " << right.sum().item<int64_t>() << " of "
            << right.numel() << " right\n";
  pipe->train();
  // [/evaluate]
  nn::Sequential plain = make_model();
  plain->eval();
  const double expected = loss_fn({plain->forward(words)}, {next_words}).item<double>();
  guide::expect(std::fabs(result.loss - expected) < 1e-5, "the loss is the plain model's");
  {
    // [predict]
    torch::NoGradGuard no_grad;
    pipe->eval();
    torch::Tensor logits = pipe->forward(words);
    // [/predict]
    guide::expect(logits.equal(result.outputs.at(0)), "forward gives the same outputs");
  }
});

const guide::Answer kShort("14.1", [](std::ostream& out) {
  gpipe::GPipe pipe(make_model(), gpipe::GPipeOptions({2, 3}).chunks(4));
  pipe->eval();
  const torch::Tensor words = batch(-1, 10);
  const gpipe::StepResult result = pipe->evaluate({words}, {next(words)}, loss_fn);
  double sum = 0;
  for (const double loss : result.losses) sum += loss;
  nn::Sequential plain = make_model();
  plain->eval();
  out << std::setprecision(7) << "10 rows are " << result.losses.size()
      << " micro-batches; the mean of their losses is "
      << sum / static_cast<double>(result.losses.size()) << ", evaluate says " << result.loss
      << ", the plain model " << loss_fn({plain->forward(words)}, {next(words)}).item<double>()
      << "\n";
});

const guide::Answer kModes("14.2", [](std::ostream& out) {
  gpipe::GPipe pipe(make_model(), gpipe::GPipeOptions({2, 3}).chunks(4));
  const torch::Tensor words = batch(-1);
  for (const bool training : {true, false}) {
    pipe->train(training);
    out << (training ? "training mode:" : "evaluation mode:");
    for (int k = 0; k < 3; ++k) out << " " << pipe->evaluate({words}, {next(words)}, loss_fn).loss;
    out << "\n";
  }
});

// --- 15: learning rates and clipping

const guide::Chapter kLearningRates("15", [] {
  gpipe::GPipe pipe(make_model(), gpipe::GPipeOptions({2, 3}).chunks(4));
  {
    // [groups]
    std::vector<torch::Tensor> matrices;
    std::vector<torch::Tensor> others;
    for (const torch::Tensor& parameter : pipe->parameters()) {
      (parameter.dim() > 1 ? matrices : others).push_back(parameter);
    }
    auto no_decay = std::make_unique<torch::optim::AdamWOptions>(1e-3);
    no_decay->weight_decay(0);
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(matrices, std::make_unique<torch::optim::AdamWOptions>(1e-3));
    groups.emplace_back(others, std::move(no_decay));
    torch::optim::AdamW optimizer(groups, torch::optim::AdamWOptions(1e-3));
    // [/groups]
    guide::expect(optimizer.param_groups().size() == 2, "there are two groups");
  }
  torch::optim::AdamW optimizer(pipe->parameters(), torch::optim::AdamWOptions(1e-3));
  int64_t steps = 0;
  const int64_t warm_up = 5;
  double loss = 0;
  for (int64_t k = 0; k < 60; ++k) {
    const torch::Tensor words = batch(k);
    const torch::Tensor next_words = next(words);
    // [clip_and_rate]
    const double rate = 0.02 * std::min(1.0, static_cast<double>(++steps) / warm_up);
    for (auto& group : optimizer.param_groups()) group.options().set_lr(rate);
    optimizer.zero_grad();
    loss = pipe->step({words}, {next_words}, loss_fn).loss;
    gpipe::clip_grad_norm_(pipe->parameters(), /*max_norm=*/1.0);  // gpipe/clip_grad.h
    optimizer.step();
    // [/clip_and_rate]
  }
  guide::expect(loss < 1, "it has learned");
  // [scheduler]
  torch::optim::StepLR scheduler(optimizer, /*step_size=*/10, /*gamma=*/0.1);
  scheduler.step();  // once per epoch
  // [/scheduler]

  const torch::Tensor first = batch(1);
  const torch::Tensor second = batch(2, 4);
  gpipe::GPipe other(make_model(), gpipe::GPipeOptions({2, 3}).chunks(4).cpu_threads_per_stage(1));
  other->eval();  // no dropout
  nn::Sequential plain = make_model();
  plain->eval();
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  for (const torch::Tensor& words : {first, second}) {
    for (const torch::Tensor& part : words.chunk(4)) {
      const double weight = static_cast<double>(part.size(0)) / 12;
      const torch::Tensor part_loss = loss_fn({plain->forward(part)}, {next(part)});
      part_loss.backward(torch::tensor(static_cast<float>(weight)));
    }
  }
  at::set_num_threads(threads);
  // [accumulate]
  const auto rows = static_cast<double>(first.size(0) + second.size(0));  // of both mini-batches
  auto share = [rows](const gpipe::Tensors& outputs, const gpipe::Tensors& targets) {
    return loss_fn(outputs, targets) * (static_cast<double>(targets.at(0).size(0)) / rows);
  };
  auto sums = gpipe::StepOptions().reduction(gpipe::LossReduction::kSum);
  double mean = other->step({first}, {next(first)}, share, sums).loss;
  mean += other->step({second}, {next(second)}, share, sums).loss;  // without zero_grad() between
  // [/accumulate]
  const std::vector<torch::Tensor> expected = plain->parameters();
  for (size_t k = 0; k < expected.size(); ++k) {
    guide::expect(other->parameters()[k].grad().equal(expected[k].grad()),
                  "two steps add up, bit by bit, what the loop over all micro-batches does");
  }
  const torch::Tensor all = torch::cat({first, second});
  other->zero_grad();
  const double of_all = other->step({all}, {next(all)}, loss_fn).loss;
  guide::expect(std::fabs(mean - of_all) < 1e-5, "the losses add up to the mean over all rows");
  guide::expect(torch::allclose(other->parameters()[0].grad(), expected[0].grad(), 1e-4, 1e-6),
                "so do the gradients");
});

const guide::Answer kNorm("15.1", [](std::ostream& out) {
  gpipe::GPipe pipe(make_model(), gpipe::GPipeOptions({2, 3}).chunks(4));
  const torch::Tensor words = batch(0);
  pipe->step({words}, {next(words)},
             [](const gpipe::Tensors& outputs, const gpipe::Tensors& targets) {
               return 10 * loss_fn(outputs, targets);
             });
  const double before = gpipe::clip_grad_norm_(pipe->parameters(), 1.0);
  const double after = gpipe::clip_grad_norm_(pipe->parameters(), 1.0);
  out << "norm " << before << ", after clipping " << after << "\n";
});

const guide::Answer kRates("15.2", [](std::ostream& out) {
  const std::vector<torch::Tensor> parameters = {torch::ones({1}).requires_grad_()};
  torch::optim::SGD optimizer(parameters, 0.1);
  torch::optim::StepLR scheduler(optimizer, /*step_size=*/10, /*gamma=*/0.1);
  for (int epoch = 0; epoch < 25; ++epoch) {
    optimizer.step();
    scheduler.step();
  }
  out << optimizer.param_groups()[0].options().get_lr() << "\n";
});

const guide::Answer kHooks("15.3", [](std::ostream& out) {
  gpipe::GPipe pipe(make_model(), gpipe::GPipeOptions({2, 3}).chunks(4));
  int calls = 0;
  pipe->parameters()[0].register_hook([&calls](const torch::Tensor& /*gradient*/) { ++calls; });
  const torch::Tensor words = batch(0);
  pipe->step({words}, {next(words)}, loss_fn);
  out << "a hook on a parameter is called " << calls << " times in a step of 4 micro-batches\n";
});

// --- 16: saving and resuming

// Trains from after epoch `from` (0: from the start) to epoch 4, under any balance.
gpipe::GPipe train(int64_t from, const std::vector<int64_t>& balance, const Folder& folder) {
  gpipe::GPipe pipe(make_model(), gpipe::GPipeOptions(balance).chunks(4).cpu_threads_per_stage(1));
  torch::optim::AdamW optimizer(pipe->parameters(), torch::optim::AdamWOptions(0.02));
  if (from > 0) {
    // [load]
    const gpipe::Progress progress = gpipe::load_checkpoint(pipe, optimizer, folder.file("last"));
    // [/load]
    guide::expect(progress.step == 5 * from, "the checkpoint is of another step");
  }
  for (int64_t epoch = from + 1; epoch <= 4; ++epoch) {
    for (int64_t k = 0; k < 5; ++k) {
      // Words that do not draw from the generator whose state is saved.
      const torch::Tensor words = (torch::arange(48).reshape({8, 6}) * (7 * epoch + k)) % kWords;
      optimizer.zero_grad();
      pipe->step({words}, {next(words)}, loss_fn);
      optimizer.step();
    }
    if (epoch == 2 && from == 0) {
      // [save]
      gpipe::save_checkpoint(pipe, optimizer, {/*step=*/5 * epoch, /*rows=*/40 * epoch},
                             folder.file("last"));
      // [/save]
    }
  }
  return pipe;
}

const guide::Chapter kSaving("16", [] {
  const Folder folder("saving");
  gpipe::GPipe whole = train(0, {2, 3}, folder);
  gpipe::GPipe resumed = train(2, {1, 1, 3}, folder);  // on three partitions
  const auto weights = resumed->named_parameters();
  for (const auto& parameter : whole->named_parameters()) {
    guide::expect(parameter.value().equal(weights[parameter.key()]),
                  "a resumed run ends with the same weights: " + parameter.key());
  }
  nn::Sequential model = make_model();
  // [plain]
  torch::save(resumed, folder.file("model.pt"));
  torch::load(model, folder.file("model.pt"));  // into the plain Sequential
  // [/plain]
});

const guide::Chapter kFromPython("16.python", [] {
  const Folder folder("python");
  const std::string path = folder.file("trained.safetensors");
  std::vector<std::pair<std::string, torch::Tensor>> state;
  for (const auto& parameter : make_model()->named_parameters()) {
    state.emplace_back(parameter.key(), torch::full_like(parameter.value(), 0.25));
  }
  gpipe::safetensors::write(path, state);
  gpipe::GPipe pipe(make_model(), {2, 3});
  // [from_python]
  // #include "safetensors/safetensors.h"
  const gpipe::safetensors::File trained(path);
  torch::NoGradGuard no_grad;
  for (const auto& parameter : pipe->named_parameters()) {
    parameter.value().copy_(trained.read(parameter.key()));
  }
  for (const auto& buffer : pipe->named_buffers()) {
    buffer.value().copy_(trained.read(buffer.key()));
  }
  // [/from_python]
  for (const torch::Tensor& parameter : pipe->parameters()) {
    guide::expect(parameter.eq(0.25).all().item<bool>(), "the weights are those of the file");
  }
});

const guide::Answer kKeys("16.1", [](std::ostream& out) {
  const Folder folder("keys");
  gpipe::GPipe pipe(make_model(), {2, 3});
  torch::optim::SGD optimizer(pipe->parameters(), torch::optim::SGDOptions(0.1));
  gpipe::save_checkpoint(pipe, optimizer, {}, folder.file("last"));
  const gpipe::safetensors::File file(folder.file("last") + "/model.safetensors");
  for (const auto& [name, entry] : file.header().tensors) out << name << " ";
  out << "\n";
});

const guide::Answer kOtherShape("16.2", [](std::ostream& out) {
  const Folder folder("shape");
  gpipe::GPipe pipe(make_model(), {2, 3});
  torch::optim::SGD optimizer(pipe->parameters(), torch::optim::SGDOptions(0.1));
  gpipe::save_checkpoint(pipe, optimizer, {}, folder.file("last"));
  nn::Sequential wider(nn::Embedding(kWords, 24), nn::Linear(24, 16), nn::GELU(), nn::Dropout(0.1),
                       nn::Linear(16, kWords));
  gpipe::GPipe other(wider, {2, 3});
  torch::optim::SGD other_optimizer(other->parameters(), torch::optim::SGDOptions(0.1));
  const torch::Tensor before = other->parameters()[0].clone();
  out << guide::message_of([&] {
    gpipe::load_checkpoint(other, other_optimizer, folder.file("last"));
  }) << "\n"
      << "changed: " << (other->parameters()[0].equal(before) ? "nothing" : "something") << "\n";
});

}  // namespace
