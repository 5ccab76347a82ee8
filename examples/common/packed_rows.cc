#include "examples/common/packed_rows.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

namespace examples {
namespace {

// The number of rows that are open at a time. More rows mean less padding, but also a less random
// order.
constexpr size_t kOpenRows = 16;

}  // namespace

PackedRows::PackedRows(std::vector<int64_t> lengths, int64_t length, int64_t padding, bool packed,
                       uint64_t seed, Fill fill)
    : lengths_(std::move(lengths)),
      length_(length),
      padding_(padding),
      packed_(packed),
      seed_(seed),
      fill_(std::move(fill)) {
  TORCH_CHECK_VALUE(!lengths_.empty(), "there is no text to make rows of");
  for (const int64_t tokens : lengths_) {
    TORCH_CHECK_VALUE(tokens <= length, "a text of ", tokens, " tokens is longer than a row of ",
                      length, "; cut it, or make longer rows");
  }
  std::vector<int64_t> order(lengths_.size());
  std::iota(order.begin(), order.end(), 0);
  in_order_ = pack(order);
}

// Puts each piece into the fullest open row that has room for the piece.
std::vector<PackedRows::Row> PackedRows::pack(const std::vector<int64_t>& order) const {
  struct Open {
    Row row;
    int64_t room;
  };
  std::vector<Row> rows;
  std::vector<Open> open;  // the fullest first
  for (const int64_t number : order) {
    const int64_t tokens = lengths_[static_cast<size_t>(number)];
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
      at::randperm(static_cast<int64_t>(lengths_.size()), generator, at::TensorOptions(at::kLong));
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
  TORCH_CHECK_INDEX(0 <= first && 0 < rows && rows <= validation_rows() - first, "validation rows ",
                    first, " to ", first + rows - 1, " were asked for, but there are ",
                    validation_rows(), ", which count from 0");
  return batch({in_order_.begin() + first, in_order_.begin() + first + rows});
}

Batch PackedRows::batch(const std::vector<Row>& rows) const {
  const auto count = static_cast<int64_t>(rows.size());
  Batch batch;
  batch.ids = at::full({count, length_}, padding_, at::kLong);
  batch.documents = at::empty({count, length_}, at::kLong);
  batch.targets = at::full({count, length_}, kIgnored, at::kLong);
  auto* id = batch.ids.mutable_data_ptr<int64_t>();
  auto* document = batch.documents.mutable_data_ptr<int64_t>();
  auto* target = batch.targets.mutable_data_ptr<int64_t>();
  for (const Row& row : rows) {
    int64_t used = 0, in_row = 0;
    for (const int64_t number : row) {
      const int64_t end = used + lengths_[static_cast<size_t>(number)];
      fill_(number, id + used, target + used);
      std::fill(document + used, document + end, in_row++);
      used = end;
    }
    std::fill(document + used, document + length_, in_row);
    batch.tokens += length_ - std::count(target, target + length_, kIgnored);
    id += length_;
    document += length_;
    target += length_;
  }
  return batch;
}

}  // namespace examples
