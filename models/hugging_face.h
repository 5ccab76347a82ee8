// hugging_face: transformers' weights in Hugging Face's layout: config.json, and model.safetensors
// or its pieces.
//
// What Python's `transformers` saves of the families in models/families.cc (Llama, Qwen, Mistral,
// Gemma, ...) is read, and it reads what is written here.
#ifndef MODELS_HUGGING_FACE_H_
#define MODELS_HUGGING_FACE_H_

#include <c10/core/ScalarType.h>
#include <torch/arg.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <optional>
#include <string>

#include "models/hugging_face_config.h"
#include "models/transformer_options.h"

namespace gpipe::models {

// The options that folder/config.json says; the caller may change dropout, fused_attention and the
// like. Throws std::runtime_error as options_from_config, with the path, or if it cannot be read.
TransformerOptions read_config(const std::string& folder);

// The type of the weights that folder/config.json says; nothing if it says none. Throws
// std::runtime_error if it cannot be read.
std::optional<c10::ScalarType> read_type(const std::string& folder);

// Copies the weights of folder/model.safetensors, or of the files that
// folder/model.safetensors.index.json lists, into a model of these options: what transformer()
// made, or a pipeline (GPipe) of it. Values are converted to the parameters' types and brought to
// their devices, one tensor at a time.
//
// The names of the file's tensors may lack their first part ("model.", "transformer."), as those of
// a model that was saved without its head. Ignored are masks and rotary
// frequencies of older files, and a head's matrix that equals the embedding's it is tied to.
//
// Throws std::runtime_error for files that cannot be read or are damaged, for tensors that are
// missing, left over, of another shape or of no floating-point type, with their names; nothing is
// changed then, unless a file is damaged within a tensor. Throws c10::ValueError for a module that
// is not of these options, or is on meta.
//
// Example:
//   const auto options = gpipe::models::read_config(folder);
//   auto model = gpipe::models::transformer(options);
//   gpipe::models::load_hugging_face(folder, options, *model);
void load_hugging_face(const std::string& folder, const TransformerOptions& options,
                       const torch::nn::Module& model);

struct SaveHuggingFaceOptions {
  // The folder that the model was read from: its config.json is written back with what changed, and
  // files of a tokenizer, generation_config.json and other texts are copied. Default: "", none:
  // config.json says what the options say.
  TORCH_ARG(std::string, source);
  // The type of the weights in the files. Default: nothing, which means the types of the source's
  // tensors, or else those of the parameters. A file's tensors of another type are all converted
  // before it is written.
  TORCH_ARG(std::optional<c10::ScalarType>, type);
  // The weights are written in several files if they are more; a single larger tensor has a file of
  // its own.
  TORCH_ARG(int64_t, max_file_bytes) = int64_t{50'000'000'000};
};

// Writes config.json and the weights. Creates the folder. Each file is replaced as a whole, the
// folder is not; what would be read instead of the new weights is removed, and so are the pieces
// that an index names which was there (model-00001-of-00002.safetensors). The source may be the
// folder itself.
//
// Throws c10::ValueError for a module that is not of these options, parameters that are on meta,
// not dense, of several types (unless `type` or a source says which) or of one that is not
// a floating-point type, options that config.json cannot say (config_from_options), and a
// max_file_bytes below 1; std::runtime_error where a folder is in the place of a file, or the
// source cannot be read. Nothing is changed then. Also std::runtime_error where the disk or the
// rights refuse something.
//
// Example:
//   save_hugging_face(trained, options, *model, SaveHuggingFaceOptions().source(folder));
void save_hugging_face(const std::string& folder, const TransformerOptions& options,
                       const torch::nn::Module& model, const SaveHuggingFaceOptions& how);
void save_hugging_face(const std::string& folder, const TransformerOptions& options,
                       const torch::nn::Module& model,
                       int64_t max_file_bytes = int64_t{50'000'000'000});

}  // namespace gpipe::models

#endif  // MODELS_HUGGING_FACE_H_
