#include "experiments/amoebanetd_memory/published.h"

#include <string>
#include <utility>
#include <vector>

namespace gpipe::experiments {
namespace {

// A network for the smaller scales, with their image size and mini-batch.
SmallNetwork small(std::string network, Scale scale) {
  return {std::move(network), 224, scale == Scale::kSmoke ? 4 : 8};
}

// Shrinks a network, but keeps its number of normal cells a multiple of `cells`.
auto shrinker(int64_t cells) {
  return [cells](const MemoryVariant& variant, Scale scale) {
    return small(scale == Scale::kSmoke ? divide(variant.network, 6, 16, cells, 8)
                                        : divide(variant.network, 3, 8, cells, 8),
                 scale);
  };
}

// A row with the same three figures from two sources, torchgpipe and `other`.
using Figures = std::vector<std::string>;  // parameters, model memory, peak activation memory
PublishedRow row(const std::string& name, const Figures& torchgpipe, const std::string& other,
                 const Figures& theirs) {
  PublishedRow row;
  row.experiment = name;
  const std::vector<std::string> keys = {"parameters", "model_memory", "activation_memory"};
  for (size_t k = 0; k < keys.size(); ++k) {
    row.figures[keys[k]] = {{"torchgpipe", torchgpipe[k]}, {other, theirs[k]}};
  }
  return row;
}

// The figures of torchgpipe's documentation, "AmoebaNet-D (L, D) Memory Benchmark", v0.0.5.
PublishedTable published() {
  const std::string huang = "Huang et al.";
  PublishedTable table;
  table.title = "AmoebaNet-D memory: ours beside torchgpipe's and that of Huang et al.";
  table.columns = memory_columns({"torchgpipe", huang}, {"torchgpipe", huang}, {});
  table.rows = {
      row("baseline", {"81.5M", "0.91", "Out of memory"}, huang, {"82M", "1.05GB", "6.26GB"}),
      row("pipeline-1", {"319.0M", "3.57", "0.91"}, huang, {"318M", "3.8GB", "3.46GB"}),
      row("pipeline-2", {"542.7M", "6.07", "3.39"}, huang, {"542M", "6.45GB", "8.11GB"}),
      row("pipeline-4", {"1.06B", "11.80", "6.91"}, huang, {"1.05B", "12.53GB", "15.21GB"}),
      row("pipeline-8", {"1.84B", "20.62", "10.83"}, huang, {"1.8B", "24.62GB", "26.24GB"}),
  };
  return table;
}

// The figures of torchgpipe's README of 2019-06-20, "AmoebaNet-D Memory Benchmark".
PublishedTable old_published() {
  const std::string paper = "GPipe (original)";
  PublishedTable table;
  table.title = "AmoebaNet-D memory, June 2019: ours beside torchgpipe's and GPipe's";
  table.columns = memory_columns({"torchgpipe", paper}, {"torchgpipe", paper}, {});
  table.rows = {
      row("naive-1", {"90M", "1.00", "-"}, paper, {"82M", "1.05GB", "6.26GB"}),
      row("pipeline-1", {"358M", "4.01", "6.64"}, paper, {"318M", "3.80GB", "3.46GB"}),
      row("pipeline-2", {"613M", "6.45", "11.31"}, paper, {"542M", "6.45GB", "8.11GB"}),
      row("pipeline-4", {"1.16B", "13.00", "18.72"}, paper, {"1.05B", "12.53GB", "15.21GB"}),
      row("pipeline-8", {"2.01B", "22.42", "35.78"}, paper, {"1.80B", "24.62GB", "26.24GB"}),
  };
  return table;
}

// The runs of torchgpipe's benchmarks/amoebanetd-memory, v0.0.7.
MemoryExperiment current() {
  MemoryExperiment experiment;
  experiment.table = published();
  experiment.variants = {
      {"baseline", "amoebanetd:18,208", {}, 1, Checkpoint::kExceptLast, ""},
      {"pipeline-1", "amoebanetd:18,416", {24}, 128, Checkpoint::kExceptLast, ""},
      {"pipeline-2", "amoebanetd:18,544", {16, 8}, 128, Checkpoint::kExceptLast, ""},
      {"pipeline-4", "amoebanetd:36,544", {16, 12, 7, 7}, 128, Checkpoint::kExceptLast, ""},
      {"pipeline-8",
       "amoebanetd:72,512",
       {23, 16, 11, 6, 6, 5, 5, 6},
       128,
       Checkpoint::kExceptLast,
       ""},
  };
  experiment.shrink = shrinker(3);
  experiment.remarks = {
      "Published: torchgpipe v0.0.5, AmoebaNet-D (L, D), peaks of reserved bytes on Tesla P40, "
      "summed; Huang et al. (GPipe, 2019) give GB."};
  return experiment;
}

// No program for this table is in torchgpipe's history. The networks and the numbers of devices are
// published; batch, image size, optimizer and procedure are taken from the program of the later
// table. Its 128 chunks are not taken: with them plans have 0.13 to 0.31 of the published
// activations, while plans of the later table have 0.65 to 0.87 of theirs. With 16 chunks it is
// 0.72 to 0.82. So 16 is the likelier number, though it was chosen by the figures that it is
// compared with. Balances were the fastest that fit with 128 chunks, found by
//   //balance:fit --model=old_amoebanetd:12,544 --devices_gib=22.38,22.38,22.38,22.38 --batch=128
//     --chunks=128 --checkpoint=except_last --schedule=gpipe --optimizer=rmsprop --zero_grad=false
MemoryExperiment june_2019() {
  constexpr int64_t kChunks = 16;
  const std::string plain = "assumed: batch, image size, optimizer";
  const std::string assumed =
      "assumed: batch, image size, optimizer, chunks (16, with which the activations are about as "
      "near to the published as in the later table; with its 128 they would be 0.13 to 0.31)";
  const std::string cut = assumed + ", balance";
  MemoryExperiment experiment;
  experiment.edition = to_text(Edition::kJune2019);
  experiment.table = old_published();
  experiment.variants = {
      {"naive-1", "old_amoebanetd:6,208", {}, 1, Checkpoint::kExceptLast, plain},
      {"pipeline-1", "old_amoebanetd:6,416", {445}, kChunks, Checkpoint::kExceptLast, assumed},
      {"pipeline-2",
       "old_amoebanetd:6,544",
       {229, 216},
       kChunks,
       Checkpoint::kExceptLast,
       cut + "; the published 6.45 does not fit its own 613M parameters, which take 6.85 GiB, and "
             "is the paper's figure"},
      {"pipeline-4",
       "old_amoebanetd:12,544",
       {208, 214, 199, 184},
       kChunks,
       Checkpoint::kExceptLast,
       cut},
      {"pipeline-8",
       "old_amoebanetd:24,512",
       {196, 201, 199, 205, 206, 173, 170, 175},
       kChunks,
       Checkpoint::kExceptLast,
       cut},
  };
  experiment.shrink = shrinker(1);
  experiment.remarks = {
      "Published: torchgpipe's README of 2019-06-20, AmoebaNet-D (L, F) of before November 2019, "
      "with 10 classes; its GB are GiB (12 bytes of each parameter).",
      "What history does not show of these runs is assumed, and said in the row's note."};
  return experiment;
}

}  // namespace

MemoryExperiment amoebanetd_memory(Edition edition) {
  MemoryExperiment experiment = edition == Edition::kCurrent ? current() : june_2019();
  experiment.name = "amoebanetd_memory";
  experiment.batch = 128;
  experiment.optimizer = "rmsprop";
  experiment.copies = 3;
  return experiment;
}

}  // namespace gpipe::experiments
