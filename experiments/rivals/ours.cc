// Our side of //experiments/rivals: trains one network in one way and times its steps, as it is
// told to on its standard input. rivals.py starts it; README.md describes what is measured.

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/Generator.h>
#include <torch/cuda.h>
#include <torch/nn/modules/dropout.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "balance/commands/training_flags.h"
#include "balance/costs/profiler.h"
#include "balance/step/explain.h"
#include "command/balance_flag.h"
#include "command/command_line.h"
#include "command/flag_values.h"
#include "command/flags.h"
#include "command/run.h"
#include "experiments/frame/trainer.h"
#include "experiments/rivals/fill.h"
#include "experiments/rivals/resident_peak.h"
#include "experiments/rivals/stage_processes.h"
#include "gpipe/gpipe.h"
#include "gpipe/setup.h"
#include "gpipe/world.h"
#include "interception/peak_memory.h"
#include "meta/meta_scope.h"
#include "models/by_name.h"
#include "models/hash_fill.h"

namespace gpipe::experiments {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kUsage[] =
    "Trains a network in one way and tells how long its steps take. Reads commands from\n"
    "its standard input, one a line, and answers each with a line of JSON:\n"
    "  check      loss and gradients of one step without dropout, from fixed values\n"
    "  steps N    the seconds of N steps, and the peak of memory so far\n"
    "It ends when its input ends.\n\n"
    "  echo 'steps 3' | tools/bazel run //experiments/rivals:ours -- --image_size=64";

constexpr int64_t kMost = 1024;

// The steps until a pipeline with graphs replays all of them: some plain runs, the recordings, and
// one more.
constexpr int64_t kStepsToReplay = 5;

struct Settings : PipelineSetup {  // without a balance if it is to be predicted
  std::string trainer = "pipeline";
  std::string network = "resnet:1,1,1,1";
  std::optional<int64_t> image_size;
  models::NamedModel model;
  int64_t rows = 16;
  int64_t stages = 2;
  Checkpoint checkpoint = Checkpoint::kNever;
  int64_t threads = 1;
  bool processes = false;
  c10::Device device = c10::kCPU;
  bool graphs = false;
};

c10::Device device_of(const std::string& text) {
  if (text == "cpu") return c10::kCPU;
  if (text != "cuda") {
    throw std::invalid_argument("--device must be cpu or cuda, got '" + text + "'");
  }
  if (!torch::cuda::is_available()) {
    throw std::invalid_argument(
        "--device=cuda: LibTorch finds no GPU here; nvidia-smi tells whether there is one, and "
        "LibTorch must be one for CUDA. Give --device=cpu");
  }
  return {c10::kCUDA, 0};
}

// Checks --processes, which only a pipeline of several stages on the CPU can have.
void check_processes(const Settings& settings) {
  if (!settings.processes) return;
  if (settings.trainer != "pipeline") {
    throw std::invalid_argument("--processes needs --trainer=pipeline, not --trainer=" +
                                settings.trainer);
  }
  if (!settings.device.is_cpu()) {
    throw std::invalid_argument("--processes needs --device=cpu: they talk over Gloo");
  }
  if (settings.stages == 1) {
    throw std::invalid_argument(
        "--processes with --stages=1: a single stage is in one process anyway; leave it out, or "
        "give more stages");
  }
  if (settings.balance.empty()) {
    throw std::invalid_argument(
        "--processes needs --balance: each process would predict a cut of its own");
  }
}

// Checks the settings that only the CPU can have, or only a GPU.
void check_device(const Settings& settings) {
  const bool pipeline = settings.trainer == "pipeline";
  if (settings.graphs && !pipeline) {
    throw std::invalid_argument("--graphs needs --trainer=pipeline, not --trainer=" +
                                settings.trainer);
  }
  if (settings.device.is_cpu()) {
    if (settings.graphs) throw std::invalid_argument("--graphs needs --device=cuda");
    return;
  }
  if (settings.trainer == "data_parallel") {
    throw std::invalid_argument("--trainer=data_parallel needs --device=cpu: all is on one GPU");
  }
  if (pipeline && settings.balance.empty()) {
    throw std::invalid_argument(
        "--device=cuda needs --balance: the cut is predicted from a profile on the CPU");
  }
}

void add_flags(command::FlagSet& flags, Settings& settings) {
  settings.chunks = 4;
  flags.add("trainer", settings.trainer, "pipeline, plain or data_parallel.");
  flags.add("model", settings.network, "The network, as //balance takes it.");
  flags.add("image_size", settings.image_size, 1, command::kNoMost,
            "The side of the images. Default: that of the published network; language models take "
            "none.");
  flags.add("rows", settings.rows, 1, command::kNoMost,
            "Images, or sequences of tokens, of a mini-batch.");
  flags.add("stages", settings.stages, 1, kMost,
            "Partitions of the pipeline, or replicas of data parallelism.");
  flags.parsed("balance", settings.balance, command::parse_balance,
               "Layers of each partition. Default: the predicted best cut.");
  flags.add("chunks", settings.chunks, "Micro-batches.");
  flags.add("checkpoint", settings.checkpoint, "always, except_last or never.");
  flags.add("schedule", settings.schedule, balance::schedule_help());
  flags.add("threads", settings.threads, 1, kMost,
            "Threads of each partition or replica, on the CPU.");
  flags.add("processes", settings.processes,
            "Run each partition in a process of its own, over Gloo, instead of in a thread. Needs "
            "--balance.");
  flags.parsed("device", settings.device, device_of,
               "cpu or cuda: where all partitions are. cuda is the first GPU; TF32 is off there.",
               "cpu");
  flags.add("graphs", settings.graphs,
            "The pipeline records its kernels as CUDA Graphs. With --device=cuda only.");
}

// Checks what was read, and finds the network.
void settle(Settings& settings) {
  if (settings.trainer != "pipeline" && settings.trainer != "plain" &&
      settings.trainer != "data_parallel") {
    throw std::invalid_argument("--trainer must be pipeline, plain or data_parallel, got '" +
                                settings.trainer + "'");
  }
  settings.model = models::model_by_name(settings.network, settings.image_size.value_or(0));
  if (!settings.balance.empty() &&
      static_cast<int64_t>(settings.balance.size()) != settings.stages) {
    throw std::invalid_argument("--balance has " + std::to_string(settings.balance.size()) +
                                " partitions, but --stages is " + std::to_string(settings.stages));
  }
  command::in_range("chunks", settings.chunks, 1, settings.rows);
  check_device(settings);
  check_processes(settings);
}

// The cut that our own tools advise: the one with the least predicted step, from a profile of one
// micro-batch.
std::vector<int64_t> predicted_balance(const Settings& settings) {
  const at::Tensor sample = filled_input(settings.model, settings.rows / settings.chunks);
  const balance::Profile profile =
      balance::profile(settings.model.make(), sample,
                       balance::ProfileOptions().timeout(1.0).cpu_threads(settings.threads));
  balance::ExplainOptions options;
  options.chunks = settings.chunks;
  options.checkpoint = settings.checkpoint;
  options.schedule = settings.schedule.make;
  options.cores = at::get_num_threads();
  return balance::best_balance(profile, settings.stages, options);
}

// The limit is so short that the processes can report one that does not come before rivals.py gives
// up.
constexpr std::chrono::seconds kRendezvousLimit{60};

// The world of all processes of this pipeline; without --processes, an empty one.
World connect(const Settings& settings) {
  if (!settings.processes) return {};
  // What the process itself computes has as many threads as a stage, too.
  at::set_num_threads(static_cast<int>(settings.threads));
  WorldOptions options;
  options.rendezvous_limit = kRendezvousLimit;
  options.announce = false;
  return World::from_environment(options);
}

// Gives memory to the layers of this process; those of other processes need none.
void materialize(torch::nn::Module& module) {
  auto& pipe = dynamic_cast<GPipeImpl&>(module);
  pipe.materialize([](const std::string& name, at::Tensor& tensor, const at::Generator&) {
    tensor.fill_(absl::EndsWith(name, "running_var") ? 1 : 0);
  });
  models::hash_fill_parameters(module);
}

std::unique_ptr<Trainer> make_trainer(const Settings& settings, const World& world) {
  Task task;
  task.make_model = settings.model.make;
  if (settings.processes) {
    task.make_model = [make = settings.model.make] {
      const MetaScope meta;
      return make();
    };
  }
  task.loss = [loss = settings.model.loss](const at::Tensor& output, const at::Tensor& target) {
    return models::loss_of(loss, output, target);
  };
  const std::vector<c10::Device> devices(static_cast<std::size_t>(settings.stages),
                                         settings.device);
  if (settings.trainer == "plain") return make_naive_trainer(task, settings.device);
  if (settings.trainer == "data_parallel") return make_data_parallel_trainer(task, devices);
  // The number of threads is not set if a single stage has all threads of the process, because the
  // stage then runs on the calling thread. It is not set on a GPU either, where kernels need no
  // threads of ours.
  const bool single = settings.stages == 1 || settings.processes;
  const bool all = settings.threads == at::get_num_threads() && single;
  const int64_t threads = all || settings.device.is_cuda() ? 0 : settings.threads;
  auto trainer = make_pipeline_trainer(task,
                                       pipe_options(settings, devices)
                                           .checkpoint(settings.checkpoint)
                                           .cpu_threads_per_stage(threads)
                                           .graphs(settings.graphs)
                                           .world(world),
                                       settings.schedule.make);
  if (settings.processes) materialize(trainer->module());
  return trainer;
}

// The parameters of the layers that this process has: those of other processes are on the meta
// device.
std::vector<at::Tensor> parameters_here(const torch::nn::Module& module) {
  std::vector<at::Tensor> here = module.parameters();
  const auto is_elsewhere = [](const at::Tensor& parameter) { return parameter.is_meta(); };
  here.erase(std::remove_if(here.begin(), here.end(), is_elsewhere), here.end());
  return here;
}

void set_dropout(torch::nn::Module& module, double probability) {
  for (const auto& part : module.modules()) {
    if (auto* dropout = part->as<torch::nn::Dropout2d>()) dropout->options.p(probability);
  }
}

// How the pipeline used --graphs: "32 graphs, replayed 640 times", and why stages run without
// graphs.
std::string describe_graphs(const torch::nn::Module& module) {
  const auto* const pipe = dynamic_cast<const GPipeImpl*>(&module);
  if (pipe == nullptr) return "no pipeline";
  GraphUse sum;
  std::string reasons;
  const std::vector<GraphUse> uses = pipe->graph_use();
  for (std::size_t stage = 0; stage < uses.size(); ++stage) {
    sum.recorded += uses[stage].recorded;
    sum.replayed += uses[stage].replayed;
    if (uses[stage].reason.empty()) continue;
    reasons += "; stage " + std::to_string(stage) + " runs without: " + uses[stage].reason;
  }
  return std::to_string(sum.recorded) + " graphs, replayed " + std::to_string(sum.replayed) +
         " times" + reasons;
}

// Returns a function that gives the most bytes since this call, above what was held then: what this
// process holds for its data, or on a GPU what LibTorch's allocator has handed out (torch calls
// that max_memory_allocated). There, neither what the allocator has reserved counts nor the
// device's context. peak_memory() in sides/common.py counts in the same way.
std::function<int64_t()> count_peak(c10::Device device) {
  if (device.is_cpu()) return [peak = ResidentPeak()] { return peak.bytes(); };
  const auto memory = std::make_shared<internal::PeakMemory>(std::vector<c10::Device>{device});
  const int64_t before = memory->allocated(device);
  return [memory, device, before] { return memory->allocated(device) - before; };
}

// A network with its data, which answers commands. With several processes, each has its own layers
// and answers for them; the loss is that of the whole network.
class Session {
 public:
  Session(Settings settings, World world)
      : settings_(std::move(settings)), world_(std::move(world)) {
    if (settings_.trainer == "pipeline" && settings_.balance.empty()) {
      settings_.balance = predicted_balance(settings_);
    }
    if (settings_.device.is_cuda()) {
      // TF32 is off, as in common.py: cuDNN's convolutions would use it by default.
      at::globalContext().setAllowTF32CuDNN(false);
      at::globalContext().setAllowTF32CuBLAS(false);
    }
    // The peak of memory counts from here on, because the profile's memory is not the pipeline's.
    peak_bytes_ = count_peak(settings_.device);
    trainer_ = make_trainer(settings_, world_);
    input_ = filled_input(settings_.model, settings_.rows).to(settings_.device);
    target_ = filled_target(settings_.model, settings_.rows).to(settings_.device);
  }

  Json ready() {
    int64_t parameters = 0;
    for (const at::Tensor& parameter : parameters_here(trainer_->module())) {
      parameters += parameter.numel();
    }
    Json json = {{"parameters", parameters}, {"version", command::describe_build()}};
    if (settings_.trainer == "pipeline") json["balance"] = settings_.balance;
    return json;
  }

  Json answer(const std::string& line) {
    if (line == "check") return check();
    constexpr char kSteps[] = "steps ";
    if (line.rfind(kSteps, 0) == 0) {
      int64_t count = 0;
      try {
        count = std::stoll(line.substr(sizeof(kSteps) - 1));
      } catch (const std::logic_error&) {
        // The number is refused below.
      }
      if (count > 0) return steps(count);
    }
    throw std::runtime_error("commands are 'check' and 'steps N' with a positive N, got '" + line +
                             "'");
  }

 private:
  Json check() {
    torch::nn::Module& module = trainer_->module();
    models::hash_fill_parameters(module);
    set_dropout(module, 0);
    // With graphs, the step that is checked must be a replay. Plain runs and the recording come
    // before it.
    for (int64_t i = 1; settings_.graphs && i < kStepsToReplay; ++i) {
      trainer_->step(input_, target_);
    }
    const double loss = trainer_->step(input_, target_);
    double gradient = 0;
    for (const at::Tensor& parameter : parameters_here(module)) {
      gradient += parameter.grad().abs().sum(at::kDouble).item<double>();
    }
    if (settings_.graphs) {
      // The recorded graphs have no dropout, so a new trainer is made for the steps that count.
      trainer_.reset();
      trainer_ = make_trainer(settings_, world_);
    } else {
      set_dropout(module, 0.1);
    }
    return {{"loss", loss}, {"gradient", gradient}};
  }

  Json steps(int64_t count) {
    std::vector<double> seconds;
    for (int64_t i = 0; i < count; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      trainer_->step(input_, target_);
      if (settings_.device.is_cuda()) torch::cuda::synchronize(settings_.device.index());
      const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
      seconds.push_back(time.count());
    }
    Json json = {{"seconds", seconds}, {"peak_bytes", peak_bytes_()}};
    if (settings_.graphs) json["remark"] = describe_graphs(trainer_->module());
    return json;
  }

  Settings settings_;
  World world_;
  std::function<int64_t()> peak_bytes_;
  std::unique_ptr<Trainer> trainer_;
  at::Tensor input_, target_;
};

// The keys of an answer whose values are added up over the processes.
const std::vector<std::string>& counted() {
  static const std::vector<std::string> keys = {"parameters", "gradient", "peak_bytes"};
  return keys;
}

int serve(const Settings& settings, const std::vector<std::string>& command) {
  StageProcesses others(command, settings.processes ? settings.stages : 1);
  Session session(settings, connect(settings));
  std::cout << others.add_answers(session.ready(), counted()) << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    others.tell(line);
    std::cout << others.add_answers(session.answer(line), counted()) << std::endl;
  }
  return 0;
}

int run(int argc, const char* const* argv) {
  std::vector<std::string> words(argv, argv + argc);
  words.at(0) = "/proc/self/exe";
  Settings settings;
  command::FlagSet flags;
  add_flags(flags, settings);
  const auto prepare = [&]() -> command::Work {
    settle(settings);
    return [&] { return serve(settings, words); };
  };
  return command::run_command(argc, argv, kUsage, prepare, flags);
}

}  // namespace
}  // namespace gpipe::experiments

int main(int argc, char** argv) { return gpipe::experiments::run(argc, argv); }
