#include "experiments/rivals/fill.h"

#include <ATen/ops/empty.h>

#include <vector>

#include "models/hash_fill.h"

namespace gpipe::experiments {
namespace {

constexpr uint32_t kInput = 2000000;
constexpr uint32_t kTarget = 2000001;

at::Tensor unit_values(uint32_t k, std::vector<int64_t> shape) {
  const at::Tensor tensor = at::empty(shape, at::kFloat);
  models::overwrite(tensor, [k](int64_t i) {
    return 0.5 + 0.5 * models::hash_value(k, static_cast<uint32_t>(i));
  });
  return tensor;
}

// The ids are computed in double, which is exact, so that programs in other languages get the same.
at::Tensor token_ids(uint32_t k, int64_t words, std::vector<int64_t> shape) {
  const at::Tensor tensor = at::empty(shape, at::kLong);
  int64_t* const data = tensor.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    const double unit = 0.5 + 0.5 * models::hash_value(k, static_cast<uint32_t>(i));
    data[i] = static_cast<int64_t>(unit * static_cast<double>(words));
  }
  return tensor;
}

}  // namespace

at::Tensor filled_input(const models::NamedModel& model, int64_t rows) {
  std::vector<int64_t> shape = model.row;
  shape.insert(shape.begin(), rows);
  return model.takes_tokens ? token_ids(kInput, model.classes, shape) : unit_values(kInput, shape);
}

at::Tensor filled_target(const models::NamedModel& model, int64_t rows) {
  if (model.takes_tokens) return token_ids(kTarget, model.classes, {rows, model.row[0]});
  if (model.loss == models::Loss::kBinaryCrossEntropyWithLogits) {
    return unit_values(kTarget, {rows, 1, model.row[1], model.row[2]});
  }
  const at::Tensor labels = at::empty({rows}, at::kLong);
  for (int64_t i = 0; i < rows; ++i) labels.mutable_data_ptr<int64_t>()[i] = 7 * i % 1000;
  return labels;
}

}  // namespace gpipe::experiments
