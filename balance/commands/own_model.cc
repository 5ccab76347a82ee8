#include "balance/commands/own_model.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <cstddef>
#include <filesystem>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gpipe/batch_size.h"
#include "text/shown.h"

namespace gpipe::balance {
namespace {

int64_t rows_of(const Tensors& tensors, const char* what, const std::vector<int64_t>& shared) {
  try {
    return batch_size(tensors, what, shared);
  } catch (const c10::ValueError& error) {
    throw std::invalid_argument(
        absl::StrCat("make_model's Training::", what, "s: ", error.what_without_backtrace()));
  }
}

void check(const Training& training) {
  if (!training.make) {
    throw std::invalid_argument(
        "make_model gives no model: set Training::make to a function that makes one, a "
        "torch::nn::Sequential");
  }
  const int64_t rows = rows_of(training.inputs, "input", training.shared_inputs);
  if (rows < 1) {
    throw std::invalid_argument(
        "make_model's Training::inputs have no rows: give a mini-batch, as GPipe::step takes it");
  }
  bool has_targets = false;
  for (const at::Tensor& target : training.targets) has_targets |= target.defined();
  if (!has_targets) return;
  const int64_t targets = rows_of(training.targets, "target", /*shared=*/{});
  if (targets != rows) {
    throw std::invalid_argument(absl::StrCat("make_model's Training::inputs have ", rows,
                                             " rows, but its targets ", targets,
                                             ": give both as many"));
  }
}

// Cuts or repeats the sample to `rows` rows. Without `rows`, copies the sample as it is.
at::Tensor with_rows(const at::Tensor& sample, std::optional<int64_t> rows, c10::Device device) {
  if (!sample.defined()) return sample;
  std::vector<int64_t> shape = sample.sizes().vec();
  if (rows) shape[0] = *rows;
  at::Tensor result;
  if (device.is_meta()) {
    result = at::empty(shape, sample.options().device(device).requires_grad(false));
  } else if (sample.is_meta()) {
    throw std::invalid_argument(
        "make_model's Training has tensors on the meta device, which have no values to measure "
        "with: make them with torch::rand, torch::randint or torch::zeros, say, and outside of a "
        "MetaScope");
  } else if (!rows) {
    result = sample.detach().to(device, sample.scalar_type(), /*non_blocking=*/false,
                                /*copy=*/true);
  } else {
    const at::Tensor indices =
        at::arange(*rows, at::TensorOptions(at::kLong).device(sample.device())) % sample.size(0);
    // The result keeps the sample's memory format, because the kernels of a layer depend on it:
    // images may be channels-last.
    result = sample.detach()
                 .index_select(0, indices)
                 .to(device)
                 .contiguous(sample.suggest_memory_format());
  }
  return result.set_requires_grad(sample.requires_grad());
}

MakeRows maker(const Tensors& sample, const std::vector<int64_t>& shared) {
  return [sample, shared](int64_t rows, c10::Device device) {
    Tensors tensors;
    for (size_t k = 0; k < sample.size(); ++k) {
      tensors.push_back(
          with_rows(sample[k], is_shared(shared, k) ? std::nullopt : std::optional(rows), device));
    }
    return tensors;
  };
}

}  // namespace

CommandModel own_model(const Training& training, std::optional<int64_t> batch) {
  check(training);
  CommandModel model;
  model.name = training.name;
  model.saved_name = training.name;
  model.given = absl::StrCat("the program's model ", text::shown(training.name));
  model.make = training.make;
  model.inputs = maker(training.inputs, training.shared_inputs);
  model.targets = maker(training.targets, /*shared=*/{});
  model.loss = training.loss ? training.loss : LossFn(sum_of_first_output);
  model.shared_inputs = training.shared_inputs;
  model.batch = batch;
  model.default_batch = rows_of(training.inputs, "input", training.shared_inputs);
  return model;
}

CommandFace own_face(const std::string& program, std::string examples, MakeTraining make_model,
                     bool note_loss) {
  const std::string name = std::filesystem::path(program).filename().string();
  absl::StrReplaceAll({{"PROGRAM", name.empty() ? "PROGRAM" : name}}, &examples);
  CommandFace face;
  face.examples = std::move(examples);
  for (const char* flag : {"model", "image_size", "tied", "lora", "family", "step"}) {
    face.flags.absent(
        flag,
        "this program is for one model, which is built into it (the zoo's networks have commands "
        "of their own)");
  }
  const auto batch = std::make_shared<std::optional<int64_t>>();
  face.flags.add("batch", *batch, 1, kMostRows,
                 "Rows of a mini-batch: the rows of the program's sample are cut or repeated. "
                 "Default: those of the sample.");
  face.profiling = "balance_main";
  face.find_model = [make_model = std::move(make_model), note_loss, batch](const std::string&) {
    const Training training = make_model();
    CommandModel model = own_model(training, *batch);
    if (note_loss && !training.loss) {
      std::cerr << "make_model gives no loss (Training::loss): planned for the sum of the first "
                   "output"
                << std::endl;
    }
    return model;
  };
  return face;
}

}  // namespace gpipe::balance
