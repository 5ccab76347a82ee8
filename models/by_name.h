// model_by_name: a network of this package from a text, with what it is trained on.
#ifndef MODELS_BY_NAME_H_
#define MODELS_BY_NAME_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "models/transformer_options.h"

namespace gpipe::models {

enum class Loss : uint8_t {
  kCrossEntropy,                  // targets: class numbers, [rows], or [rows, tokens]
  kBinaryCrossEntropyWithLogits,  // targets: 0 .. 1, of the output's shape
};

// A network with a name, and what it is trained on. A value type.
struct NamedModel {
  std::string name;  // without spaces: "unet:5,64"
  // Makes the network, on the CPU unless a MetaScope is open; its parameters are drawn from
  // LibTorch's generator. Throws c10::ValueError, with the name, for numbers that make no network.
  std::function<torch::nn::Sequential()> make;
  // Makes the network for the worst case of a plan on meta: all tokens of a mixture of experts go
  // to the same experts. Null for networks without experts.
  std::function<torch::nn::Sequential()> make_worst;
  std::vector<int64_t> row;  // the shape of one sample, {3, 192, 192}; {1024} for tokens
  Loss loss = Loss::kCrossEntropy;
  int64_t classes = 1000;     // the number of classes, for cross entropy
  bool takes_tokens = false;  // samples are token ids, below `classes`, and so are their targets
  std::optional<TransformerOptions> transformer;  // of a language model, for add_lora()
};

// The forms of a name, for --help and for messages.
const char* model_names();

// The networks of torchgpipe's published tables, as written there:
//   unet:B,C            B convolutions in a row, C channels at the first level, depth 5
//   amoebanetd:L,D      L normal cells, D filters
//   resnet:50, resnet:101, resnet:152
//   resnet:3,4,23,3     the blocks of each group
// The networks of the tables of June 2019, with 10 classes:
//   old_amoebanetd:L,D  L normal cells in each of the three groups, D filters
//   old_resnet:...      as resnet:...
// Language models, with the published vocabulary and sequences as long as they are made for.
// Attention is the device's own (fused_attention of TransformerOptions), and the head has a matrix
// of its own, so that the last layer is like any other, unless it is `tied`, as GPT-2's is: then it
// multiplies with the embedding's.
//   gpt2:small, gpt2:medium, gpt2:large, gpt2:xl; llama:7b, llama:13b, llama:70b
//   gpt2:L,E,H,T        L blocks, E wide, H heads, T tokens in a sequence
//   llama:L,E,H,K,T     K heads of keys and values; the MLP is 8/3 E wide, to the next 256
//   (Llama's)
//   gpt2:L,E,H,T,V, llama:L,E,H,K,T,V   with a vocabulary of V words
// A model of a Hugging Face folder, which needs no more than its config.json:
//   hf:FOLDER           as transformer() makes it (models/hugging_face.h), of the type that the
//                       config says, with rows of max_position_embeddings tokens; weights are drawn
//   hf:FOLDER,T         with T tokens in a sequence
// A relative folder is one of the user's (command::user_path).
// `image_size` is the side of the images; 0 takes the published one: 192 for a U-Net, 224 for the
// others. A language model takes none.
//
// Throws c10::ValueError for an unknown name, a folder whose config.json is refused, numbers that
// are not whole numbers or too few or too many, a negative image size, one for a language model,
// and `tied` for any other than gpt2 and llama.
//
// Example:
//   NamedModel named = model_by_name("unet:5,64");
//   torch::nn::Sequential model = named.make();
//   at::Tensor output = model->forward(random_input(named, 32, torch::kCPU));
NamedModel model_by_name(const std::string& name, int64_t image_size = 0, bool tied = false);

// `rows` samples, uniform in 0 .. 1: [rows, 3, side, side]; of token ids: [rows, tokens].
at::Tensor random_input(const NamedModel& model, int64_t rows, c10::Device device);

// Targets for that input: class numbers, [rows] or [rows, tokens], or uniform in 0 .. 1, [rows, 1,
// side, side].
at::Tensor random_target(const NamedModel& model, int64_t rows, c10::Device device);

// The mean loss over the rows, or tokens: a scalar.
at::Tensor loss_of(Loss loss, const at::Tensor& output, const at::Tensor& target);

}  // namespace gpipe::models

#endif  // MODELS_BY_NAME_H_
