#include "balance/costs/check_rows.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/nn/modules/batchnorm.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <optional>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "balance/costs/model_guard.h"
#include "gpipe/batch_size.h"
#include "gpipe/internal/layer_runs/layer_runs.h"
#include "gpipe/internal/model/layer.h"
#include "gpipe/internal/tensors/value.h"
#include "skip/layout.h"
#include "skip/tracker.h"
#include "text/exception_text.h"
#include "text/shown.h"

namespace gpipe::balance {
namespace {

using internal::Layer;
using internal::Value;
using internal::ValueKind;

template <typename Norm>
bool takes_statistics(const torch::nn::Module& module) {
  const auto* const norm = dynamic_cast<const Norm*>(&module);
  return norm != nullptr && (norm->is_training() || !norm->options.track_running_stats());
}

bool takes_statistics(const torch::nn::Module& layer) {
  const auto modules = layer.modules();
  return std::any_of(modules.begin(), modules.end(), [](const auto& module) {
    return takes_statistics<torch::nn::BatchNorm1dImpl>(*module) ||
           takes_statistics<torch::nn::BatchNorm2dImpl>(*module) ||
           takes_statistics<torch::nn::BatchNorm3dImpl>(*module);
  });
}

struct Part {
  int64_t begin, end;
};

std::string rows_text(const Part& part, int64_t rows) {
  return part.end - part.begin == rows
             ? absl::StrCat("all ", rows, " rows")
             : absl::StrCat("rows ", part.begin, " to ", part.end - 1, " of ", rows);
}

// The generators that layers on this device draw from, and their states.
class Generators {
 public:
  explicit Generators(c10::Device device) : generators_{at::detail::getDefaultCPUGenerator()} {
    if (device.is_cuda()) generators_.push_back(at::globalContext().defaultGenerator(device));
    for (at::Generator& generator : generators_) states_.push_back(generator.get_state());
  }
  void restore() {
    for (size_t k = 0; k < generators_.size(); ++k) generators_[k].set_state(states_[k]);
  }
  bool have_changed() {
    for (size_t k = 0; k < generators_.size(); ++k) {
      if (!at::equal(generators_[k].get_state(), states_[k])) return true;
    }
    return false;
  }

 private:
  std::vector<at::Generator> generators_;
  std::vector<at::Tensor> states_;
};

// What a piece of the model (LayerRuns) takes or gives: its value, and the skips by number.
struct Passed {
  Value value;
  std::vector<at::Tensor> skips;

  std::vector<at::Tensor> all() const {
    std::vector<at::Tensor> tensors = value.tensors;
    tensors.insert(tensors.end(), skips.begin(), skips.end());
    return tensors;
  }
};

class Checker {
 public:
  Checker(torch::nn::Sequential model, const Tensors& inputs, const std::vector<int64_t>& shared)
      : rows_(batch_size(inputs, "input", shared)),
        pieces_(internal::pieces_of(model)),
        edges_(skip::Layout::inspect(model, pieces_).edges()),
        layers_(internal::partitions_of(model, {static_cast<int64_t>(model->size())}).at(0)),
        device_(device_of(inputs)),
        guard_(*model, device_) {
    TORCH_CHECK_VALUE(rows_ >= 2, "check_rows was given a mini-batch of ", rows_,
                      " rows; give at least 2, so that it can be cut");
    for (const Layer& layer : layers_) norms_.push_back(takes_statistics(*layer.module.ptr()));
    model->eval();
    std::vector<at::Tensor> tensors;
    for (size_t k = 0; k < inputs.size(); ++k) {
      // Each input is copied, so that no two have the same memory: shared inputs are recognized by
      // their memory later.
      tensors.push_back(inputs[k].defined() ? inputs[k].detach().clone() : inputs[k]);
      if (inputs[k].defined() && is_shared(shared, k)) shared_.insert(memory_of(tensors.back()));
    }
    const ValueKind kind = internal::argument_kind(layers_[0].module).value_or(ValueKind::kTensor);
    value_ = internal::shape_as(kind, std::move(tensors), "the model's first layer");
  }

  std::vector<RowProblem> run() {
    const c10::AutoGradMode grad_mode(true);  // a layer may ask for gradients in its forward
    int64_t first = 0;
    for (const int64_t size : pieces_) {
      if (!run_piece(first, first + size)) break;
      first += size;
    }
    return std::move(problems_);
  }

 private:
  static c10::Device device_of(const Tensors& inputs) {
    for (const at::Tensor& input : inputs) {
      if (input.defined()) return input.device();
    }
    return c10::kCPU;
  }
  static const void* memory_of(const at::Tensor& tensor) {
    return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
  }
  bool is_whole(const at::Tensor& tensor) const {
    return !tensor.defined() || shared_.count(memory_of(tensor)) != 0;
  }

  // Returns the rows of `part` as a copy, because a layer may change them in place. A shared tensor
  // is returned as a whole.
  at::Tensor part_of(const at::Tensor& tensor, const Part& part) const {
    if (is_whole(tensor)) return tensor;
    return tensor.narrow(0, part.begin, part.end - part.begin).detach().clone();
  }

  Passed call(int64_t first, int64_t last, const Passed& given, const Part& part) {
    skip::Tracker tracker;
    const skip::TrackerScope scope(tracker);
    Value own{given.value.kind, {}};
    for (const at::Tensor& tensor : given.value.tensors) {
      own.tensors.push_back(part_of(tensor, part));
    }
    for (size_t k = 0; k < edges_.size(); ++k) {
      if (is_popped(edges_[k], first, last)) {
        tracker.stash(edges_[k].key, part_of(given.skips[k], part));
      }
    }
    torch::nn::AnyValue value = internal::to_any(std::move(own));
    for (int64_t k = first; k < last; ++k) {
      value = layers_[static_cast<size_t>(k)].module.any_forward(std::move(value));
    }
    Passed result{internal::from_any(std::move(value)), std::vector<at::Tensor>(edges_.size())};
    for (size_t k = 0; k < edges_.size(); ++k) {
      if (is_stashed(edges_[k], first, last)) result.skips[k] = tracker.pop(edges_[k].key);
    }
    return result;
  }

  static bool is_popped(const skip::SkipEdge& edge, int64_t first, int64_t last) {
    return edge.source_layer < first && edge.target_layer >= first && edge.target_layer < last;
  }
  static bool is_stashed(const skip::SkipEdge& edge, int64_t first, int64_t last) {
    return edge.target_layer >= last && edge.source_layer >= first && edge.source_layer < last;
  }

  // Checks the layers from `first` to before `last`. Returns whether their outputs have the
  // mini-batch's rows; otherwise the next piece cannot be checked.
  bool run_piece(int64_t first, int64_t last) {
    const std::string name = internal::layer_text(layers_[static_cast<size_t>(last - 1)]);
    const auto add = [&](RowProblemKind kind, const std::string& what) {
      problems_.push_back({last - 1, kind, absl::StrCat(name, " ", what)});
    };
    const bool is_norm =
        std::any_of(norms_.begin() + first, norms_.begin() + last, [](bool norm) { return norm; });
    if (is_norm) {
      add(RowProblemKind::kBatchNorm,
          "has a batch norm that takes the statistics of the rows that it is given: in a pipeline, "
          "those of a micro-batch. Pipelines train so; GPipeOptions::deferred_batch_norm updates "
          "the running statistics once for each mini-batch");
    }
    const Passed given{value_, skips_};
    const Part all{0, rows_};
    Generators generators(device_);
    Passed whole;
    try {
      whole = call(first, last, given, all);
    } catch (const std::exception& error) {
      TORCH_CHECK_VALUE(false, "check_rows: ", name, " throws with ", rows_text(all, rows_), ": ",
                        text::shown(text::message_of(error)));
    }
    const bool compares = !generators.have_changed() && !is_norm;
    bool has_rows = true;
    const auto wrong_shape = [&](const at::Tensor& tensor, const Part& part) {
      if (is_whole(tensor)) return false;
      if (tensor.dim() > 0 && tensor.size(0) == part.end - part.begin) return false;
      add(RowProblemKind::kShape,
          absl::StrCat("returns, or stashes, a tensor of shape ", c10::str(tensor.sizes()), " for ",
                       rows_text(part, rows_),
                       ": dimension 0 must be the rows. Is a transpose missing, or are rows "
                       "reduced? The layers behind it were not checked"));
      return true;
    };
    const std::vector<at::Tensor> wholes = whole.all();
    for (const at::Tensor& tensor : wholes) {
      if (wrong_shape(tensor, all)) return false;
    }
    const int64_t middle = rows_ - rows_ / 2;
    for (const Part& part : {Part{0, middle}, Part{middle, rows_}}) {
      generators.restore();
      std::vector<at::Tensor> parts;
      try {
        parts = call(first, last, given, part).all();
      } catch (const std::exception& error) {
        add(RowProblemKind::kThrows,
            absl::StrCat("takes ", rows_text(all, rows_), " and throws with ",
                         rows_text(part, rows_), ": ", text::shown(text::message_of(error)),
                         ". Does it keep something of the size of the mini-batch, such as an "
                         "{N, N} mask? Make it from the input's sizes, or give it to the model as "
                         "an input (GPipeOptions::shared_inputs)"));
        break;
      }
      std::optional<std::string> differs;
      for (size_t k = 0; k < parts.size() && has_rows && !differs; ++k) {
        if (wrong_shape(parts[k], part)) has_rows = false;
        if (has_rows && compares) differs = difference(wholes[k], parts[k], part);
      }
      if (!has_rows) return false;
      if (differs) {
        add(RowProblemKind::kValues,
            absl::StrCat("gives ", *differs, " for ", rows_text(part, rows_),
                         " without the other rows. Does it take a mean, a softmax or a sort over "
                         "dimension 0, or use the number of rows? In a pipeline it is given "
                         "micro-batches: reduce over other dimensions, or in the loss function"));
        break;
      }
    }
    value_ = std::move(whole.value);
    for (size_t k = 0; k < skips_.size(); ++k) {
      if (whole.skips[k].defined()) skips_[k] = whole.skips[k];
    }
    return true;
  }

  std::optional<std::string> difference(const at::Tensor& whole, const at::Tensor& part,
                                        const Part& rows) const {
    if (!whole.defined() || !part.defined() || is_whole(whole) || whole.is_meta()) return {};
    const at::Tensor want = whole.narrow(0, rows.begin, rows.end - rows.begin).detach();
    const at::Tensor have = part.detach();
    if (want.sizes() != have.sizes()) {
      return absl::StrCat("shape ", c10::str(have.sizes()), " instead of ", c10::str(want.sizes()));
    }
    if (want.scalar_type() != have.scalar_type()) return std::string("values of another type");
    if (!want.is_floating_point() && !want.is_complex()) {
      if (at::equal(want, have)) return {};
      return std::string("other values");
    }
    const auto wide = [](const at::Tensor& tensor) {
      return (tensor.is_complex() ? at::view_as_real(tensor) : tensor).to(at::kDouble);
    };
    const at::Tensor a = wide(want), b = wide(have);
    const at::Tensor same = a.eq(b).logical_or(a.isnan().logical_and(b.isnan()));
    const at::Tensor gap = at::where(same, at::zeros_like(a), (a - b).abs());
    const at::Tensor size = at::where(a.isfinite(), a.abs(), at::zeros_like(a));
    if (gap.numel() == 0) return {};
    const double most = gap.max().item<double>();
    const double allowed = std::sqrt(precision_of(want.scalar_type())) * size.max().item<double>();
    if (most <= allowed) return {};  // false if only one of two values is NaN: `most` is NaN then
    return absl::StrCat("other values (they differ by ", most, ")");
  }

  static double precision_of(at::ScalarType type) {
    switch (at::toRealValueType(type)) {
      case at::kDouble:
        return std::numeric_limits<double>::epsilon();
      case at::kFloat:
        return std::numeric_limits<float>::epsilon();
      case at::kHalf:
        return std::ldexp(1.0, -10);
      default:  // bfloat16, and what has fewer bits
        return std::ldexp(1.0, -7);
    }
  }

  const int64_t rows_;
  const std::vector<int64_t> pieces_;
  const std::vector<skip::SkipEdge> edges_;
  std::vector<Layer> layers_;
  const c10::Device device_;
  const ModelGuard guard_;
  std::vector<bool> norms_;  // [layer] whether it takes its rows' statistics
  std::unordered_set<const void*> shared_;
  Value value_;  // what the next piece takes
  std::vector<at::Tensor> skips_ = std::vector<at::Tensor>(edges_.size());  // [edge]
  std::vector<RowProblem> problems_;
};

}  // namespace

std::vector<RowProblem> check_rows(const torch::nn::Sequential& model, const Tensors& inputs,
                                   const std::vector<int64_t>& shared_inputs) {
  return Checker(model, inputs, shared_inputs).run();
}

}  // namespace gpipe::balance
