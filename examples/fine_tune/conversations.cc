#include "examples/fine_tune/conversations.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cstddef>
#include <stdexcept>

#include "absl/strings/str_cat.h"
#include "command/files.h"
#include "examples/common/bits.h"
#include "safetensors/safetensors.h"

namespace fine_tune {
namespace {

using gpipe::safetensors::File;

[[noreturn]] void refuse(const File& file, const std::string& reason) {
  throw std::runtime_error(absl::StrCat("cannot use ", file.path(), ": ", reason));
}

// Reads a tensor of the file, which must be a vector of whole numbers.
at::Tensor read(const File& file, const std::string& name) {
  const auto found = file.header().tensors.find(name);
  if (found == file.header().tensors.end()) {
    refuse(file, absl::StrCat("it has no tensor '", name,
                              "'; it must have ids, mask and offsets, as prepare.py writes them"));
  }
  const auto& [type, shape] = std::pair(found->second.type, found->second.shape);
  if (shape.size() != 1 || !(type == "I32" || type == "I64" || type == "U8" || type == "BOOL")) {
    refuse(file, absl::StrCat("'", name, "' is of the type ", type, " and has ", shape.size(),
                              " dimensions; it must be one row of whole numbers"));
  }
  return file.read(name).to(at::kLong);
}

void check_offsets(const File& file, const at::Tensor& offsets, int64_t tokens) {
  const auto* const at = offsets.const_data_ptr<int64_t>();
  const int64_t count = offsets.numel();
  if (count < 2 || at[0] != 0 || at[count - 1] != tokens) {
    refuse(file, absl::StrCat("'offsets' must begin with 0 and end with the ", tokens,
                              " tokens of 'ids', got ", count, " numbers",
                              count < 1 ? "" : absl::StrCat(", ", at[0], " to ", at[count - 1])));
  }
  for (int64_t k = 1; k < count; ++k) {
    if (at[k] >= at[k - 1]) continue;
    refuse(file, absl::StrCat("'offsets' must not fall: ", at[k - 1], " is followed by ", at[k],
                              " (conversation ", k - 1, ")"));
  }
}

void check_ids(const File& file, const at::Tensor& ids, int64_t vocabulary) {
  const auto* const begin = ids.const_data_ptr<int64_t>();
  const auto* const end = begin + ids.numel();
  const auto* const wrong =
      std::find_if(begin, end, [&](int64_t id) { return id < 0 || id >= vocabulary; });
  if (wrong == end) return;
  refuse(file,
         absl::StrCat("token ", wrong - begin, " has the id ", *wrong, ", the model has ",
                      vocabulary, " (vocab_size): prepare it with the model's own tokenizer"));
}

}  // namespace

Conversations::Conversations(const std::string& path, int64_t vocabulary, int64_t length) {
  const File file(path);
  ids_ = read(file, "ids");
  const at::Tensor mask = read(file, "mask"), offsets = read(file, "offsets");
  if (mask.numel() != ids_.numel()) {
    refuse(file, absl::StrCat("'ids' has ", ids_.numel(), " tokens and 'mask' ", mask.numel(),
                              "; it must have one number for each"));
  }
  check_offsets(file, offsets, ids_.numel());
  check_ids(file, ids_, vocabulary);
  mask_ = mask.ne(0);
  const auto* const learned = mask_.const_data_ptr<bool>();
  const auto* const at = offsets.const_data_ptr<int64_t>();
  for (int64_t k = 0; k + 1 < offsets.numel(); ++k) {
    const int64_t begin = at[k], all = at[k + 1] - begin;
    if (all > length + 1) ++shortened_;
    const int64_t used = std::min(all, length + 1);
    // A conversation's first token is not learned, because no token stands before it.
    const int64_t answers =
        used < 2 ? 0 : std::count(learned + begin + 1, learned + begin + used, true);
    if (answers == 0) {
      ++left_out_;
      continue;
    }
    answer_tokens_ += answers;
    pieces_.push_back({begin, used - 1});
  }
  if (pieces_.empty()) {
    refuse(file, absl::StrCat("there is no answer to learn: 'mask' is 0 for all tokens of the ",
                              offsets.numel() - 1, " conversations, or for the first ", length + 1,
                              " of each (--length)"));
  }
  made_by_ = file.header().metadata;
  content_ = examples::content_of(gpipe::command::read_file(path));
}

int64_t Conversations::longer_than(int64_t tokens) const {
  return std::count_if(pieces_.begin(), pieces_.end(),
                       [&](const Piece& piece) { return piece.tokens > tokens; });
}

examples::PackedRows Conversations::rows(int64_t length, bool packed, uint64_t seed) const {
  std::vector<int64_t> lengths;
  for (const Piece& piece : pieces_) lengths.push_back(piece.tokens);
  return examples::PackedRows(std::move(lengths), length, /*padding=*/0, packed, seed,
                              [ids = ids_, mask = mask_, pieces = pieces_](
                                  int64_t number, int64_t* to_ids, int64_t* targets) {
                                const Piece& piece = pieces[static_cast<size_t>(number)];
                                const auto* const id = ids.const_data_ptr<int64_t>() + piece.begin;
                                const auto* const learned =
                                    mask.const_data_ptr<bool>() + piece.begin;
                                std::copy(id, id + piece.tokens, to_ids);
                                for (int64_t k = 0; k < piece.tokens; ++k) {
                                  targets[k] = learned[k + 1] ? id[k + 1] : examples::kIgnored;
                                }
                              });
}

}  // namespace fine_tune
