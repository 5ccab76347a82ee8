// Llama memory: what each of eight devices holds while a Llama of 7, 13 or 70 billion parameters is
// trained, cut evenly and exactly. See README.md in this folder.

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "experiments/frame/flags.h"
#include "experiments/frame/program.h"
#include "experiments/frame/scale.h"
#include "experiments/frame/variants.h"
#include "experiments/llama_memory/cuts.h"
#include "text/memory_size.h"

namespace gpipe::experiments {
namespace {

constexpr char kUsage[] =
    "Plans the memory of eight devices that train Llama 2 of 7, 13 and 70 billion parameters in\n"
    "bfloat16 with AdamW, in 32 micro-batches of a row of 4,096 tokens. The model is cut evenly\n"
    "(the same number of blocks on each device) or exactly (the fullest device holds the least).\n"
    "Neither the devices nor their memory are needed.\n\n"
    "  tools/bazel run //experiments/llama_memory\n"
    "  tools/bazel run //experiments/llama_memory -- --experiment=70b-always-even,\\\n"
    "70b-always-exact --json=llama.json\n\n"
    "Experiments: MODEL-CHECKPOINT-CUT. MODEL: 7b, 13b, 70b; CHECKPOINT: never, always; CUT:\n"
    "even, exact.";

constexpr int64_t kDevices = 8;
constexpr int64_t kRows = 32;
constexpr int64_t kTokens = 4096;

struct Row {
  std::string name;
  std::string model;  // "7b"
  models::TransformerOptions options;
  Checkpoint checkpoint;
  bool exact;

  LlamaCase llama_case() const {
    LlamaCase llama_case{models::TransformerOptions(options).fused_attention(true)};
    llama_case.rows = kRows;
    llama_case.tokens = kTokens;
    llama_case.devices = kDevices;
    llama_case.checkpoint = checkpoint;
    return llama_case;
  }
};

std::vector<Row> rows() {
  struct Model {
    const char* name;
    models::TransformerOptions options;
  };
  const Model all[] = {
      {"7b", models::llama_7b()}, {"13b", models::llama_13b()}, {"70b", models::llama_70b()}};
  std::vector<Row> rows;
  for (const Model& model : all) {
    for (const Checkpoint checkpoint : {Checkpoint::kNever, Checkpoint::kAlways}) {
      for (const bool exact : {false, true}) {
        rows.push_back(
            {absl::StrCat(model.name, "-", to_text(checkpoint), exact ? "-exact" : "-even"),
             model.name, model.options, checkpoint, exact});
      }
    }
  }
  return rows;
}

void plan(const Row& row, Outcome& outcome, const RunContext& context) {
  const LlamaCase llama_case = row.llama_case();
  const std::vector<int64_t> even = even_balance(llama_case.model.num_layers(), llama_case.devices);
  const PlannedCut cut =
      row.exact ? exact_cut(llama_case, context) : plan_cut(llama_case, even, context);

  Json peaks = Json::array();
  Json reserved = Json::array();
  int64_t model = 0;
  int64_t least = cut.fullest();
  int64_t most_reserved = 0;
  for (const balance::DeviceMemory& device : cut.plan.devices) {
    peaks.push_back(device.peak.bytes);
    reserved.push_back(device.reserved);
    model += device.parameters + device.gradients + device.optimizer_state;
    least = std::min(least, device.peak.bytes);
    most_reserved = std::max(most_reserved, device.reserved);
  }
  outcome.figures["parameters"] = static_cast<double>(cut.plan.parameters);
  outcome.figures["model_memory"] = text::in_gib(model);
  outcome.figures["memory"] = text::in_gib(cut.plan.total_bytes());
  outcome.figures["fullest"] = text::in_gib(cut.fullest());
  outcome.figures["emptiest"] = text::in_gib(least);
  outcome.figures["reserved"] = text::in_gib(most_reserved);
  outcome.figures["step_of_even"] = cut.step / predicted_step(llama_case, even);
  outcome.settings = {{"network", "llama:" + row.model},
                      {"type", "bfloat16"},
                      {"tokens", llama_case.tokens},
                      {"batch_size", llama_case.rows},
                      {"chunks", llama_case.rows},
                      {"balance", cut.balance},
                      {"checkpoint", to_text(llama_case.checkpoint)},
                      {"schedule", "1f1b"},
                      {"optimizer", "adamw"},
                      {"peak_bytes", peaks},
                      {"reserved_bytes", reserved},
                      {"scale", to_text(Scale::kFull)}};
  outcome.note = absl::StrFormat(
      "balance [%s]; on each device %s GiB of tensors", absl::StrJoin(cut.balance, ", "),
      absl::StrJoin(cut.plan.devices, ", ",
                    [](std::string* text, const balance::DeviceMemory& device) {
                      absl::StrAppendFormat(text, "%.1f", text::in_gib(device.peak.bytes));
                    }));
  for (const balance::Uncertainty& each : cut.plan.uncertain) {
    outcome.note += absl::StrCat("; ", each.range ? "uncertain" : "not compared with real steps",
                                 ": ", each.operators);
  }
  outcome.origin = Origin::kPlanned;
}

PublishedTable table() {
  PublishedTable table;
  table.title = "Llama 2 on eight devices: planned memory, even cut and exact one";
  table.columns = {{"parameters", "parameters", {}},
                   {"model_memory", "model memory (GiB)", {}},
                   {"memory", "all devices (GiB)", {}},
                   {"fullest", "fullest device (GiB)", {}},
                   {"emptiest", "emptiest device (GiB)", {}},
                   {"reserved", "fullest, reserved (GiB)", {}},
                   {"step_of_even", "predicted step / even cut's", {}}};
  for (const Row& row : rows()) table.rows.push_back({row.name, {}, ""});
  return table;
}

ExperimentRun prepare() {
  const CommonFlags flags = read_common_flags();
  if (flags.epochs) {
    throw std::invalid_argument(
        "--epochs: two steps are planned, and nothing is trained; leave it out");
  }
  if (flags.devices_given) {
    throw std::invalid_argument(
        "--devices: this table is of eight devices that need not be there; leave it out");
  }
  ExperimentRun prepared;
  prepared.name = "llama_memory";
  prepared.table = table();
  prepared.json = flags.json;
  std::vector<VariantName> names;
  for (const Row& row : rows()) names.push_back({row.name, true});
  prepared.variants = make_variants(
      flags, "all", names, {Origin::kPlanned},
      [](const CommonFlags& /*flags*/, const std::string& name, Origin /*way*/) -> RunVariant {
        return [row = find_variant(rows(), name)](Outcome& outcome, const RunContext& context) {
          plan(row, outcome, context);
        };
      });
  prepared.remarks = {
      "Planned, not run: two training steps on the meta device for CUDA devices, under 1F1B with "
      "32 micro-batches of a row of 4,096 tokens. Weights, gradients, AdamW's state and "
      "activations are bfloat16, attention is CUDA's flash attention, the loss is computed from "
      "float32 logits. None of this was published.",
      "Fullest and emptiest: bytes of tensors; reserved: what LibTorch's allocator for CUDA would "
      "hold for them. Workspaces of cuBLAS, CUDA's context (together about a GiB) and other "
      "programs are not included.",
      "The even cut has the same number of blocks on each device. The exact cut is the one whose "
      "fullest device holds the least; it may cut a block between its two layers, attention and "
      "MLP. Steps are predicted from counted operations, only to compare cuts."};
  return prepared;
}

}  // namespace
}  // namespace gpipe::experiments

int main(int argc, char** argv) {
  return gpipe::experiments::run_program(argc, argv, gpipe::experiments::kUsage,
                                         gpipe::experiments::prepare);
}
