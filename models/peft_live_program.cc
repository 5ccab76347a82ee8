// The C++ side of peft_live_test.
//
//   peft_live_program MODEL ADAPTER INPUTS OUT
//
// MODEL: a folder written by Python's transformers; ADAPTER: one written by peft. INPUTS: a file
// with `ids` and `targets`. OUT: gets outputs.safetensors (logits in float64), the adapter as
// written here, its gradients in float64 in the same form, and the model with the adapter merged
// into it.
#include <ATen/Functions.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/modules/container/sequential.h>

#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "models/hugging_face.h"
#include "models/lora.h"
#include "models/transformer.h"
#include "safetensors/safetensors.h"

namespace {

using namespace gpipe::models;  // NOLINT: a program of one page

torch::nn::Sequential loaded(const std::string& folder, const TransformerOptions& options) {
  torch::nn::Sequential model = transformer(options);
  if (const auto type = read_type(folder)) model->to(*type);
  load_hugging_face(folder, options, *model);
  return model;
}

void run(const std::vector<std::string>& arguments) {
  const std::string &folder = arguments.at(1), &adapter = arguments.at(2), &out = arguments.at(4);
  const gpipe::safetensors::File inputs(arguments.at(3));
  const TransformerOptions options = read_config(folder);
  torch::nn::Sequential model = loaded(folder, options);
  const LoraOptions lora = load_lora(adapter, *model, options);
  save_lora(out + "/adapter", *model, lora, folder);

  model->eval();
  model->to(at::kDouble);
  const at::Tensor logits = model->forward(inputs.read("ids"));
  at::cross_entropy_loss(logits.flatten(0, 1), inputs.read("targets").flatten()).backward();
  gpipe::safetensors::write(out + "/outputs.safetensors", {{"logits", logits.detach()}});
  {
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : model->parameters()) {
      if (parameter.requires_grad()) parameter.copy_(parameter.grad());
    }
  }
  save_lora(out + "/gradients", *model, lora, folder);

  torch::nn::Sequential merged = loaded(folder, options);
  load_lora(adapter, *merged, options);
  merge_lora(*merged);
  unmerge_lora(*merged);
  merge_and_unload_lora(*merged);
  save_hugging_face(out + "/merged", options, *merged, SaveHuggingFaceOptions().source(folder));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run({argv, argv + argc});
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << std::endl;
    return 1;
  }
  return 0;
}
