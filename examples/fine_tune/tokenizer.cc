#include "examples/fine_tune/tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <stdexcept>

#include "absl/strings/str_cat.h"
#include "command/files.h"
#include "examples/common/bits.h"

namespace fine_tune {
namespace {

namespace fs = std::filesystem;

// The files that tokenizers are compared by. prepare.py has the same list.
constexpr const char* kFiles[] = {"tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt",
                                  "vocab.txt",      "spiece.model",    "tekken.json"};

bool has(const std::string& folder, const char* file) {
  std::error_code error;
  return fs::is_regular_file(fs::path(folder) / file, error);
}

}  // namespace

bool has_tokenizer(const std::string& folder) {
  return std::any_of(std::begin(kFiles), std::end(kFiles),
                     [&](const char* file) { return has(folder, file); });
}

void check_tokenizer(const std::map<std::string, std::string>& made_by, const std::string& folder) {
  for (const char* const file : kFiles) {
    const auto found = made_by.find(file);
    if (found == made_by.end() || !has(folder, file)) continue;
    const std::string own =
        examples::content_of(gpipe::command::read_file((fs::path(folder) / file).string()));
    if (own == found->second) continue;
    throw std::runtime_error(absl::StrCat("its token ids are of another tokenizer: ", file, " had ",
                                          found->second, ", and the one in ", folder, " has ", own,
                                          "; make it again by prepare.py with this folder"));
  }
}

}  // namespace fine_tune
