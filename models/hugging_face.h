// hugging_face: transformers' weights in Hugging Face's layout: config.json, and model.safetensors
// or its pieces.
//
// Reads what Python's `transformers` saves of the families in models/families/families.cc (Llama,
// Qwen, Mistral, Gemma, ...), and writes what `transformers` reads.
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

// The options in folder/config.json; the caller may change dropout, fused_attention and the like.
// Throws std::runtime_error as options_from_config does, with the path, or if the file cannot be
// read.
TransformerOptions read_config(const std::string& folder);

// The type of the weights in folder/config.json; nothing if there is none. Throws
// std::runtime_error if the file cannot be read.
std::optional<c10::ScalarType> read_type(const std::string& folder);

// Copies the weights of folder/model.safetensors, or of the files that
// folder/model.safetensors.index.json lists, into a model of these options: one made by
// transformer(), or a pipeline (GPipe) of it. Values are converted to the parameters' types and
// brought to their devices, one tensor at a time.
//
// The names of the file's tensors may lack their first part ("model.", "transformer."), as in a
// model that was saved without its head. Ignored are masks and rotary frequencies of older files,
// and the matrix of a tied head if it equals the embedding's.
//
// Throws std::runtime_error for files that cannot be read or are damaged, for tensors that are
// missing, left over, of another shape or not of a floating-point type, with their names. Nothing
// is changed then, unless a file is damaged within a tensor. Throws c10::ValueError for a module
// that is not of these options, or is on meta.
//
// Example:
//   const auto options = gpipe::models::read_config(folder);
//   auto model = gpipe::models::transformer(options);
//   gpipe::models::load_hugging_face(folder, options, *model);
void load_hugging_face(const std::string& folder, const TransformerOptions& options,
                       const torch::nn::Module& model);

struct SaveHuggingFaceOptions {
  // The folder that the model was read from: its config.json is written back with the changes, and
  // files of a tokenizer, generation_config.json and other texts are copied. Default: "", no
  // source: config.json contains the options alone.
  TORCH_ARG(std::string, source);
  // The type of the weights in the files. Default: nothing, which means the types of the source's
  // tensors, or else those of the parameters. A file's tensors of another type are all converted
  // before it is written.
  TORCH_ARG(std::optional<c10::ScalarType>, type);
  // If the weights have more bytes, they are written in several files; a single larger tensor has a
  // file of its own.
  TORCH_ARG(int64_t, max_file_bytes) = int64_t{50'000'000'000};
};

// Writes config.json and the weights. Creates the folder. Each file is replaced as a whole, the
// folder is not. Files that would be read instead of the new weights are removed, and so are the
// pieces named by a former index (model-00001-of-00002.safetensors). The source may be the folder
// itself.
//
// Throws c10::ValueError for a module that is not of these options, parameters that are on meta,
// not dense, of several types (unless `type` or a source says which) or of one that is not a
// floating-point type, options that config.json has no fields for (config_from_options), and a
// max_file_bytes below 1; std::runtime_error if there is a folder in the place of a file, or the
// source cannot be read. Nothing is changed then. Also throws std::runtime_error for a full disk or
// missing rights.
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
