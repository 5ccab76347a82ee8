#include "models/by_name.h"

#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <stdexcept>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "command/files.h"
#include "models/amoebanetd.h"
#include "models/hugging_face.h"
#include "models/old_amoebanetd.h"
#include "models/old_resnet.h"
#include "models/resnet.h"
#include "models/transformer.h"
#include "models/unet.h"
#include "text/closest.h"
#include "text/counted.h"

namespace gpipe::models {
namespace {

constexpr int64_t kClasses = 1000;
constexpr int64_t kOldClasses = 10;
constexpr int64_t kUNetSide = 192;
constexpr int64_t kImageNetSide = 224;

std::string meant(const std::string& family) {
  // Names are also recognized in the way other libraries write them.
  std::string closest =
      text::closest(family, {"unet", "amoebanetd", "resnet", "resnet50", "resnet101", "resnet152",
                             "old_resnet", "old_amoebanetd", "gpt2", "llama", "hf"});
  if (closest.size() > 6 && closest.rfind("resnet", 0) == 0) closest.insert(6, ":");
  return closest.empty() ? "." : "; did you mean " + closest + "?";
}

// Reads numbers separated by commas. `sizes`: words that could be meant instead, for the message.
std::vector<int64_t> numbers_of(const std::string& name, const std::string& list,
                                const std::vector<std::string>& sizes = {}) {
  std::vector<int64_t> numbers;
  for (const absl::string_view item : absl::StrSplit(list, ',')) {
    int64_t number = 0;
    if (!absl::SimpleAtoi(item, &number)) {
      const std::string closest = text::closest(std::string(item), sizes);
      TORCH_CHECK_VALUE(
          false, "model '", name, "': '", std::string(item), "' is not a whole number",
          closest.empty() ? "; there are " : "; did you mean " + closest + "? There are ",
          model_names());
    }
    numbers.push_back(number);
  }
  return numbers;
}

void check_pair(const std::string& name, const std::vector<int64_t>& numbers, const char* form) {
  TORCH_CHECK_VALUE(numbers.size() == 2, "model '", name, "' has ",
                    text::counted(static_cast<int64_t>(numbers.size()), "number"),
                    ", expected two: ", form);
}

std::vector<int64_t> groups_of(const std::string& name, const std::vector<int64_t>& numbers) {
  if (numbers.size() > 1) return numbers;
  if (numbers[0] == 50) return {3, 4, 6, 3};
  if (numbers[0] == 101) return {3, 4, 23, 3};
  if (numbers[0] == 152) return {3, 8, 36, 3};
  TORCH_CHECK_VALUE(false, "model '", name, "': there are resnet:50, resnet:101, resnet:152, and ",
                    "any other by the blocks of its groups, such as resnet:3,4,23,3");
}

// Reads "gpt2:small", or a name with the numbers of the model.
TransformerOptions language_model(const std::string& name, const std::string& family,
                                  const std::string& list) {
  const std::string size = absl::AsciiStrToLower(list);
  if (family == "gpt2") {
    if (size == "small") return gpt2_small();
    if (size == "medium") return gpt2_medium();
    if (size == "large") return gpt2_large();
    if (size == "xl") return gpt2_xl();
    const std::vector<int64_t> numbers = numbers_of(name, list, {"small", "medium", "large", "xl"});
    TORCH_CHECK_VALUE(numbers.size() == 4 || numbers.size() == 5, "model '", name, "' has ",
                      text::counted(static_cast<int64_t>(numbers.size()), "number"),
                      ", expected gpt2:small, medium, large or xl, or four: gpt2:L,E,H,T, blocks, "
                      "width, heads and tokens, and behind them, if it is another one, the size of "
                      "the vocabulary");
    TransformerOptions options = gpt2_small()
                                     .num_layers(numbers[0])
                                     .hidden_size(numbers[1])
                                     .num_heads(numbers[2])
                                     .max_positions(numbers[3]);
    return numbers.size() == 4 ? options : options.vocab_size(numbers[4]);
  }
  if (size == "7b") return llama_7b();
  if (size == "13b") return llama_13b();
  if (size == "70b") return llama_70b();
  const std::vector<int64_t> numbers = numbers_of(name, list, {"7b", "13b", "70b"});
  TORCH_CHECK_VALUE(numbers.size() == 5 || numbers.size() == 6, "model '", name, "' has ",
                    text::counted(static_cast<int64_t>(numbers.size()), "number"),
                    ", expected llama:7b, 13b or 70b, or five: llama:L,E,H,K,T, blocks, width, "
                    "heads, heads of keys and tokens, and behind them, if it is another one, the "
                    "size of the vocabulary");
  // Numbers out of range are refused when the network is made.
  constexpr int64_t kStep = 256, kWidest = int64_t{1} << 20;
  const int64_t width = std::clamp<int64_t>(numbers[1], 0, kWidest);
  TransformerOptions options = llama_7b()
                                   .num_layers(numbers[0])
                                   .hidden_size(numbers[1])
                                   .num_heads(numbers[2])
                                   .num_kv_heads(numbers[3])
                                   .max_positions(numbers[4])
                                   .intermediate_size((width * 8 / 3 + kStep - 1) / kStep * kStep);
  return numbers.size() == 5 ? options : options.vocab_size(numbers[5]);
}

// Adds the model's name to the errors that the network throws about its options.
std::function<torch::nn::Sequential()> named(const std::string& name,
                                             std::function<torch::nn::Sequential()> make) {
  return [name, make = std::move(make)] {
    try {
      return make();
    } catch (const c10::ValueError& error) {
      TORCH_CHECK_VALUE(false, "model '", name, "': ", error.what_without_backtrace());
    }
  };
}

// Reads "hf:FOLDER" or "hf:FOLDER,T".
NamedModel of_folder(const std::string& name) {
  std::string folder = name.substr(name.find(':') + 1);
  absl::StripAsciiWhitespace(&folder);
  TORCH_CHECK_VALUE(!folder.empty() && folder.find_first_of(" \t\n") == std::string::npos,
                    "model '", name,
                    "': give the path of a Hugging Face folder without spaces, hf:FOLDER, or "
                    "hf:FOLDER,T with T tokens in a sequence");
  int64_t tokens = 0;
  const size_t comma = folder.rfind(',');
  if (comma != std::string::npos && absl::SimpleAtoi(folder.substr(comma + 1), &tokens)) {
    TORCH_CHECK_VALUE(tokens > 0, "model '", name, "': sequences of ", tokens,
                      " tokens; give at least 1");
    folder.resize(comma);
  }
  NamedModel model;
  model.name = "hf:" + folder + (tokens > 0 ? "," + std::to_string(tokens) : "");
  model.takes_tokens = true;
  try {
    const std::string path = command::user_path(folder);
    TransformerOptions options = read_config(path);
    const at::ScalarType type = read_type(path).value_or(at::kFloat);
    options.fused_attention(options.block().attention_soft_cap() == 0);
    const bool learned = options.block().learned_positions();
    TORCH_CHECK_VALUE(!learned || tokens <= options.max_positions(), "model '", name, "' has ",
                      options.max_positions(), " positions, got sequences of ", tokens,
                      " tokens; give at most ", options.max_positions());
    const auto make = [=](bool worst) {
      TransformerOptions own = options;
      own.block().experts().worst_on_meta(worst);
      torch::nn::Sequential network = transformer(own);
      network->to(type);
      return network;
    };
    model.row = {tokens > 0 ? tokens : options.max_positions()};
    model.classes = options.vocab_size();
    model.transformer = options;
    model.make = named(model.name, [=] { return make(false); });
    if (options.block().experts().count() > 0) {
      model.make_worst = named(model.name, [=] { return make(true); });
    }
  } catch (const c10::ValueError& error) {
    TORCH_CHECK_VALUE(false, "model '", name, "': ", error.what_without_backtrace());
  } catch (const std::runtime_error& error) {
    TORCH_CHECK_VALUE(false, "model '", name, "': ", error.what());
  }
  return model;
}

}  // namespace

const char* model_names() {
  return "unet:B,C (convolutions in a row, base channels), amoebanetd:L,D (normal cells, filters), "
         "resnet:50, resnet:101, resnet:152, resnet:3,4,23,3 (the blocks of each group), and those "
         "of June 2019, old_amoebanetd:L,D (normal cells of a group) and old_resnet:101; language "
         "models gpt2:small, gpt2:medium, gpt2:large, gpt2:xl, gpt2:L,E,H,T (blocks, width, heads, "
         "tokens), llama:7b, llama:13b, llama:70b and llama:L,E,H,K,T (K heads of keys), either "
         "with ,V behind for a vocabulary of V; hf:FOLDER or hf:FOLDER,T for the config.json in a "
         "Hugging Face folder, with T tokens in a row";
}

NamedModel model_by_name(const std::string& name, int64_t image_size, bool tied) {
  TORCH_CHECK_VALUE(image_size >= 0, "image_size must be at least 0, got ", image_size);
  std::string text = name;
  absl::RemoveExtraAsciiWhitespace(&text);
  const size_t colon = text.find(':');
  const std::string family = text.substr(0, colon);
  TORCH_CHECK_VALUE(family == "unet" || family == "amoebanetd" || family == "resnet" ||
                        family == "old_amoebanetd" || family == "old_resnet" || family == "gpt2" ||
                        family == "llama" || family == "hf",
                    "there is no model '", name, "'", meant(family), " There are ", model_names());
  TORCH_CHECK_VALUE(colon != std::string::npos, "model '", name, "' has no numbers; there are ",
                    model_names());
  if (family == "hf") {
    TORCH_CHECK_VALUE(image_size == 0, "model '", name,
                      "' takes tokens, no images; leave out --image_size");
    TORCH_CHECK_VALUE(!tied, "model '", name, "': its config.json says whether the head is tied; ",
                      "leave out --tied");
    return of_folder(name);
  }
  NamedModel model;
  if (family == "gpt2" || family == "llama") {
    TORCH_CHECK_VALUE(image_size == 0, "model '", name, "' takes tokens, no images; its numbers ",
                      "say how many: there are ", model_names());
    std::string list = text.substr(colon + 1);
    const TransformerOptions options = language_model(name, family, list);
    absl::StrReplaceAll({{" ", ""}}, &list);
    model.name = family + ":" + absl::AsciiStrToLower(list);
    model.make =
        named(model.name, [options = TransformerOptions(options).tied(tied).fused_attention(true)] {
          return transformer(options);
        });
    model.row = {options.max_positions()};
    model.classes = options.vocab_size();
    model.takes_tokens = true;
    model.transformer = options;
    return model;
  }
  TORCH_CHECK_VALUE(!tied, "model '", name, "' has no embedding and no head that it could be ",
                    "tied to: only gpt2 and llama have; leave out --tied");
  const std::vector<int64_t> numbers = numbers_of(name, text.substr(colon + 1));
  model.name = family + ":" + absl::StrJoin(numbers, ",");
  int64_t side = kImageNetSide;
  if (family == "unet") {
    check_pair(name, numbers, "unet:B,C, convolutions in a row and base channels");
    model.make = named(model.name, [numbers] {
      return unet(UNetOptions().num_convs(numbers[0]).base_channels(numbers[1]));
    });
    model.loss = Loss::kBinaryCrossEntropyWithLogits;
    side = kUNetSide;
  } else if (family == "amoebanetd") {
    check_pair(name, numbers, "amoebanetd:L,D, normal cells and filters");
    model.make = named(model.name, [numbers] {
      return amoebanetd(AmoebaNetDOptions().num_layers(numbers[0]).num_filters(numbers[1]));
    });
  } else if (family == "old_amoebanetd") {
    check_pair(name, numbers, "old_amoebanetd:L,D, normal cells of a group and filters");
    model.classes = kOldClasses;
    model.make = named(model.name, [numbers] {
      return old_amoebanetd(OldAmoebaNetDOptions()
                                .num_classes(kOldClasses)
                                .num_layers(numbers[0])
                                .num_filters(numbers[1]));
    });
  } else if (family == "old_resnet") {
    model.classes = kOldClasses;
    model.make = named(model.name, [groups = groups_of(name, numbers)] {
      return old_resnet(OldResNetOptions(groups).num_classes(kOldClasses));
    });
  } else {
    model.make = named(model.name, [groups = groups_of(name, numbers)] {
      return resnet(ResNetOptions(groups).num_classes(kClasses));
    });
  }
  if (image_size > 0) side = image_size;
  model.row = {3, side, side};
  return model;
}

at::Tensor random_input(const NamedModel& model, int64_t rows, c10::Device device) {
  std::vector<int64_t> shape = model.row;
  shape.insert(shape.begin(), rows);
  if (model.takes_tokens) {
    return at::randint(model.classes, shape, at::TensorOptions(at::kLong).device(device));
  }
  return at::rand(shape, device);
}

at::Tensor random_target(const NamedModel& model, int64_t rows, c10::Device device) {
  if (model.takes_tokens) return random_input(model, rows, device);
  if (model.loss == Loss::kCrossEntropy) {
    return at::randint(model.classes, {rows}, at::TensorOptions(at::kLong).device(device));
  }
  return at::rand({rows, 1, model.row[1], model.row[2]}, device);
}

at::Tensor loss_of(Loss loss, const at::Tensor& output, const at::Tensor& target) {
  if (loss == Loss::kBinaryCrossEntropyWithLogits) {
    return at::binary_cross_entropy_with_logits(output, target);
  }
  // With several tokens in a row, LibTorch wants the classes in the second dimension, so rows and
  // tokens become one dimension.
  return target.dim() < 2 ? at::cross_entropy_loss(output, target)
                          : at::cross_entropy_loss(output.flatten(0, 1), target.flatten());
}

}  // namespace gpipe::models
