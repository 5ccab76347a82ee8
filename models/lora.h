// lora: low-rank adapters for fine-tuning (Hu et al., "LoRA", 2021), in the files of Python's
// `peft`.
//
// An adapter adds a product of two small matrices to a frozen weight. Nothing is kept for the
// backward of a frozen weight, and no optimizer has a state for it. Layers that take adapters are
// AdaptableLinear (models/adaptable_linear.h), as those of transformer() are.
#ifndef MODELS_LORA_H_
#define MODELS_LORA_H_

#include <torch/arg.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "models/transformer_options.h"

namespace gpipe::models {

// The adapted layers, and the options of their adapters. A value type. Names of peft's LoraConfig
// are in brackets where they differ.
//
// Example:
//   LoraOptions({"q_proj", "v_proj"}).rank(16).alpha(32)
struct LoraOptions {
  LoraOptions() = default;
  // NOLINTNEXTLINE: implicit, as LibTorch's options are
  LoraOptions(std::vector<std::string> target_modules)
      : target_modules_(std::move(target_modules)) {}

  // Names of linear layers, or their ends behind a dot: "q_proj" means that of every block.
  // {"all-linear"}, alone: all except the head. Each must match some layer.
  TORCH_ARG(std::vector<std::string>, target_modules);
  // Instead of target_modules, a regular expression that the whole name must match:
  // ".*[.](q|v)_proj".
  TORCH_ARG(std::string, target_pattern);
  // Names, or ends of names, that are left out. Each must match some layer.
  TORCH_ARG(std::vector<std::string>, exclude_modules);
  // The rows of one of the two matrices, at least 1 (r).
  TORCH_ARG(int64_t, rank) = 8;
  // The product of the two matrices is multiplied with alpha / rank (lora_alpha).
  TORCH_ARG(double, alpha) = 8;
  // The probability that an element of an adapter's input is dropped in training (lora_dropout),
  // from 0 to below 1.
  TORCH_ARG(double, dropout) = 0;
  // Whether the factor is alpha / sqrt(rank) instead (Kalajdzievski, "rsLoRA", 2023; use_rslora).
  TORCH_ARG(bool, rank_stabilized) = false;
  // The lengths of the weight's rows are trained apart from their directions (Liu et al., "DoRA",
  // 2024; use_dora).
  TORCH_ARG(bool, dora) = false;
};

// Freezes all parameters and adds adapters, which are trained and change nothing at first. Their
// parameters have the weight's type, but at least 32 bits, and its device; on meta they have no
// values. Matrices are drawn from LibTorch's generator, in the order of the layers. Call it after
// the base's weights are loaded, and before a pipeline or an optimizer is made of the model.
//
// Returns the names that have been adapted. With TransformerOptions these are names of Python's
// `transformers` ("model.layers.0.self_attn.q_proj"), so queries, keys and values of a packed `qkv`
// are adapted separately if those files have them as separate layers. Without, they are names of
// the model's own modules.
//
// A layer that the model has at several places is adapted once, under the first of its names.
//
// A clone() of the model trains all but the frozen parameters of AdaptableLinear, as LibTorch's
// modules do not keep requires_grad: freeze its norms and embeddings again.
//
// Throws c10::ValueError for options that do not make an adapter, a name or pattern that matches no
// layer, one that matches a layer without support for adapters (a torch::nn::Linear, an embedding,
// the head), and a layer that has adapters already. Nothing is changed then.
//
// Example:
//   load_hugging_face(folder, options, *model);
//   add_lora(*model, options, LoraOptions({"q_proj", "v_proj"}).rank(16));
//   gpipe::GPipe pipe(model, gpipe::GPipeOptions(balance));
std::vector<std::string> add_lora(const torch::nn::Module& model, const LoraOptions& lora);
std::vector<std::string> add_lora(const torch::nn::Module& model, const TransformerOptions& options,
                                  const LoraOptions& lora);

// merge_lora makes copies of the weights with the adapters in them, with the bits of peft's
// merge_and_unload. Until unmerge_lora the model computes with these, as fast as without adapters,
// and cannot be trained: a forward throws c10::ValueError in training, where a gradient would pass
// a merged layer, and once the weights or adapters have been written to. The parameters stay as
// they are, so a checkpoint is the one of the model that is not merged.
void merge_lora(const torch::nn::Module& model);
void unmerge_lora(const torch::nn::Module& model);
// Writes the adapters into the weights and removes them, so that save_hugging_face takes the model;
// or only removes them. Frozen parameters stay frozen.
void merge_and_unload_lora(const torch::nn::Module& model);
void unload_lora(const torch::nn::Module& model);

// The options in folder/adapter_config.json. Throws std::runtime_error if it cannot be read, or has
// what this package does not support: an adapter of another kind, biases, whole layers beside
// adapters (modules_to_save), ranks that differ, an initialization that changes the base's weights.
LoraOptions read_lora(const std::string& folder);

// Adds the adapters of folder/adapter_config.json and reads their values from
// folder/adapter_model.safetensors, converted to the parameters' types. Returns their options.
//
// Throws as read_lora and add_lora do, std::runtime_error for tensors that are missing, left over,
// of another shape or of a type that is not floating-point, and c10::ValueError for a model on
// meta. Nothing is changed then, unless a file is damaged within a tensor.
LoraOptions load_lora(const std::string& folder, const torch::nn::Module& model);
LoraOptions load_lora(const std::string& folder, const torch::nn::Module& model,
                      const TransformerOptions& options);

// Writes both files, each as a whole, and creates the folder. `base`: where the base's weights are,
// a folder or a name (base_model_name_or_path).
//
// Throws c10::ValueError for a model without adapters, with others than `lora` describes (values,
// or layers that its names leave out), or with some on meta; std::runtime_error for a full disk or
// missing rights.
//
// Example:
//   save_lora("adapter", *model, lora, "meta-llama/Llama-3.1-8B");
void save_lora(const std::string& folder, const torch::nn::Module& model, const LoraOptions& lora,
               const std::string& base);

}  // namespace gpipe::models

#endif  // MODELS_LORA_H_
