#include "experiments/amoebanetd_speed/published.h"

namespace gpipe::experiments {

// torchgpipe, benchmarks/amoebanetd-speed, v0.0.7. With one micro-batch it is checkpointed.
const std::vector<SpeedVariant>& speed_variants() {
  static const std::vector<SpeedVariant> variants = {
      {"n2m1", 96, 1, {7, 17}, Checkpoint::kAlways},
      {"n2m4", 256, 4, {9, 15}},
      {"n2m32", 1280, 32, {9, 15}},
      {"n4m1", 160, 1, {3, 4, 5, 12}, Checkpoint::kAlways},
      {"n4m4", 360, 4, {3, 6, 7, 8}},
      {"n4m32", 1152, 32, {3, 6, 7, 8}},
      {"n8m1", 196, 1, {2, 2, 2, 2, 2, 3, 4, 7}, Checkpoint::kAlways},
      {"n8m4", 480, 4, {2, 2, 2, 3, 3, 4, 4, 4}},
      {"n8m32", 1280, 32, {2, 2, 2, 3, 3, 4, 4, 4}},
  };
  return variants;
}

// torchgpipe's documentation, "AmoebaNet-D (18, 256) Speed Benchmark", v0.0.5. (The README of its
// benchmark has other speed-ups, 1.546 for n2m4 and so on, which are not its own throughputs
// divided by that of n2m1.)
PublishedTable published_speed() {
  PublishedTable table;
  table.title = "AmoebaNet-D (18, 256) speed: ours beside torchgpipe's and that of Huang et al.";
  table.columns = {{"throughput", "images/s", {"torchgpipe"}, ""},
                   {"speed_up", "speed-up", {"torchgpipe", "Huang et al."}, "torchgpipe"}};
  const auto add = [&table](const char* name, const char* throughput, const char* torchgpipe,
                            const char* huang) {
    table.rows.push_back({name,
                          {{"throughput", {{"torchgpipe", throughput}}},
                           {"speed_up", {{"torchgpipe", torchgpipe}, {"Huang et al.", huang}}}},
                          ""});
  };
  add("n2m1", "26.733", "1", "1");
  add("n2m4", "41.133", "1.539", "1.07");
  add("n2m32", "47.386", "1.773", "1.21");
  add("n4m1", "26.827", "1.004", "1.13");
  add("n4m4", "44.543", "1.666", "1.26");
  add("n4m32", "72.412", "2.709", "1.84");
  add("n8m1", "24.918", "0.932", "1.38");
  add("n8m4", "70.065", "2.621", "1.72");
  add("n8m32", "132.413", "4.953", "3.48");
  table.ratio = "speed_up";
  table.of = "throughput";
  table.reference = "n2m1";
  return table;
}

}  // namespace gpipe::experiments
