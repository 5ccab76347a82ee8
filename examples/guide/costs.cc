// The program of chapter 35: what each feature costs.

#include <torch/torch.h>

#include <iomanip>
#include <iostream>
#include <string>
#include <vector>

#include "examples/guide/guide.h"
#include "gpipe/gpipe.h"
#include "gpipe/timeline/timeline.h"
#include "gpipe/timing.h"

namespace {

namespace nn = torch::nn;

// Eight blocks of a convolution, a batch norm and a ReLU.
nn::Sequential make_model() {
  torch::manual_seed(0);
  nn::Sequential model;
  for (int64_t k = 0; k < 8; ++k) {
    model->push_back(nn::Conv2d(nn::Conv2dOptions(k == 0 ? 3 : 16, 16, 3).padding(1).bias(false)));
    model->push_back(nn::BatchNorm2d(16));
    model->push_back(nn::ReLU());
  }
  return model;
}

torch::Tensor loss_fn(const gpipe::Tensors& outputs, const gpipe::Tensors& /*targets*/) {
  return outputs.at(0).square().mean();
}

struct Feature {
  std::string name;
  gpipe::GPipeOptions options;
  gpipe::StepOptions step;
};

gpipe::GPipeOptions plain_options() {
  return gpipe::GPipeOptions({12, 12})
      .chunks(4)
      .checkpoint(gpipe::Checkpoint::kNever)
      .cpu_threads_per_stage(1);
}

// The features whose cost is measured. The feature with an observer writes to `timeline`.
std::vector<Feature> features(gpipe::Timeline& timeline) {
  return {
      {"check_finite", plain_options(), gpipe::StepOptions().check_finite(true)},
      {"on_event, a timeline", plain_options(), gpipe::StepOptions().on_event(timeline.observer())},
      {"keep_outputs", plain_options(), gpipe::StepOptions().keep_outputs(true)},
      {"groups(4)", plain_options().groups(4), {}},
      {"deferred_batch_norm", plain_options().deferred_batch_norm(true), {}},
      {"checkpoint, kAlways", plain_options().checkpoint(gpipe::Checkpoint::kAlways), {}},
  };
}

// The cost of a feature: the median of the ratios of a step's time with the feature and without it.
// The steps take turns. The first step of each does not count.
double cost(const Feature& feature, const torch::Tensor& input, int64_t pairs) {
  gpipe::GPipe with(make_model(), feature.options);
  gpipe::GPipe without(make_model(), plain_options());
  const auto seconds = [&input](gpipe::GPipe& pipe, const gpipe::StepOptions& options) {
    return gpipe::seconds_of([&] { pipe->step({input}, {}, loss_fn, options); });
  };
  std::vector<double> ratios;
  for (int64_t k = 0; k <= pairs; ++k) {
    const double ratio = seconds(with, feature.step) / seconds(without, {});
    if (k > 0) ratios.push_back(ratio);
  }
  guide::expect(
      torch::allclose(with->parameters()[0].grad(), without->parameters()[0].grad(), 1e-4, 1e-7),
      feature.name + " computes the same gradients");
  return gpipe::median(ratios);
}

const guide::Chapter kCosts("35", [] {
  gpipe::Timeline timeline;
  const torch::Tensor input = torch::rand({8, 3, 8, 8});
  for (const Feature& feature : features(timeline)) {
    guide::expect(cost(feature, input, 1) > 0, "a step takes time");
  }
  guide::expect(timeline.steps().size() == 2, "the timeline has both steps");
});

const guide::Answer kTable(
    "35.table",
    [](std::ostream& out) {
      gpipe::Timeline timeline;
      const torch::Tensor input = torch::rand({16, 3, 64, 64});
      for (const Feature& feature : features(timeline)) {
        out << std::left << std::setw(22) << feature.name << std::fixed << std::setprecision(2)
            << cost(feature, input, 15) << "\n";
      }
    },
    guide::Answer::Kind::kMeasured);

}  // namespace
