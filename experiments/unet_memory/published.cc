#include "experiments/unet_memory/published.h"

namespace gpipe::experiments {
namespace {

SmallNetwork shrink(const MemoryVariant& variant, Scale scale) {
  if (scale == Scale::kSmoke) return {divide(variant.network, 6, 16, 1, 2), 64, 8};
  return {divide(variant.network, 3, 8, 1, 2), 96, 16};
}

// The figures of torchgpipe's documentation, "U-Net (B, C) Memory Benchmark", v0.0.5.
PublishedTable published() {
  PublishedTable table;
  table.title = "U-Net memory: ours beside torchgpipe's";
  table.columns = memory_columns({"torchgpipe"}, {}, {"torchgpipe"});
  const auto add = [&table](const char* name, const char* parameters, const char* memory) {
    table.rows.push_back(
        {name,
         {{"parameters", {{"torchgpipe", parameters}}}, {"memory", {{"torchgpipe", memory}}}},
         ""});
  };
  add("baseline", "362.2M", "20.3");
  add("pipeline-1", "2.21B", "20.5");
  add("pipeline-2", "4.99B", "43.4");
  add("pipeline-4", "7.80B", "79.1");
  add("pipeline-8", "15.82B", "154.1");
  return table;
}

}  // namespace

// The runs of torchgpipe's benchmarks/unet-memory, v0.0.7.
MemoryExperiment unet_memory() {
  MemoryExperiment experiment;
  experiment.name = "unet_memory";
  experiment.table = published();
  experiment.variants = {
      {"baseline", "unet:6,72", {}, 1, Checkpoint::kExceptLast, ""},
      {"pipeline-1", "unet:11,128", {505}, 32, Checkpoint::kExceptLast, ""},
      {"pipeline-2", "unet:24,128", {526, 551}, 32, Checkpoint::kExceptLast, ""},
      {"pipeline-4", "unet:24,160", {472, 54, 36, 515}, 32, Checkpoint::kExceptLast, ""},
      {"pipeline-8",
       "unet:48,160",
       {800, 140, 62, 36, 36, 36, 36, 987},
       128,
       Checkpoint::kAlways,
       "torchgpipe was given 128 chunks, more than images, and so recomputed all micro-batches"},
  };
  experiment.batch = 32;
  experiment.optimizer = "sgd";
  experiment.copies = 2;
  experiment.shrink = shrink;
  experiment.remarks = {
      "Published: torchgpipe v0.0.5, U-Net (B, C), peaks of reserved bytes on Tesla P40, summed."};
  return experiment;
}

}  // namespace gpipe::experiments
