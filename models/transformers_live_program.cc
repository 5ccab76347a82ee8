// The C++ side of transformers_live_test: a model as Python's transformers wrote it, or one with
// values of its own, is computed and written as Hugging Face's folder.
//
//   transformers_live_program MODEL INPUTS OUT [SEED]
//   transformers_live_program --batch FOLDER INPUTS
//   transformers_live_program --logits FOLDER INPUTS
//   transformers_live_program --configs FOLDER
//
// MODEL: a folder, whose weights are read. With SEED only its config.json is read, and the weights
// are drawn here. INPUTS: a file with `ids` and `targets`. OUT gets the model, what it computes as
// outputs.safetensors (logits and loss in float64 and float32), and its gradients in float64 as the
// model in OUT/gradients.
//
// With --batch each folder in FOLDER is a model, and gets outputs.safetensors (logits in float64,
// float32 and bfloat16), `gradients`, and the model as it is `written` with the folder that was
// read, and `complete` without (of a mixture of experts also its routers' logits, and its balance
// loss, which is in the gradients); or refused.txt, with the reason. With --logits it gets logits
// in float32 alone, with --configs only what refuses its config.json, or `complete`/config.json.
#include <ATen/Functions.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/utils.h>

#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "models/balance_loss.h"
#include "models/hugging_face.h"
#include "models/transformer.h"
#include "safetensors/safetensors.h"

namespace {

using gpipe::models::TransformerOptions;

// The bytes of a file at most: so few that the models of the test have several files.
constexpr int64_t kMaxFileBytes = 20'000;

// Saves the gradients under the names that the parameters have in Hugging Face's files.
void save_gradients(const std::string& folder, const TransformerOptions& options,
                    const torch::nn::Sequential& model) {
  torch::nn::Sequential copy = gpipe::models::transformer(options);
  copy->to(model->parameters().front().scalar_type());
  {
    const torch::NoGradGuard no_grad;
    const auto values = model->named_parameters();
    for (const auto& parameter : copy->named_parameters()) {
      parameter.value().copy_(values[parameter.key()].grad());
    }
  }
  gpipe::models::save_hugging_face(folder, options, *copy);
}

void run(const std::vector<std::string>& arguments) {
  const std::string& folder = arguments.at(1);
  const gpipe::safetensors::File inputs(arguments.at(2));
  const std::string& out = arguments.at(3);
  const TransformerOptions options = gpipe::models::read_config(folder);
  if (arguments.size() > 4) torch::manual_seed(std::stoull(arguments.at(4)));
  torch::nn::Sequential model = gpipe::models::transformer(options);
  if (arguments.size() <= 4) gpipe::models::load_hugging_face(folder, options, *model);
  gpipe::models::save_hugging_face(out, options, *model, kMaxFileBytes);

  model->eval();
  std::vector<std::pair<std::string, at::Tensor>> outputs;
  for (const auto& [type, prefix] : std::vector<std::pair<at::ScalarType, std::string>>{
           {at::kDouble, "float64."}, {at::kFloat, "float32."}}) {
    model->zero_grad();
    model->to(type);
    const at::Tensor logits = model->forward(inputs.read("ids"));
    const at::Tensor loss =
        at::cross_entropy_loss(logits.flatten(0, 1), inputs.read("targets").flatten());
    outputs.emplace_back(prefix + "logits", logits.detach());
    outputs.emplace_back(prefix + "loss", loss.detach());
    if (type != at::kDouble) continue;
    loss.backward();
    save_gradients(out + "/gradients", options, model);
  }
  gpipe::safetensors::write(out + "/outputs.safetensors", outputs);
}

using gpipe::models::SaveHuggingFaceOptions;

// Handles one folder of a batch: writes logits in several types, gradients, and the model as it is
// written back.
void exchange(const std::string& folder, const std::string& inputs_path) {
  const gpipe::safetensors::File inputs(inputs_path);
  const TransformerOptions options = gpipe::models::read_config(folder);
  const TransformerOptions with_logits =
      TransformerOptions(options).router_logits(options.block().experts().count() > 0);
  torch::nn::Sequential model = gpipe::models::transformer(with_logits);
  gpipe::models::load_hugging_face(folder, options, *model);
  gpipe::models::save_hugging_face(
      folder + "/written", options, *model,
      SaveHuggingFaceOptions().source(folder).max_file_bytes(kMaxFileBytes));
  gpipe::models::save_hugging_face(folder + "/complete", options, *model);
  model->eval();
  std::vector<std::pair<std::string, at::Tensor>> outputs;
  for (const auto& [type, prefix] : std::vector<std::pair<at::ScalarType, std::string>>{
           {at::kDouble, "float64."}, {at::kFloat, "float32."}, {at::kBFloat16, "bfloat16."}}) {
    model->zero_grad();
    model->to(type);
    const bool routed = with_logits.router_logits();
    std::vector<at::Tensor> results;
    if (routed) {
      results = model->forward<std::vector<at::Tensor>>(inputs.read("ids"));
      outputs.emplace_back(prefix + "router_logits", results[1].detach().contiguous());
    } else {
      results = {model->forward(inputs.read("ids"))};
    }
    outputs.emplace_back(prefix + "logits", results[0].detach().contiguous());
    if (type != at::kDouble) continue;
    at::Tensor loss =
        at::cross_entropy_loss(results[0].flatten(0, 1), inputs.read("targets").flatten());
    if (routed) {
      const auto experts = options.block().experts();
      const at::Tensor balance = gpipe::models::balance_loss(results[1], experts.per_token());
      outputs.emplace_back(prefix + "balance_loss", balance.detach());
      loss = loss + experts.balance_factor() * balance;
    }
    loss.backward();
    save_gradients(folder + "/gradients", options, model);
  }
  gpipe::safetensors::write(folder + "/outputs.safetensors", outputs);
}

void compute_logits(const std::string& folder, const std::string& inputs_path) {
  const gpipe::safetensors::File inputs(inputs_path);
  const TransformerOptions options = gpipe::models::read_config(folder);
  torch::nn::Sequential model = gpipe::models::transformer(options);
  gpipe::models::load_hugging_face(folder, options, *model);
  model->eval();
  const torch::NoGradGuard no_grad;
  const at::Tensor logits = model->forward(inputs.read("ids"));
  gpipe::safetensors::write(folder + "/outputs.safetensors", {{"logits", logits.contiguous()}});
}

// Reads config.json into options, and writes a config.json from the options alone.
void write_config(const std::string& folder) {
  const TransformerOptions options = gpipe::models::read_config(folder);
  std::filesystem::create_directory(folder + "/complete");
  std::ofstream(folder + "/complete/config.json")
      << gpipe::models::config_from_options(options, at::kFloat);
}

// Calls `each` for the folders in `folder`; if the call throws, the folder gets the reason in
// refused.txt.
void for_each_folder(const std::string& folder,
                     const std::function<void(const std::string&)>& each) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    try {
      each(entry.path().string());
    } catch (const std::exception& error) {
      std::ofstream(entry.path() / "refused.txt") << error.what();
    }
  }
}

void run_batch(const std::vector<std::string>& arguments) {
  const std::string &mode = arguments.at(1), &folder = arguments.at(2);
  for_each_folder(folder, [&](const std::string& path) {
    if (mode == "--configs") {
      write_config(path);
    } else if (mode == "--logits") {
      compute_logits(path, arguments.at(3));
    } else {
      exchange(path, arguments.at(3));
    }
  });
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> arguments(argv, argv + argc);
    arguments.at(1).rfind("--", 0) == 0 ? run_batch(arguments) : run(arguments);
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << std::endl;
    return 1;
  }
  return 0;
}
