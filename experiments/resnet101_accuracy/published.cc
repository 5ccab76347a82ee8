#include "experiments/resnet101_accuracy/published.h"

#include <string>

namespace gpipe::experiments {
namespace {

struct Figures {
  const char* experiment;
  const char* error;  // empty: not published
  const char* throughput;
  const char* speed_up;
  const char* no_counterpart;  // why there is nothing to run; empty if there is
};

// The figures of torchgpipe's benchmarks/resnet101-accuracy, v0.0.7.
constexpr Figures kRows[] = {
    {"naive-128", "", "", "", ""},
    {"dataparallel-256", "22.02±0.11", "180.344", "1", ""},
    {"dataparallel-1k", "22.04±0.24", "606.916", "3.365", ""},
    {"dataparallel-4k", "out of memory", "", "", "did not fit 8 GPUs; no configuration published"},
    {"pipeline-256", "21.99±0.13", "117.432", "0.651", ""},
    {"pipeline-1k", "22.24±0.19", "294.739", "1.634", ""},
    {"pipeline-4k", "22.13±0.09", "378.746", "2.100", ""},
};

// The figures of Goyal et al., "Accurate, Large Minibatch SGD", 2017. torchgpipe's table shows them
// beside its own rows.
constexpr char kGoyal[] = "Goyal et al.";
struct Reference {
  const char* experiment;
  const char* error;
  const char* setting;
};
constexpr Reference kReferences[] = {
    {"reference-256", "22.08±0.06", "Goyal et al., batch 256 on 8 GPUs"},
    {"reference-8k", "22.36±0.09", "Goyal et al., batch 8K on 256 GPUs"},
};

}  // namespace

PublishedTable published_accuracy() {
  PublishedTable table;
  table.title = "ResNet-101 accuracy: ours beside torchgpipe's";
  table.columns = {{"top1_error_percent", "top-1 error (%)", {"torchgpipe", kGoyal}},
                   {"throughput", "images/s", {"torchgpipe"}},
                   {"speed_up", "speed-up", {"torchgpipe"}}};
  for (const Reference& reference : kReferences) {
    PublishedRow row;
    row.experiment = reference.experiment;
    row.no_counterpart = reference.setting;
    row.figures["top1_error_percent"][kGoyal] = reference.error;
    table.rows.push_back(row);
  }
  for (const Figures& figures : kRows) {
    PublishedRow row;
    row.experiment = figures.experiment;
    row.no_counterpart = figures.no_counterpart;
    const auto add = [&row](const char* key, const std::string& text) {
      if (!text.empty()) row.figures[key]["torchgpipe"] = text;
    };
    add("top1_error_percent", figures.error);
    add("throughput", figures.throughput);
    add("speed_up", figures.speed_up);
    table.rows.push_back(row);
  }
  table.ratio = "speed_up";
  table.ratio_of = "throughput";
  table.reference = "dataparallel-256";
  return table;
}

}  // namespace gpipe::experiments
