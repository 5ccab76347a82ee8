#include "models/model_folder.h"

#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <system_error>

#include "absl/strings/match.h"

namespace gpipe::models::internal {

namespace fs = std::filesystem;
using Json = nlohmann::json;

std::string instead_of_weights(const fs::path& folder) {
  static const std::set<std::string> kOther = {".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack"};
  if (fs::exists(folder / "adapter_config.json")) {
    return "; it is the folder of an adapter: read the one of its base, then load_lora this "
           "(models/lora.h)";
  }
  std::set<std::string> found;
  std::error_code error;  // the folder may not exist
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (kOther.count(entry.path().extension().string()) > 0) {
      found.insert(entry.path().filename().string());
    }
  }
  if (found.empty()) return "";
  return "; " + *found.begin() +
         " is of another format: read it with Python's transformers, whose save_pretrained writes "
         "what is read here";
}

std::string text_of(const fs::path& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file.is_open()) text << file.rdbuf();
  // The state of `text` does not tell whether the read failed, because an empty file sets its
  // failbit, too.
  if (!file.is_open() || file.bad() || fs::is_directory(path)) {
    const int error = errno;
    throw std::runtime_error("cannot read " + path.string() +
                             (error != 0 ? ": " + std::generic_category().message(error) : ""));
  }
  return text.str();
}

Weights::Weights(const fs::path& folder) {
  if (fs::exists(folder / kFile)) {
    open(folder / kFile);
    return;
  }
  if (!fs::exists(folder / kIndex)) {
    throw std::runtime_error("there is neither " + std::string(kFile) + " nor " + kIndex + " in " +
                             folder.string() + instead_of_weights(folder));
  }
  read_index(folder);
}

void Weights::open(const fs::path& path) {
  files_.push_back(std::make_unique<safetensors::File>(path.string()));
  for (const auto& tensor : files_.back()->header().tensors) {
    if (tensors_.emplace(tensor.first, files_.back().get()).second) continue;
    throw std::runtime_error("tensor '" + tensor.first + "' is in " + path.string() + " and in " +
                             tensors_.at(tensor.first)->path());
  }
}

void Weights::read_index(const fs::path& folder) {
  const std::string path = (folder / kIndex).string();
  const Json json = Json::parse(text_of(path), nullptr, /*allow_exceptions=*/false);
  const Json map = json.is_object() && json.contains("weight_map") ? json["weight_map"] : Json();
  if (!map.is_object()) {
    throw std::runtime_error(path + " has no weight_map, so it is not an index of Hugging Face's");
  }
  std::map<std::string, std::string> file_of;  // by the tensor's name
  for (const auto& [name, value] : map.items()) {
    const std::string file = value.is_string() ? value.get<std::string>() : "";
    // Refuses files outside the folder.
    if (file.empty() || fs::path(file).filename() != file || file == "." || file == "..") {
      throw std::runtime_error(path + ": the file of tensor '" + name +
                               "' must be a name in the folder");
    }
    file_of.emplace(name, file);
  }
  std::map<std::string, bool> opened;
  for (const auto& [name, file] : file_of) {
    if (!std::exchange(opened[file], true)) open(folder / file);
  }
  for (const auto& [name, file] : file_of) {
    const auto found = tensors_.find(name);
    if (found == tensors_.end() || fs::path(found->second->path()).filename() != file) {
      throw std::runtime_error(path + " says that tensor '" + name + "' is in " + file +
                               ", where it is not");
    }
  }
}

bool is_piece(const std::string& name) {
  static const std::regex kName("model-[0-9]{5,}-of-[0-9]{5,}\\.safetensors");
  return std::regex_match(name, kName);
}

std::set<std::string> indexed_pieces(const fs::path& place) {
  std::set<std::string> pieces;
  std::ifstream file(place / kIndex, std::ios::binary);
  if (!file.is_open()) return pieces;
  const Json json = Json::parse(file, nullptr, /*allow_exceptions=*/false);
  const auto map = json.is_object() ? json.find("weight_map") : json.end();
  if (map == json.end() || !map->is_object()) return pieces;
  for (const Json& name : *map) {
    if (name.is_string() && is_piece(name)) pieces.insert(name.get<std::string>());
  }
  return pieces;
}

std::vector<std::pair<std::string, std::string>> texts_of(const std::string& folder) {
  static const std::set<std::string> kEnds = {".json",     ".txt", ".model", ".jinja", ".bpe",
                                              ".tiktoken", ".md",  ".py",    ".vocab", ".v3"};
  std::vector<std::pair<std::string, std::string>> texts;
  if (folder.empty()) return texts;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const bool text = kEnds.count(entry.path().extension().string()) > 0 ||
                      absl::StartsWith(name, "LICENSE") || absl::StartsWith(name, "NOTICE");
    // adapter_config.json is not copied, because beside it transformers would look for the
    // adapters' weights.
    const bool replaced =
        name == kConfig || name == "adapter_config.json" || absl::EndsWith(name, ".index.json");
    if (!text || replaced || !entry.is_regular_file()) continue;
    texts.emplace_back(name, text_of(entry.path()));
  }
  return texts;
}

void check_no_folders(const fs::path& place, std::vector<std::string> names) {
  names.insert(names.end(), {kConfig, kFile, kIndex});
  for (const std::string& name : names) {
    std::error_code error;
    if (!fs::is_directory(place / name, error)) continue;
    throw std::runtime_error("cannot write " + (place / name).string() + ": it is a folder");
  }
}

}  // namespace gpipe::models::internal
