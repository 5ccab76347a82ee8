#include "examples/language_model/documents.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace language_model {
namespace {

// How many rows are open at a time. More rows mean less padding, but also a less random order.
constexpr size_t kOpenRows = 16;

int64_t token(const Piece& piece, int64_t place) {
  const int64_t index = piece.begin + place - 1;
  const bool is_byte = index >= 0 && index < static_cast<int64_t>(piece.document.size());
  return is_byte ? static_cast<unsigned char>(piece.document[static_cast<size_t>(index)]) : kEnd;
}

// Removes the next document from the text, with what separates it from the next one, and returns it
// with its end.
std::string_view take(std::string_view& text, Documents documents) {
  const std::string_view separator = documents == Documents::kLines ? "\n" : "\n\n";
  const size_t newline = text.find(separator);
  const size_t size = newline == std::string_view::npos ? text.size() : newline + 1;
  const std::string_view document = text.substr(0, size);
  text.remove_prefix(size);
  text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
  return document;
}

}  // namespace

std::vector<std::string_view> split(std::string_view text, Documents documents) {
  std::vector<std::string_view> result;
  text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
  while (!text.empty()) result.push_back(take(text, documents));
  return result;
}

std::vector<Piece> cut(const std::vector<std::string_view>& documents, int64_t length) {
  std::vector<Piece> pieces;
  for (const std::string_view document : documents) {
    // Each byte, and the end after them, must be predicted once.
    const auto tokens = static_cast<int64_t>(document.size()) + 1;
    for (int64_t begin = 0; begin < tokens; begin += length) {
      pieces.push_back({document, begin, std::min(length, tokens - begin)});
    }
  }
  return pieces;
}

PackedRows::PackedRows(std::vector<Piece> pieces, int64_t length, bool packed, uint64_t seed)
    : pieces_(std::move(pieces)), length_(length), packed_(packed), seed_(seed) {
  TORCH_CHECK_VALUE(!pieces_.empty(), "there is no text to make rows of");
  for (const Piece& piece : pieces_) {
    TORCH_CHECK_VALUE(piece.tokens <= length, "a piece of ", piece.tokens,
                      " tokens is longer than a row of ", length);
  }
  std::vector<int64_t> order(pieces_.size());
  std::iota(order.begin(), order.end(), 0);
  in_order_ = pack(order);
}

// Each piece goes to the fullest open row that has room for it.
std::vector<PackedRows::Row> PackedRows::pack(const std::vector<int64_t>& order) const {
  struct Open {
    Row row;
    int64_t room;
  };
  std::vector<Row> rows;
  std::vector<Open> open;  // the fullest first
  for (const int64_t number : order) {
    const int64_t tokens = pieces_[static_cast<size_t>(number)].tokens;
    auto place = open.end();
    if (packed_) {
      place = std::find_if(open.begin(), open.end(),
                           [&](const Open& row) { return row.room >= tokens; });
    }
    if (place == open.end()) {
      if (open.size() == (packed_ ? kOpenRows : 1)) {
        rows.push_back(std::move(open.front().row));
        open.erase(open.begin());
      }
      place = open.insert(open.end(), {{}, length_});
    }
    place->row.push_back(number);
    place->room -= tokens;
    const auto fuller =
        std::find_if(open.begin(), place, [&](const Open& row) { return row.room > place->room; });
    std::rotate(fuller, place, place + 1);
  }
  for (Open& row : open) rows.push_back(std::move(row.row));
  return rows;
}

std::vector<PackedRows::Row> PackedRows::epoch(int64_t number) const {
  const at::Generator generator =
      at::detail::createCPUGenerator(seed_ + static_cast<uint64_t>(number));
  const at::Tensor drawn =
      at::randperm(static_cast<int64_t>(pieces_.size()), generator, at::TensorOptions(at::kLong));
  const auto* order = drawn.const_data_ptr<int64_t>();
  return pack({order, order + drawn.numel()});
}

void PackedRows::load_epoch_of(int64_t row) {
  if (row < begin_) {
    epoch_ = -1;
    begin_ = 0;
    rows_.clear();
  }
  while (row >= begin_ + static_cast<int64_t>(rows_.size())) {
    begin_ += static_cast<int64_t>(rows_.size());
    rows_ = epoch(++epoch_);
  }
}

int64_t PackedRows::left_in_epoch(int64_t first) {
  load_epoch_of(first);
  return begin_ + static_cast<int64_t>(rows_.size()) - first;
}

Batch PackedRows::training(int64_t first, int64_t rows) {
  std::vector<Row> chosen;
  for (int64_t row = first; row < first + rows; ++row) {
    load_epoch_of(row);
    chosen.push_back(rows_[static_cast<size_t>(row - begin_)]);
  }
  return batch(chosen);
}

Batch PackedRows::validation(int64_t first, int64_t rows) const {
  TORCH_CHECK_INDEX(0 <= first && 0 < rows && rows <= validation_rows() - first, "rows ", first,
                    " to ", first + rows - 1, " of ", validation_rows());
  return batch({in_order_.begin() + first, in_order_.begin() + first + rows});
}

Batch PackedRows::batch(const std::vector<Row>& rows) const {
  const auto count = static_cast<int64_t>(rows.size());
  Batch batch;
  batch.ids = at::full({count, length_}, kEnd, at::kLong);
  batch.documents = at::empty({count, length_}, at::kLong);
  batch.targets = at::full({count, length_}, kIgnored, at::kLong);
  auto* id = batch.ids.mutable_data_ptr<int64_t>();
  auto* document = batch.documents.mutable_data_ptr<int64_t>();
  auto* target = batch.targets.mutable_data_ptr<int64_t>();
  for (const Row& row : rows) {
    int64_t used = 0, in_row = 0;
    for (const int64_t number : row) {
      const Piece& piece = pieces_[static_cast<size_t>(number)];
      for (int64_t k = 0; k < piece.tokens; ++k) {
        id[used + k] = token(piece, k);
        document[used + k] = in_row;
        target[used + k] = token(piece, k + 1);
      }
      used += piece.tokens;
      ++in_row;
    }
    std::fill(document + used, document + length_, in_row);
    batch.tokens += used;
    id += length_;
    document += length_;
    target += length_;
  }
  return batch;
}

}  // namespace language_model
