#include "balance/commands/zoo_model.h"

#include <filesystem>
#include <functional>
#include <stdexcept>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "command/files.h"
#include "command/wrong_value.h"
#include "models/by_name.h"
#include "models/hugging_face.h"
#include "models/lora.h"
#include "models/transformer_options.h"

namespace gpipe::balance {
namespace {

// Returns `make`, but the network has the weights of the folder, except on meta.
std::function<torch::nn::Sequential()> with_weights(std::function<torch::nn::Sequential()> make,
                                                    const models::TransformerOptions& options,
                                                    const std::string& folder) {
  return [make = std::move(make), options, folder] {
    torch::nn::Sequential network = make();
    if (!network->parameters().front().is_meta()) {
      models::load_hugging_face(folder, options, *network);
    }
    return network;
  };
}

// Returns `make`, but the network has adapters and a frozen base.
std::function<torch::nn::Sequential()> with_lora(std::function<torch::nn::Sequential()> make,
                                                 const models::TransformerOptions& options,
                                                 int64_t rank) {
  if (make == nullptr) return nullptr;
  return [make = std::move(make), options, rank] {
    torch::nn::Sequential network = make();
    models::add_lora(*network, options, models::LoraOptions({"all-linear"}).rank(rank));
    return network;
  };
}

}  // namespace

void ZooFlags::add_to(command::FlagSet& flags, const std::string& model_help,
                      const std::string& batch_help) {
  constexpr int64_t kMost = int64_t{1} << 40;
  flags.add("model", model, model_help);
  flags.add("batch", batch, 1, kMostRows, batch_help);
  flags.add("image_size", image_size, 1, kMost,
            "Side of the images. Default: 192 for a U-Net, 224 for the others; language models "
            "take none.");
  flags.add("tied", tied,
            "The head of a language model uses the weight of the embedding, as GPT-2's does; other "
            "models have no such head.");
  flags.add("lora", lora, 1, kMost,
            "Trains low-rank adapters of this rank on all linear layers of a language model except "
            "its head; the rest is frozen. Default: all parameters are trained.");
}

std::string ZooFlags::zoo_help() {
  return absl::StrCat("The network: ", models::model_names(), ".");
}

std::string folder_with_weights(const std::string& name) {
  constexpr absl::string_view kFamily = "hf:";
  if (!absl::StartsWith(name, kFamily)) return "";
  std::string folder = name.substr(kFamily.size());
  const size_t comma = folder.rfind(',');
  int64_t tokens = 0;
  if (comma != std::string::npos && absl::SimpleAtoi(folder.substr(comma + 1), &tokens)) {
    folder.resize(comma);
  }
  folder = command::user_path(folder);
  for (const char* file : {"/model.safetensors", "/model.safetensors.index.json"}) {
    if (std::filesystem::exists(folder + file)) return folder;
  }
  return "";
}

CommandModel zoo_model(const ZooFlags& flags, bool weights) {
  const models::NamedModel named =
      models::model_by_name(flags.model, flags.image_size.value_or(0), flags.tied);
  CommandModel model;
  model.name = named.name;
  model.saved_name = named.name;
  if (flags.image_size) absl::StrAppend(&model.saved_name, "@", *flags.image_size);
  if (flags.tied) model.saved_name += "@tied";
  model.given = command::flag_text("model", model.saved_name);
  model.make = named.make;
  model.make_worst = named.make_worst;
  const std::string folder = weights ? folder_with_weights(named.name) : "";
  if (!folder.empty()) {
    model.make = with_weights(std::move(model.make), *named.transformer, folder);
  }
  if (const std::optional<int64_t> rank = flags.lora) {
    if (!named.transformer) {
      throw command::wrong_value("lora", *rank,
                                 absl::StrCat(model.name,
                                              " has no layers that take adapters: give a language "
                                              "model (gpt2, llama, hf:FOLDER), or leave it out"));
    }
    model.make = with_lora(std::move(model.make), *named.transformer, *rank);
    model.make_worst = with_lora(std::move(model.make_worst), *named.transformer, *rank);
    absl::StrAppend(&model.saved_name, "@lora", *rank);
  }
  model.inputs = [named](int64_t rows, c10::Device device) {
    return Tensors{models::random_input(named, rows, device)};
  };
  model.targets = [named](int64_t rows, c10::Device device) {
    return Tensors{models::random_target(named, rows, device)};
  };
  model.loss = [loss = named.loss](const Tensors& outputs, const Tensors& targets) {
    return models::loss_of(loss, outputs.at(0), targets.at(0));
  };
  model.batch = flags.batch;
  return model;
}

CommandModel given_zoo_model(const ZooFlags& flags, bool weights) {
  if (flags.model.empty()) {
    throw std::invalid_argument(
        absl::StrCat("give --model=NAME; there are the models ", models::model_names()));
  }
  return zoo_model(flags, weights);
}

}  // namespace gpipe::balance
