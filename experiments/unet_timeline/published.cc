#include "experiments/unet_timeline/published.h"

namespace gpipe::experiments {

// The runs of torchgpipe's benchmarks/unet-timeline, v0.0.7.
const std::vector<AblationVariant>& ablations() {
  static const std::vector<AblationVariant> variants = {
      {"baseline", {/*direct_skips=*/false, /*copy_streams=*/false, /*early_recomputes=*/true}},
      {"dep-x-x", {false, false, false}},
      {"dep-str-x", {false, true, false}},
      {"dep-str-ptl", {true, true, false}},
  };
  return variants;
}

const std::vector<int64_t>& published_balance() {
  static const std::vector<int64_t> balance = {34, 76, 70, 61};
  return balance;
}

// The table in the README of that benchmark. Utilization is that of the GPUs, by nvidia-smi. Memory
// is the most that the allocators of all devices together had reserved.
PublishedTable published_timeline() {
  PublishedTable table;
  table.title = "U-Net (5, 64) timeline: ours beside torchgpipe's";
  table.columns = {{"throughput", "images/s", {"torchgpipe"}, "torchgpipe"},
                   {"utilization", "utilization (%)", {"torchgpipe"}},
                   {"memory", "memory (GiB)", {"torchgpipe"}, "torchgpipe"}};
  const auto add = [&table](const char* name, const char* throughput, const char* utilization,
                            const char* memory) {
    table.rows.push_back({name,
                          {{"throughput", {{"torchgpipe", throughput}}},
                           {"utilization", {{"torchgpipe", utilization}}},
                           {"memory", {{"torchgpipe", memory}}}},
                          ""});
  };
  add("baseline", "30.662", "44", "52.2");
  add("dep-x-x", "41.306", "59", "19.1");
  add("dep-str-x", "55.191", "71", "30.0");
  add("dep-str-ptl", "58.477", "75", "23.5");
  return table;
}

}  // namespace gpipe::experiments
