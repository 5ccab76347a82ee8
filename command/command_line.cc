#include "command/command_line.h"

#include <torch/version.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "command/run_main.h"

namespace gpipe::command {

std::string version_text() { return absl::StrCat(kProject, "; ", describe_build()); }

std::string quoted_for_shell(const std::string& word) {
  const auto plain = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
           absl::string_view("-_=./:,+@%").find(c) != absl::string_view::npos;
  };
  if (!word.empty() && std::all_of(word.begin(), word.end(), plain)) return word;
  return "'" + absl::StrReplaceAll(word, {{"'", "'\\''"}}) + "'";
}

bool is_optimized() {
#ifdef NDEBUG
  return true;
#else
  return false;
#endif
}

std::string describe_build() {
  std::string text = "LibTorch " TORCH_VERSION;
  text += is_optimized() ? ", built with optimization" : ", built without optimization";
#if GPIPE_TORCH_HAS_CUDA
  text += ", with CUDA";
#else
  text += ", without CUDA";
#endif
  return text;
}

}  // namespace gpipe::command
