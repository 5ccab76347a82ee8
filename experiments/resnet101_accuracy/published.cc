#include "experiments/resnet101_accuracy/published.h"

#include <optional>

namespace gpipe::experiments {
namespace {

constexpr char kError[] = "top1_error_percent";
constexpr char kThroughput[] = "throughput";
constexpr char kSpeedUp[] = "speed_up";
constexpr char kPublished[] = "published";
constexpr char kReference[] = "dataparallel-256";

struct PublishedRow {
  const char* experiment;
  const char* error;  // empty: not published
  const char* throughput;
  const char* speed_up;
  const char* no_counterpart;  // why there is nothing to run; empty if there is
};

// torchgpipe, benchmarks/resnet101-accuracy, v0.0.7; its rows reference-* are of Goyal et al.
constexpr PublishedRow kRows[] = {
    {"reference-256", "22.08±0.06", "", "", "Goyal et al., batch 256 on 8 GPUs"},
    {"reference-8k", "22.36±0.09", "", "", "Goyal et al., batch 8K on 256 GPUs"},
    {"naive-128", "", "", "", ""},
    {"dataparallel-256", "22.02±0.11", "180.344", "1", ""},
    {"dataparallel-1k", "22.04±0.24", "606.916", "3.365", ""},
    {"dataparallel-4k", "out of memory", "", "", "did not fit 8 GPUs; no configuration published"},
    {"pipeline-256", "21.99±0.13", "117.432", "0.651", ""},
    {"pipeline-1k", "22.24±0.19", "294.739", "1.634", ""},
    {"pipeline-4k", "22.13±0.09", "378.746", "2.100", ""},
};

Figure figure(std::optional<double> ours, const char* published) {
  Figure figure;
  figure.ours = ours;
  if (*published != '\0') figure.published[kPublished] = published;
  return figure;
}

}  // namespace

Report make_report(const std::map<std::string, Outcome>& outcomes, const std::string& not_asked) {
  Report report("ResNet-101 accuracy: ours beside torchgpipe's",
                {{kError, "top-1 error (%)", 2, {kPublished}},
                 {kThroughput, "images/s", 1, {kPublished}},
                 {kSpeedUp, "speed-up", 3, {kPublished}}});
  const auto reference = outcomes.find(kReference);
  for (const PublishedRow& published : kRows) {
    Row row;
    row.experiment = published.experiment;
    std::optional<double> error;
    std::optional<double> throughput;
    std::optional<double> speed_up;
    const auto outcome = outcomes.find(published.experiment);
    if (*published.no_counterpart != '\0') {
      row.origin = Origin::kPublished;
      row.note = published.no_counterpart;
    } else if (outcome == outcomes.end()) {
      row.note = not_asked;
    } else {
      row.note = outcome->second.note;
      row.settings = outcome->second.settings;
      if (outcome->second.measured) {
        row.origin = Origin::kMeasured;
        error = outcome->second.top1_error_percent;
        throughput = outcome->second.throughput;
        if (reference != outcomes.end() && reference->second.measured) {
          speed_up = *throughput / reference->second.throughput;
        }
      }
    }
    row.figures[kError] = figure(error, published.error);
    row.figures[kThroughput] = figure(throughput, published.throughput);
    row.figures[kSpeedUp] = figure(speed_up, published.speed_up);
    report.add(std::move(row));
  }
  return report;
}

}  // namespace gpipe::experiments
