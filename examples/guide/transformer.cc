// The program of chapter 25: a language model from its text to its saved weights.

#include "models/transformer.h"

#include <torch/torch.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "balance/memory_plan.h"
#include "examples/guide/guide.h"
#include "gpipe/clip_grad.h"
#include "gpipe/gpipe.h"
#include "meta/meta_scope.h"
#include "models/balance_loss.h"
#include "models/head_loss.h"
#include "models/hugging_face.h"
#include "models/kv_cache.h"

namespace {

namespace F = torch::nn::functional;

// Ids of the letters of a text that repeats itself.
torch::Tensor letters(int64_t count) {
  const std::string text = "she sells sea shells on the sea shore. ";
  std::map<char, int64_t> ids;
  for (const char letter : text) ids.emplace(letter, static_cast<int64_t>(ids.size()));
  torch::Tensor all = torch::empty({count}, torch::kLong);
  for (int64_t k = 0; k < count; ++k) all[k] = ids[text[k % text.size()]];
  return all;
}

// [options]
// #include "models/transformer.h"
gpipe::models::TransformerOptions small_gpt2() {
  return gpipe::models::TransformerOptions(gpipe::models::TransformerKind::kGPT2)
      .vocab_size(32)
      .max_positions(16)
      .num_layers(2)
      .hidden_size(32)
      .num_heads(4);
}
// [/options]

// [next_token_loss]
// (N, T, vocab_size) and (N, T)
torch::Tensor next_token_loss(const gpipe::Tensors& outputs, const gpipe::Tensors& targets) {
  return F::cross_entropy(outputs.at(0).flatten(0, 1), targets.at(0).flatten());
}
// [/next_token_loss]

// Pieces of 16 letters, beginning anywhere, and the letters behind them.
std::pair<torch::Tensor, torch::Tensor> pieces(const torch::Tensor& text, int64_t rows) {
  const torch::Tensor begin = torch::randint(text.size(0) - 16, {rows, 1});
  const torch::Tensor places = begin + torch::arange(16);  // (rows, 16)
  return {text.index({places}), text.index({places + 1})};
}

std::string scratch_folder(const std::string& name) {
  const char* folder = std::getenv("TEST_TMPDIR");
  const std::filesystem::path parent =
      folder != nullptr ? std::filesystem::path(folder) : std::filesystem::temp_directory_path();
  return (parent / ("gpipe_guide_" + name)).string();
}

// A Hugging Face folder is written and read.
void save_and_load(gpipe::GPipe& pipe, const gpipe::models::TransformerOptions& options,
                   const torch::Tensor& ids) {
  const std::string folder = scratch_folder("hugging_face");
  // [hugging_face]
  // #include "models/hugging_face.h"
  gpipe::models::save_hugging_face(folder, options, *pipe);
  auto read = gpipe::models::read_config(folder);
  gpipe::GPipe other(gpipe::models::transformer(read), gpipe::GPipeOptions({5, 2}).chunks(4));
  gpipe::models::load_hugging_face(folder, read, *other);
  // [/hugging_face]
  for (const auto& file : std::vector<std::string>{"config.json", "model.safetensors"}) {
    std::filesystem::remove(std::filesystem::path(folder) / file);
  }
  std::filesystem::remove(folder);
  other->eval();
  guide::expect(other->forward(ids).equal(pipe->forward(ids)), "weights come back as they were");
}

// Experts and the loss that balances them.
void train_experts(const torch::Tensor& words, const torch::Tensor& next_words) {
  // [experts]
  // #include "models/balance_loss.h"
  gpipe::models::TransformerOptions options(gpipe::models::TransformerKind::kLlama);
  options.vocab_size(32).num_layers(2).hidden_size(32).num_heads(4).intermediate_size(48);
  options.router_logits(true).block().experts(gpipe::models::ExpertOptions().count(4));
  gpipe::GPipe pipe(gpipe::models::transformer(options), gpipe::GPipeOptions({3, 4}).chunks(4));
  const auto loss_fn = [experts = options.block().experts()](const gpipe::Tensors& outputs,
                                                             const gpipe::Tensors& targets) {
    return next_token_loss(outputs, targets) +
           experts.balance_factor() * gpipe::models::balance_loss(outputs[1], experts.per_token());
  };
  pipe->step({words}, {next_words}, loss_fn);
  // [/experts]
  guide::expect(pipe->named_parameters()["block0_mlp.router.weight"].grad().defined(),
                "routers learn, too");
}

// Sampling with kept keys and values writes `ids` again.
void sample_with_cache(gpipe::GPipe& pipe, const torch::Tensor& text, const torch::Tensor& ids) {
  // [cache]
  // #include "models/kv_cache.h"
  gpipe::GPipe writer(gpipe::models::transformer(small_gpt2().packed(true)),
                      gpipe::GPipeOptions({3, 4}).chunks(2));
  torch::NoGradGuard no_grad;
  auto trained = pipe->named_parameters();
  for (auto& own : writer->named_parameters()) own.value().copy_(trained[own.key()]);
  writer->eval();
  gpipe::models::KvCache cache(*writer, /*rows=*/2, /*length=*/16);
  torch::Tensor texts = torch::stack({text.narrow(0, 0, 8), text.narrow(0, 8, 8)});  // (2, 8)
  torch::Tensor next = texts;
  while (texts.size(1) < 16) {
    torch::Tensor logits = writer->forward(cache.inputs(next))[0];  // of those tokens alone
    next = logits.select(1, -1).argmax(-1, /*keepdim=*/true);       // (2, 1)
    texts = torch::cat({texts, next}, 1);
  }
  // [/cache]
  guide::expect(texts[0].equal(ids[0]), "it writes what it writes without a cache");
  guide::expect(
      cache.bytes() == gpipe::models::kv_cache_bytes(small_gpt2(), /*rows=*/2, /*length=*/16),
      "the cache is as large as is said");
  const torch::Tensor last = next;
  // [draw]
  // A micro-batch is a row, and its loss is the token: all processes get it.
  const auto draw = [](const gpipe::Tensors& outputs, const gpipe::Tensors& /*targets*/) {
    return outputs.at(0).select(1, -1).argmax(-1).squeeze().to(torch::kDouble);
  };
  std::vector<double> tokens = writer->evaluate(cache.inputs(next), {}, draw).losses;
  next = torch::tensor(tokens).to(torch::kLong).unsqueeze(1);  // (2, 1)
  // [/draw]
  for (const int64_t row : {0, 1}) cache.truncate(row, 15);
  const torch::Tensor logits = writer->forward(cache.inputs(last))[0];
  guide::expect(next.equal(logits.select(1, -1).argmax(-1, /*keepdim=*/true)),
                "the token is that of the logits");
}

const guide::Chapter kTransformer("25", [] {
  torch::manual_seed(0);
  const torch::Tensor text = letters(400);
  // [train]
  auto options = small_gpt2();
  // 2 * 2 + 3 layers: embedding, attention, mlp, attention, mlp, norm, head
  gpipe::GPipe pipe(gpipe::models::transformer(options), gpipe::GPipeOptions({3, 4}).chunks(4));
  torch::optim::AdamW optimizer(pipe->parameters(), torch::optim::AdamWOptions(0.01));
  double loss = 0;
  for (int step = 0; step < 150; ++step) {
    auto [ids, next_ids] = pieces(text, 16);  // (16, 16) both
    optimizer.zero_grad();
    loss = pipe->step({ids}, {next_ids}, next_token_loss).loss;
    gpipe::clip_grad_norm_(pipe->parameters(), 1.0);
    optimizer.step();
  }
  // [/train]
  std::cout << "loss " << loss << "\n";
  guide::expect(loss < 0.4, "it learns the text");

  // [sample]
  torch::NoGradGuard no_grad;
  pipe->eval();
  torch::Tensor ids = text.narrow(0, 0, 8).unsqueeze(0);  // (1, 8)
  while (ids.size(1) < 16) {
    torch::Tensor logits = pipe->forward(ids);  // (1, tokens, vocab_size)
    torch::Tensor next = logits.select(1, -1).argmax(-1, /*keepdim=*/true);
    ids = torch::cat({ids, next}, 1);
  }
  // [/sample]
  const int64_t right = ids[0].eq(text.narrow(0, 0, 16)).sum().item<int64_t>();
  guide::expect(right >= 14, "it goes on as the text does: " + std::to_string(right) + " of 16");

  save_and_load(pipe, options, ids);
  torch::AutoGradMode grad(true);
  auto [words, next_words] = pieces(text, 16);
  train_experts(words, next_words);
  {
    // [head_loss]
    // #include "models/head_loss.h"
    auto model = gpipe::models::transformer(small_gpt2().tied(false).head_in_loss(true));
    gpipe::models::HeadLoss loss_fn(model->ptr(model->size() - 1));
    gpipe::GPipe pipe(model, gpipe::GPipeOptions({3, 4}).chunks(4));
    pipe->step({words}, {next_words}, loss_fn);
    // [/head_loss]
    guide::expect(pipe->parameters().back().grad().defined(), "the head learns, too");
  }
  {
    // [packed]
    auto model = gpipe::models::transformer(small_gpt2().packed(true));
    gpipe::GPipe pipe(model, gpipe::GPipeOptions({3, 4}).chunks(4));
    torch::Tensor documents = torch::zeros_like(words);  // of each token, its document's number
    documents.slice(1, 10).fill_(1);                     // a second one begins at place 10
    pipe->step({words, documents}, {next_words}, next_token_loss);
    // [/packed]
  }
  sample_with_cache(pipe, text, ids);
});

const guide::Answer kSizes("25.1", [](std::ostream& out) {
  const std::pair<const char*, gpipe::models::TransformerOptions> models[] = {
      {"gpt2_small", gpipe::models::gpt2_small()},
      {"gpt2_xl", gpipe::models::gpt2_xl()},
      {"llama_7b", gpipe::models::llama_7b()}};
  for (const auto& [name, options] : models) {
    const gpipe::MetaScope meta;
    const torch::nn::Sequential model = gpipe::models::transformer(options);
    int64_t parameters = 0;
    for (const torch::Tensor& parameter : model->parameters()) parameters += parameter.numel();
    out << name << ": " << model->size() << " layers, " << parameters << " parameters\n";
  }
});

const guide::Answer kHead("25.2", [](std::ostream& out) {
  for (const bool in_loss : {false, true}) {
    const torch::nn::Sequential model = [in_loss] {
      const gpipe::MetaScope meta;
      return gpipe::models::transformer(
          gpipe::models::gpt2_small().tied(false).fused_attention(true).head_in_loss(in_loss));
    }();
    const torch::Tensor ids =
        torch::empty({16, 512}, torch::dtype(torch::kLong).device(torch::kMeta));
    const gpipe::LossFn loss_fn =
        in_loss ? gpipe::LossFn(gpipe::models::HeadLoss(model->ptr(model->size() - 1)))
                : gpipe::LossFn(next_token_loss);
    const auto plan = gpipe::balance::memory_plan(
        model, {ids}, {ids}, loss_fn, gpipe::balance::MemoryPlanOptions({13, 14}).chunks(4));
    out << (in_loss ? "head in the loss: " : "logits at once: ")
        << static_cast<double>(plan.devices[1].peak.bytes) / (1 << 30)
        << " GiB on the last device\n";
  }
});

}  // namespace
