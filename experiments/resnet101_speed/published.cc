#include "experiments/resnet101_speed/published.h"

namespace gpipe::experiments {

// torchgpipe, benchmarks/resnet101-speed, v0.0.7.
const std::vector<SpeedVariant>& speed_variants() {
  static const std::vector<SpeedVariant> variants = {
      {"baseline", 118, 1, {}},
      {"pipeline-1", 220, 2, {370}},
      {"pipeline-2", 25000, 1667, {135, 235}},
      {"pipeline-4", 5632, 256, {44, 92, 124, 110}},
      {"pipeline-8", 5400, 150, {26, 22, 33, 44, 44, 66, 66, 69}},
  };
  return variants;
}

// torchgpipe's documentation, "ResNet-101 Speed Benchmark", v0.0.5. Its column "Huang et al." is
// estimated from a figure of theirs.
PublishedTable published_speed() {
  PublishedTable table;
  table.title = "ResNet-101 speed: ours beside torchgpipe's and that of Huang et al.";
  table.columns = {{"throughput", "images/s", {"torchgpipe"}},
                   {"speed_up", "speed-up", {"torchgpipe", "Huang et al."}}};
  const auto add = [&table](const char* name, const char* throughput, const char* torchgpipe,
                            const char* huang) {
    table.rows.push_back({name,
                          {{"throughput", {{"torchgpipe", throughput}}},
                           {"speed_up", {{"torchgpipe", torchgpipe}, {"Huang et al.", huang}}}},
                          ""});
  };
  add("baseline", "95.862", "1", "1");
  add("pipeline-1", "81.796", "0.853", "0.80");
  add("pipeline-2", "135.539", "1.414", "1.42");
  add("pipeline-4", "265.958", "2.774", "2.18");
  add("pipeline-8", "411.662", "4.294", "2.89");
  table.ratio = "speed_up";
  table.of = "throughput";
  table.reference = "baseline";
  return table;
}

}  // namespace gpipe::experiments
