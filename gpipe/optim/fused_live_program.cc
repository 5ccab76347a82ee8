// Trains with the fused optimizers what fused_live.py has written. Each file of FOLDER has
// parameters p0, p1, ..., gradients g<step>_<parameter>, and options as its metadata. The
// parameters after all steps go into OUT, under the same name.
//
//   fused_live_program FOLDER OUT
#include <torch/types.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/optim/fused.h"
#include "safetensors/safetensors.h"

namespace {

using Options = std::map<std::string, std::string>;

double number(const Options& options, const char* name) { return std::stod(options.at(name)); }

std::unique_ptr<torch::optim::Optimizer> make(const Options& options,
                                              std::vector<at::Tensor> parameters) {
  const std::string& name = options.at("optimizer");
  const double rate = number(options, "lr"), decay = number(options, "weight_decay");
  if (name == "AdamW") {
    return std::make_unique<gpipe::FusedAdamW>(
        std::move(parameters), torch::optim::AdamWOptions(rate).weight_decay(decay).amsgrad(
                                   number(options, "amsgrad") != 0));
  }
  if (name == "Adam") {
    return std::make_unique<gpipe::FusedAdam>(
        std::move(parameters), torch::optim::AdamOptions(rate).weight_decay(decay).amsgrad(
                                   number(options, "amsgrad") != 0));
  }
  if (name == "SGD") {
    return std::make_unique<gpipe::FusedSgd>(std::move(parameters),
                                             torch::optim::SGDOptions(rate)
                                                 .weight_decay(decay)
                                                 .momentum(number(options, "momentum"))
                                                 .dampening(number(options, "dampening"))
                                                 .nesterov(number(options, "nesterov") != 0));
  }
  return std::make_unique<gpipe::FusedAdagrad>(
      std::move(parameters),
      torch::optim::AdagradOptions(rate).weight_decay(decay).lr_decay(number(options, "lr_decay")));
}

}  // namespace

int main(int /*argc*/, char** argv) {
  for (const auto& entry : std::filesystem::directory_iterator(argv[1])) {
    const gpipe::safetensors::File file(entry.path().string());
    const auto& tensors = file.header().tensors;
    std::vector<at::Tensor> parameters;
    const auto name = [&] { return "p" + std::to_string(parameters.size()); };
    while (tensors.count(name()) > 0) {
      parameters.push_back(file.read(name()).requires_grad_());
    }
    const auto optimizer = make(file.header().metadata, parameters);
    // In some steps a parameter has no gradient. The last parameter has one in each step, so its
    // gradients tell how many steps there are.
    const std::string last = "_" + std::to_string(parameters.size() - 1);
    for (int64_t step = 0; tensors.count("g" + std::to_string(step) + last) > 0; ++step) {
      for (size_t k = 0; k < parameters.size(); ++k) {
        const std::string gradient = "g" + std::to_string(step) + "_" + std::to_string(k);
        parameters[k].mutable_grad() =
            tensors.count(gradient) > 0 ? file.read(gradient) : at::Tensor();
      }
      optimizer->step();
    }
    std::vector<std::pair<std::string, at::Tensor>> trained;
    for (size_t k = 0; k < parameters.size(); ++k) {
      trained.emplace_back("p" + std::to_string(k), parameters[k].detach());
    }
    gpipe::safetensors::write(argv[2] + ("/" + entry.path().filename().string()), trained);
  }
  return 0;
}
