// The C++ side of checkpoint_live_test: trains a small network for some steps, saves a checkpoint,
// and says what is in it, in words that need no reader of safetensors.
//
//   checkpoint_live_program FOLDER EXPECTED
//
// Under a launcher all processes do so together. EXPECTED.RANK gets a line for each parameter and
// buffer that is here, and for Adam's averages of each parameter: its name, its type, its sizes and
// its bytes as hexadecimal digits.
#include <ATen/Functions.h>
#include <c10/core/ScalarType.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/adam.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdint>
#include <exception>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/saving/saving.h"

namespace {

namespace nn = torch::nn;

constexpr int64_t kSteps = 3, kRows = 8;

// A layer with tensors of a type that NumPy does not have.
struct HalfImpl : nn::Module {
  HalfImpl() {
    linear = register_module("linear", nn::Linear(8, 8));
    linear->to(torch::kBFloat16);
  }
  torch::Tensor forward(torch::Tensor x) {
    return linear(x.to(torch::kBFloat16)).to(torch::kFloat);
  }
  nn::Linear linear{nullptr};
};
TORCH_MODULE(Half);

void write_line(std::ostream& out, const std::string& name, const at::Tensor& value) {
  const at::Tensor bytes = value.detach().contiguous();
  out << name << " " << c10::toString(bytes.scalar_type()) << " ";
  for (int64_t k = 0; k < bytes.dim(); ++k) out << (k > 0 ? "," : "") << bytes.size(k);
  out << " ";
  const auto* begin = static_cast<const unsigned char*>(bytes.const_data_ptr());
  constexpr char kDigits[] = "0123456789abcdef";
  for (size_t k = 0; k < bytes.nbytes(); ++k) {
    out << kDigits[begin[k] / 16] << kDigits[begin[k] % 16];
  }
  out << "\n";
}

void run(const std::string& folder, const std::string& expected) {
  const gpipe::World world = gpipe::World::from_environment();
  torch::manual_seed(1);
  nn::Sequential model(nn::Linear(6, 8), nn::BatchNorm1d(8), nn::Dropout(0.2), Half(),
                       nn::Linear(8, 3));
  const bool alone = world.size() == 1;
  gpipe::GPipe pipe(
      model, gpipe::GPipeOptions(alone ? std::vector<int64_t>{5} : std::vector<int64_t>{3, 2})
                 .chunks(2)
                 .cpu_threads_per_stage(1)
                 .world(world));
  torch::optim::Adam optimizer(pipe->local_parameters(), 0.01);
  const at::Tensor x = torch::randn({kRows, 6}), target = torch::randn({kRows, 3});
  for (int64_t step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    pipe->step({x}, {target}, [](torch::Tensor output, torch::Tensor wanted) {
      return nn::functional::mse_loss(output, wanted);
    });
    optimizer.step();
  }
  gpipe::save_checkpoint(pipe, optimizer, {kSteps, kSteps * kRows}, folder);

  std::ofstream out(expected + "." + std::to_string(world.rank()));
  for (const auto& parameter : pipe->named_parameters()) {
    const at::Tensor& value = parameter.value();
    if (value.is_meta()) continue;
    write_line(out, parameter.key(), value);
    const auto& state = static_cast<const torch::optim::AdamParamState&>(
        *optimizer.state().at(value.unsafeGetTensorImpl()));
    write_line(out, parameter.key() + "/exp_avg", state.exp_avg());
    write_line(out, parameter.key() + "/exp_avg_sq", state.exp_avg_sq());
  }
  for (const auto& buffer : pipe->named_buffers()) {
    if (!buffer.value().is_meta()) write_line(out, buffer.key(), buffer.value());
  }
  if (!out.flush()) throw std::runtime_error(expected + " cannot be written");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 3) throw std::runtime_error("checkpoint_live_program FOLDER EXPECTED");
    run(argv[1], argv[2]);
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << std::endl;
    return 1;
  }
  return 0;
}
