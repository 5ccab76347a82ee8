// The program of chapter 39: adapters for a model of a folder, trained, saved, read again, merged.

#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <limits>
#include <string>
#include <utility>

#include "examples/guide/guide.h"
#include "gpipe/gpipe.h"
#include "gpipe/optim/fused.h"
#include "gpipe/saving/saving.h"
#include "models/hugging_face.h"
#include "models/lora.h"
#include "models/transformer.h"

namespace {

namespace F = torch::nn::functional;

// [loss]
// Targets that are -100 do not count: questions, and padding.
torch::Tensor answer_loss(const gpipe::Tensors& outputs, const gpipe::Tensors& targets) {
  return F::cross_entropy(outputs.at(0).flatten(0, 1).to(torch::kFloat), targets.at(0).flatten(),
                          F::CrossEntropyFuncOptions().ignore_index(-100));
}
double answer_tokens(const gpipe::Tensors& targets) {
  return targets.at(0).ne(-100).sum().item<double>();
}
// [/loss]

// Conversations of eight tokens: the answer to a word is the word behind it, three times.
std::pair<torch::Tensor, torch::Tensor> conversations(int64_t rows) {
  const torch::Tensor word = torch::randint(2, 30, {rows, 1});
  torch::Tensor ids = torch::cat({word.expand({rows, 5}), (word + 1).expand({rows, 3})}, 1);
  torch::Tensor targets = ids.slice(1, 1).clone();  // (rows, 7), the next tokens
  targets.slice(1, 0, 4).fill_(-100);               // the question
  return {ids.slice(1, 0, 7).contiguous(), targets};
}

// A small base with random parameters.
void make_base(const std::string& folder) {
  const auto options = gpipe::models::TransformerOptions(gpipe::models::TransformerKind::kLlama)
                           .vocab_size(32)
                           .max_positions(16)
                           .num_layers(2)
                           .hidden_size(32)
                           .num_heads(4)
                           .intermediate_size(48)
                           .initializer_range(0.2);
  gpipe::models::save_hugging_face(folder, options, *gpipe::models::transformer(options));
}

const guide::Chapter kFineTuning("38", [] {
  const char* const given = std::getenv("TEST_TMPDIR");
  const std::filesystem::path work =
      (given != nullptr ? std::filesystem::path(given) : std::filesystem::temp_directory_path()) /
      "gpipe_guide_fine_tuning";
  std::filesystem::create_directories(work);
  const std::string base = work / "base", run = work / "best", adapter = work / "adapter",
                    merged = work / "merged";
  torch::manual_seed(0);
  make_base(base);
  // [adapters]
  // #include "gpipe/optim/fused.h", "models/hugging_face.h", "models/lora.h",
  // "models/transformer.h"
  auto options = gpipe::models::read_config(base);
  torch::nn::Sequential model = gpipe::models::transformer(options);
  gpipe::models::load_hugging_face(base, options, *model);
  auto lora = gpipe::models::LoraOptions({"all-linear"}).rank(8).alpha(16).dropout(0.05);
  gpipe::models::add_lora(*model, options, lora);  // freezes the rest

  gpipe::GPipe pipe(model, gpipe::GPipeOptions({3, 4}).chunks(4));
  gpipe::FusedAdamW optimizer(pipe->local_parameters(), torch::optim::AdamWOptions(0.02));
  // [/adapters]
  const auto [held_ids, held_targets] = conversations(16);
  const double before = pipe->evaluate({held_ids}, {held_targets}, answer_loss).loss;
  // [train]
  // #include "gpipe/saving/saving.h"
  const auto options_of_step = gpipe::StepOptions().weight(answer_tokens);
  double best = std::numeric_limits<double>::infinity();
  for (int64_t step = 1; step <= 60; ++step) {
    auto [ids, targets] = conversations(16);  // (16, 7) both
    optimizer.zero_grad();
    pipe->step({ids}, {targets}, answer_loss, options_of_step);
    pipe->clip_grad_norm_(1.0);
    optimizer.step();
    if (step % 20 != 0) continue;
    pipe->eval();
    const double loss =
        pipe->evaluate({held_ids}, {held_targets}, answer_loss, options_of_step).loss;
    pipe->train();
    std::cout << "step " << step << ": validation " << loss << "\n";
    if (loss < best) gpipe::save_checkpoint(pipe, optimizer, {step, 16 * step}, run);
    best = std::min(best, loss);
  }
  // [/train]
  guide::expect(best < 0.75 * before, "the adapters learn: " + std::to_string(best));

  // [result]
  gpipe::load_weights(pipe, run);
  gpipe::models::save_lora(adapter, *model, lora, /*base=*/base);  // for Python's peft

  gpipe::models::merge_and_unload_lora(*model);  // or one folder, for transformers
  gpipe::models::save_hugging_face(merged, options, *model,
                                   gpipe::models::SaveHuggingFaceOptions().source(base));
  // [/result]
  {
    // [again]
    torch::nn::Sequential other = gpipe::models::transformer(options);
    gpipe::models::load_hugging_face(base, options, *other);
    gpipe::models::load_lora(adapter, *other, options);
    other->eval();
    gpipe::models::merge_lora(*other);    // computes as fast as the base
    gpipe::models::unmerge_lora(*other);  // the base's own bits
    // [/again]
    gpipe::models::merge_lora(*other);
    torch::nn::Sequential whole = gpipe::models::transformer(options);
    gpipe::models::load_hugging_face(merged, options, *whole);
    whole->eval();
    guide::expect(other->forward(held_ids).equal(whole->forward(held_ids)),
                  "the merged folder is the base with the adapter");
  }
});

}  // namespace
