// The folder in which Hugging Face keeps a model: its files' names, weights and texts.
#ifndef MODELS_MODEL_FOLDER_H_
#define MODELS_MODEL_FOLDER_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "safetensors/safetensors.h"

namespace gpipe::models::internal {

inline constexpr const char* kConfig = "config.json";
inline constexpr const char* kFile = "model.safetensors";
inline constexpr const char* kIndex = "model.safetensors.index.json";

// The text of a file. Throws std::runtime_error if it cannot be read.
std::string text_of(const std::filesystem::path& path);

// The folder's tensors, from one file or several. The constructor throws std::runtime_error for a
// folder without them, and for an index that is wrong.
class Weights {
 public:
  explicit Weights(const std::filesystem::path& folder);

  bool has(const std::string& name) const { return tensors_.count(name) > 0; }
  // The files by the names of the tensors in them.
  const std::map<std::string, const safetensors::File*>& tensors() const { return tensors_; }
  at::Tensor read(const std::string& name) const { return tensors_.at(name)->read(name); }
  const std::vector<int64_t>& shape(const std::string& name) const {
    return tensors_.at(name)->header().tensors.at(name).shape;
  }
  const std::string& type(const std::string& name) const {
    return tensors_.at(name)->header().tensors.at(name).type;
  }

 private:
  void open(const std::filesystem::path& path);
  void read_index(const std::filesystem::path& folder);

  std::vector<std::unique_ptr<safetensors::File>> files_;
  std::map<std::string, const safetensors::File*> tensors_;
};

// What a folder without safetensors files has instead, as the end of a message.
std::string instead_of_weights(const std::filesystem::path& folder);

// Whether the name is that of one of several files of weights.
bool is_piece(const std::string& name);

// The pieces that the folder's index names, if there is one. A file that is not an index names
// none.
std::set<std::string> indexed_pieces(const std::filesystem::path& place);

// The texts of a folder beside its config and weights, by name: a tokenizer's files,
// generation_config.json, a license.
std::vector<std::pair<std::string, std::string>> texts_of(const std::string& folder);

// Throws std::runtime_error if a file to be replaced or removed is a folder.
void check_no_folders(const std::filesystem::path& place, std::vector<std::string> names);

}  // namespace gpipe::models::internal

#endif  // MODELS_MODEL_FOLDER_H_
