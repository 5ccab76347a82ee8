// Trains a language model over threads, processes and replicas, and prints a hash of its
// parameters, which is the same for every layout.
//
//   tools/bazel build //examples/distributed:train //gpipe/distributed:launch
//   bazel-bin/examples/distributed/train --stages=4
//   bazel-bin/gpipe/distributed/launch --processes=4 -- bazel-bin/examples/distributed/train
//   bazel-bin/gpipe/distributed/launch --processes=4 -- bazel-bin/examples/distributed/train
//   --replicas=2 --trace=/tmp/trace.json
//
// With torchrun, mpirun or srun it runs on several machines: docs/guide/32-running-processes.md.
#include <torch/nn/functional/loss.h>
#include <torch/optim/adam.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdint>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "command/files.h"
#include "command/wrong_value.h"
#include "examples/distributed/command.h"
#include "examples/distributed/layout.h"
#include "gpipe/distributed/gather_timelines.h"
#include "gpipe/gpipe.h"
#include "gpipe/pipeline_setup.h"
#include "gpipe/schedule/named_schedule.h"
#include "gpipe/timeline/chrome_trace.h"
#include "gpipe/timeline/time_split.h"
#include "gpipe/timeline/time_split_text.h"
#include "models/transformer.h"

ABSL_FLAG(int64_t, replicas, 1, "Replicas of the pipeline, which share the processes.");
ABSL_FLAG(int64_t, stages, 0,
          "Partitions of the model. Default: 0, one for each process of a replica.");
ABSL_FLAG(std::string, schedule, "1f1b", "Which action runs when: " + gpipe::schedule_names());
ABSL_FLAG(int64_t, steps, 200, "Steps of training.");
ABSL_FLAG(std::string, trace, "",
          "A file for a trace of the last step in all processes, for https://ui.perfetto.dev, and "
          "where its time went.");
ABSL_FLAG(std::string, text, "LICENSE", "A file, which is learned byte by byte.");

namespace {

constexpr int64_t kRows = 8;
constexpr int64_t kRowsOfShortBatches = 5;  // each tenth is short, as an epoch's last may be
constexpr int64_t kTokens = 64;
constexpr int64_t kChunks = 4;
constexpr int64_t kGroups = 4;  // so 1, 2 and 4 replicas sum gradients in the same order

torch::nn::Sequential make_model() {
  // Each process makes the whole model, with the same values, and keeps its part.
  torch::manual_seed(1);
  gpipe::models::TransformerOptions options(gpipe::models::TransformerKind::kLlama);
  options.vocab_size(256).hidden_size(64).intermediate_size(128).num_layers(4).num_heads(4);
  options.residual_dropout(0.1).tied(true);
  return gpipe::models::transformer(options);
}

torch::Tensor read_bytes(const std::string& path) {
  std::string bytes;
  try {
    bytes = gpipe::command::read_file(path);
  } catch (const std::runtime_error& error) {
    throw gpipe::command::wrong_value("text", path, error.what());
  }
  if (bytes.size() <= static_cast<size_t>(kTokens)) {
    throw gpipe::command::wrong_value("text", path,
                                      "give a file of more than " + std::to_string(kTokens) +
                                          " bytes; it has " + std::to_string(bytes.size()));
  }
  torch::Tensor tokens = torch::empty({static_cast<int64_t>(bytes.size())}, torch::kLong);
  for (size_t k = 0; k < bytes.size(); ++k) {
    tokens[static_cast<int64_t>(k)] = static_cast<unsigned char>(bytes[k]);
  }
  return tokens;
}

// The tokens of the mini-batch of all replicas: (rows, tokens + 1).
torch::Tensor tokens_of(const torch::Tensor& text, int64_t step) {
  std::vector<torch::Tensor> rows;
  for (int64_t row = 0; row < (step % 10 == 9 ? kRowsOfShortBatches : kRows); ++row) {
    const int64_t begin = (step * kRows + row) * kTokens % (text.numel() - kTokens);
    rows.push_back(text.narrow(0, begin, kTokens + 1));
  }
  return torch::stack(rows);
}

torch::Tensor loss_fn(torch::Tensor logits, torch::Tensor next) {
  return torch::nn::functional::cross_entropy(logits.flatten(0, 1), next.flatten());
}

void write_trace(const std::string& path, const gpipe::World& world, const gpipe::GPipe& pipe,
                 const gpipe::Timeline& timeline) {
  const auto steps = gpipe::gather_timelines(world, timeline);
  if (world.rank() != 0) return;
  std::vector<gpipe::TraceProcess> replicas;
  for (size_t replica = 0; replica < steps.size(); ++replica) {
    replicas.push_back({"replica " + std::to_string(replica), steps[replica], pipe->routes()});
  }
  std::ofstream file(path);
  file << gpipe::to_chrome_trace(replicas) << std::flush;
  if (!file) throw std::runtime_error("--trace=" + path + ": cannot be written");
  std::cout << gpipe::to_text(gpipe::split_time(steps[0], pipe->routes())) << std::endl;
}

struct Settings {
  int64_t steps = 0;
  gpipe::ScheduleChoice schedule;
  std::string trace;
  torch::Tensor text;
};

std::unique_ptr<Settings> read_flags() {
  auto settings = std::make_unique<Settings>();
  settings->steps = absl::GetFlag(FLAGS_steps);
  if (settings->steps < 0) {
    throw gpipe::command::wrong_value("steps", settings->steps, "give a number from 0");
  }
  if (absl::GetFlag(FLAGS_stages) < 0) {
    throw gpipe::command::wrong_value("stages", absl::GetFlag(FLAGS_stages),
                                      "give a number from 1, or 0 for the default");
  }
  const std::string schedule = absl::GetFlag(FLAGS_schedule);
  settings->schedule =
      gpipe::choice_by_name(schedule, gpipe::command::flag_text("schedule", schedule));
  settings->trace = absl::GetFlag(FLAGS_trace);
  const std::string text = absl::GetFlag(FLAGS_text);
  if (gpipe::command::same_file(settings->trace, text)) {
    throw gpipe::command::wrong_value("trace", settings->trace,
                                      "it is the file of --text, which would be lost");
  }
  settings->text = read_bytes(text);
  return settings;
}

gpipe::GPipe make_pipe(const gpipe::World& world, const gpipe::ScheduleChoice& schedule) {
  const int64_t stages =
      absl::GetFlag(FLAGS_stages) > 0 ? absl::GetFlag(FLAGS_stages) : world.processes_each();
  torch::nn::Sequential model = make_model();
  const auto layers = static_cast<int64_t>(model->size());
  return {model, gpipe::GPipeOptions(distributed::even_balance(layers, stages))
                     .placement(distributed::placement_over(world, schedule, stages))
                     .chunks(kChunks)
                     .groups(kGroups)
                     .cpu_threads_per_stage(1)
                     .world(world)};
}

void train(const Settings& settings, const gpipe::World& world, gpipe::GPipe pipe) {
  torch::optim::Adam optimizer(pipe->local_parameters(), 1e-3);
  auto options = gpipe::StepOptions().schedule(settings.schedule.make);
  gpipe::Timeline timeline;
  torch::manual_seed(2);  // the seed of dropout; the seed of rank 0 counts
  for (int64_t step = 0; step < settings.steps; ++step) {
    torch::Tensor tokens = tokens_of(settings.text, step);
    const gpipe::RowRange here = world.rows(tokens.size(0), kChunks);
    tokens = tokens.narrow(0, here.begin, here.size());
    optimizer.zero_grad();
    if (!settings.trace.empty() && step + 1 == settings.steps) {
      options.on_event(timeline.observer());
    }
    const double loss =
        pipe->step({tokens.narrow(1, 0, kTokens)}, {tokens.narrow(1, 1, kTokens)}, loss_fn, options)
            .loss;
    pipe->clip_grad_norm_(1);
    optimizer.step();
    if (world.rank() == 0 && (step + 1) % 50 == 0) {
      std::cout << "step " << step + 1 << ": loss " << loss << std::endl;
    }
  }
  if (!settings.trace.empty()) write_trace(settings.trace, world, pipe, timeline);
  const std::string hash = pipe->parameter_hash();
  if (world.rank() == 0) std::cout << "parameters " << hash << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  std::shared_ptr<const Settings> settings;
  return distributed::run_command(
      argc, argv, "Trains a language model over threads, processes and replicas.",
      [&] { settings = read_flags(); },
      [&](const gpipe::World& processes) -> std::function<int()> {
        const gpipe::World world =
            distributed::world_of_replicas(processes, absl::GetFlag(FLAGS_replicas));
        const gpipe::GPipe pipe = make_pipe(world, settings->schedule);
        return [settings, world, pipe] {
          train(*settings, world, pipe);
          return 0;
        };
      });
}
