#include "experiments/libtorch_versions/steps.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "gpipe/testing/plain_model.h"
#include "gpipe/testing/programs/program.h"
#include "gpipe/testing/programs/side.h"
#include "models/by_name.h"
#include "models/transformer.h"
#include "models/transformer_options.h"

namespace gpipe::experiments {
namespace {

using models::NamedModel;

constexpr int64_t kRows = 2;
constexpr double kDropout = 0.1;

void train(const NamedModel& named, c10::ScalarType type) {
  at::manual_seed(0);
  torch::nn::Sequential model = named.make();
  model->to(type);
  const auto cast = [&](const at::Tensor& tensor) {
    return tensor.is_floating_point() ? tensor.to(type) : tensor;
  };
  const at::Tensor input = cast(models::random_input(named, kRows, c10::kCPU));
  const at::Tensor target = cast(models::random_target(named, kRows, c10::kCPU));
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.01));
  models::loss_of(named.loss, model->forward(input), target).backward();
  optimizer.step();
  model->eval();
  const c10::NoGradGuard no_grad;
  model->forward(input);
}

// The language model with attention that is written out and with dropout. `model` has LibTorch's
// attention and no dropout.
NamedModel written_out(NamedModel model, const models::TransformerOptions& options) {
  model.name += ",written-out";
  model.make = [options] { return models::transformer(options); };
  return model;
}

namespace programs = testing::programs;

// The plain model after all calls of the program. Throws what LibTorch throws, because some
// programs are not a valid model.
programs::Side plain_run(const programs::Program& program) {
  programs::Side side = programs::make_side(program);
  programs::make_optimizer(program, side.model->parameters(), side);
  testing::PlainModel plain(side.model, program.chunks);
  for (int64_t call = 0; call < program.calls; ++call) {
    const programs::Batch batch = programs::make_batch(program, call, c10::kCPU, c10::kCPU);
    at::manual_seed(programs::call_seed(program, call));
    programs::run_plain(program, plain, batch, programs::make_loss(program));
    programs::end_call(program, call, side);
  }
  return side;
}

void run_generated(uint64_t seed, c10::ScalarType type) {
  programs::Program program = programs::random_program(seed, {});
  program.in_double = type == at::kDouble;
  program.autocast = type == at::kBFloat16;
  if (program.autocast) program.entry = programs::Entry::kForward;
  try {
    plain_run(program);
  } catch (const std::exception&) {  // not a valid model
  }
}

// Continues the FNV-1a hash `hash` with the bits of a tensor.
uint64_t hashed(uint64_t hash, const at::Tensor& tensor) {
  if (!tensor.defined()) return hash * 31;
  const at::Tensor dense =
      (tensor.layout() == c10::kStrided ? tensor : tensor.to_dense()).detach().contiguous();
  const auto* const bytes = static_cast<const unsigned char*>(dense.const_data_ptr());
  for (size_t k = 0; k < dense.nbytes(); ++k) hash = (hash ^ bytes[k]) * 1099511628211U;
  return hash;
}

}  // namespace

std::vector<Step> zoo_steps() {
  using models::model_by_name;
  constexpr int64_t kSide = 64;         // the side of images, in pixels
  constexpr int64_t kAmoebaSide = 224;  // AmoebaNet-D takes no smaller ones
  const NamedModel gpt2 = model_by_name("gpt2:2,64,4,64,211");
  const NamedModel llama = model_by_name("llama:2,64,4,2,64,211");
  const auto small = [](models::TransformerKind kind) {
    return models::TransformerOptions(kind)
        .vocab_size(211)
        .max_positions(64)
        .num_layers(2)
        .hidden_size(64)
        .num_heads(4)
        .embedding_dropout(kDropout)
        .residual_dropout(kDropout)
        .attention_dropout(kDropout);
  };
  std::vector<Step> steps;
  for (const NamedModel& model :
       {model_by_name("resnet:1,1", kSide), model_by_name("unet:1,8", kSide),
        model_by_name("amoebanetd:3,16", kAmoebaSide), model_by_name("old_resnet:1,1", kSide),
        model_by_name("old_amoebanetd:1,16", kAmoebaSide), gpt2, llama,
        written_out(gpt2, small(models::TransformerKind::kGPT2)),
        written_out(
            llama,
            small(models::TransformerKind::kLlama).num_kv_heads(2).intermediate_size(256))}) {
    steps.push_back({model.name, [model](c10::ScalarType type) { train(model, type); }});
  }
  return steps;
}

Step generated_steps(uint64_t first, int64_t count) {
  return {absl::StrCat("programs from ", first), [first, count](c10::ScalarType type) {
            for (uint64_t seed = first; seed < first + static_cast<uint64_t>(count); ++seed) {
              run_generated(seed, type);
            }
          }};
}

std::string generated_hash(uint64_t seed) {
  const programs::Program program = programs::random_program(seed, {});
  const std::string text = absl::StrReplaceAll(programs::to_text(program), {{"\n", " "}});
  try {
    const programs::Side side = plain_run(program);
    uint64_t hash = 14695981039346656037U;
    for (const at::Tensor& parameter : side.model->parameters()) {
      hash = hashed(hashed(hash, parameter), parameter.grad());
    }
    for (const at::Tensor& buffer : side.model->buffers()) hash = hashed(hash, buffer);
    return absl::StrFormat("%016x %s", hash, text);
  } catch (const std::exception& error) {
    const absl::string_view what = error.what();
    return absl::StrCat("invalid: ", what.substr(0, std::min<size_t>(100, what.find('\n'))), " ",
                        text);
  }
}

}  // namespace gpipe::experiments
