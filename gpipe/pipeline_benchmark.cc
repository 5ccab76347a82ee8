// Measures what the pipeline costs, and what it gains, on the CPU.
//
//   tools/bazel run //gpipe:pipeline_benchmark
//
// Every benchmark is a ratio against a rival measured in the same process, in turns, so that a busy
// machine slows both. The counter `ratio` or `speedup` is the median over repetitions of the pair.

#include <benchmark/benchmark.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/timing.h"
#include "models/resnet.h"
#include "models/unet.h"

namespace gpipe {
namespace {

using Clock = std::chrono::steady_clock;

// Runs `rival` and `ours` in turns; reports the medians and the median of their ratio.
void measure_pair(benchmark::State& state, const std::function<void()>& rival,
                  const std::function<void()>& ours, const char* counter) {
  rival();
  ours();
  std::vector<double> ratios;
  std::vector<double> rival_times;
  std::vector<double> our_times;
  for (auto _ : state) {
    const double rival_time = seconds_of(rival);
    const double our_time = seconds_of(ours);
    state.SetIterationTime(our_time);
    ratios.push_back(rival_time / our_time);
    rival_times.push_back(rival_time);
    our_times.push_back(our_time);
  }
  state.counters[counter] = median(ratios);
  state.counters["plain_ms"] = median(rival_times) * 1e3;
  state.counters["pipeline_ms"] = median(our_times) * 1e3;
}

torch::nn::Sequential linears(int64_t layers, int64_t width) {
  torch::nn::Sequential model;
  for (int64_t i = 0; i < layers; ++i) model->push_back(torch::nn::Linear(width, width));
  return model;
}

GPipeOptions on_cpu(std::vector<int64_t> balance, int64_t chunks) {
  const size_t partitions = balance.size();
  return GPipeOptions(std::move(balance))
      .devices(std::vector<c10::Device>(partitions, c10::kCPU))
      .chunks(chunks)
      .checkpoint(Checkpoint::kNever)
      .cpu_threads_per_stage(1);
}

// Partitions of one Linear(8, 8), 4 rows per micro-batch: what remains is the overhead per cell.
// Compare with a rival on the same machine at the same time, torchgpipe's for example.
// `first_call_ms`: how much longer the first call takes, as it verifies and compiles the schedule.
void cells(benchmark::State& state, int warm_up) {
  at::set_num_threads(1);
  const int64_t partitions = state.range(0);
  const int64_t micro_batches = state.range(1);
  GPipe pipe(linears(partitions, 8), on_cpu(std::vector<int64_t>(partitions, 1), micro_batches));
  const torch::Tensor input = torch::randn({4 * micro_batches, 8});
  const auto run = [&] { pipe->forward(input).sum().backward(); };
  const double first = seconds_of(run);
  for (int i = 1; i < warm_up; ++i) run();
  std::vector<double> times;
  for (auto _ : state) {
    times.push_back(seconds_of(run));
    state.SetIterationTime(times.back());
  }
  state.counters["us_per_cell"] =
      median(times) * 1e6 / static_cast<double>(partitions * micro_batches);
  state.counters["first_call_ms"] = (first - median(times)) * 1e3;
}
// A warm-up of a tenth of a second comes before half a second of measurement, as for torchgpipe in
// tools/peers/compare_cells.py. Without the warm-up all threads may share a core, because the
// kernel has not spread them yet.
void BM_Cells(benchmark::State& state) { cells(state, /*warm_up=*/60); }
BENCHMARK(BM_Cells)
    ->ArgNames({"partitions", "micro_batches"})
    ->Args({4, 32})
    ->Args({1, 32})
    ->Args({2, 32})
    ->UseManualTime()
    ->Iterations(400)
    ->Unit(benchmark::kMillisecond);

// How the cost of a cell grows with the number of cells.
void BM_CellGrowth(benchmark::State& state) { cells(state, /*warm_up=*/2); }
BENCHMARK(BM_CellGrowth)
    ->ArgNames({"partitions", "micro_batches"})
    ->ArgsProduct({{2, 8, 32, 64}, {32, 256, 2048}})
    ->UseManualTime()
    ->Iterations(7)
    ->Unit(benchmark::kMillisecond);

// Runs the cells of BM_Cells in a plain loop on one thread, with the layers' own autograd. That
// time is the lower bound on one core.
void BM_PlainCells(benchmark::State& state) {
  at::set_num_threads(1);
  const int64_t partitions = state.range(0);
  const int64_t micro_batches = state.range(1);
  torch::nn::Sequential model = linears(partitions, 8);
  const torch::Tensor input = torch::randn({4 * micro_batches, 8});
  std::vector<double> times;
  for (auto _ : state) {
    times.push_back(seconds_of([&] {
      for (const torch::Tensor& piece : input.chunk(micro_batches)) {
        model->forward(piece).sum().backward();
      }
    }));
    state.SetIterationTime(times.back());
  }
  state.counters["us_per_cell"] =
      median(times) * 1e6 / static_cast<double>(partitions * micro_batches);
}
BENCHMARK(BM_PlainCells)
    ->ArgNames({"partitions", "micro_batches"})
    ->Args({4, 32})
    ->UseManualTime()
    ->Iterations(400)
    ->Unit(benchmark::kMillisecond);

models::UNetOptions small_unet() {
  return models::UNetOptions().depth(4).num_convs(2).base_channels(16);
}

// Compares a pipeline of one partition, with one micro-batch and without checkpoints, with the bare
// model. `ratio` is the share of the bare model's speed that is left.
void one_partition(benchmark::State& state, const std::function<torch::nn::Sequential()>& make,
                   const torch::Tensor& input) {
  at::set_num_threads(1);
  torch::nn::Sequential plain = make();
  torch::nn::Sequential module = make();
  const int64_t layers = static_cast<int64_t>(module->size());
  GPipe pipe(module, GPipeOptions({layers}).devices({c10::kCPU}).checkpoint(Checkpoint::kNever));
  measure_pair(
      state, [&] { plain->forward(input).mean().backward(); },
      [&] { pipe->forward(input).mean().backward(); }, "ratio");
}

void BM_OnePartitionResNet(benchmark::State& state) {
  one_partition(
      state,
      [] {
        return models::resnet(models::ResNetOptions({1, 1, 1, 1}).num_classes(10));
      },
      torch::randn({8, 3, 64, 64}));
}
BENCHMARK(BM_OnePartitionResNet)->UseManualTime()->Iterations(25)->Unit(benchmark::kMillisecond);

void BM_OnePartitionUNet(benchmark::State& state) {
  one_partition(
      state, [] { return models::unet(small_unet()); }, torch::randn({4, 3, 96, 96}));
}
BENCHMARK(BM_OnePartitionUNet)->UseManualTime()->Iterations(25)->Unit(benchmark::kMillisecond);

// `schedule` with every backward in two halves, one right after the other.
Schedule split(const Schedule& schedule) {
  std::vector<std::vector<Action>> table;
  for (const std::vector<Action>& actions : schedule.table()) {
    std::vector<Action>& row = table.emplace_back();
    for (Action action : actions) {
      if (action.kind != ActionKind::kBackward) {
        row.push_back(action);
        continue;
      }
      for (const ActionKind half : {ActionKind::kInputGradient, ActionKind::kWeightGradient}) {
        action.kind = half;
        row.push_back(action);
      }
    }
  }
  return Schedule::create(schedule.stages(), schedule.micro_batches(), std::move(table));
}

// Compares a step with split backwards with a step with whole ones. `cost` is split / whole,
// forwards included. It is measured for convolutions with norms of a usual size, and for linear
// layers so small that the pipeline's own overhead shows.
void BM_SplitCells(benchmark::State& state) {
  at::set_num_threads(1);
  using torch::nn::Conv2dOptions;
  const bool small = state.range(0) != 0;
  torch::nn::Sequential model = linears(4, 8);
  torch::Tensor input = torch::randn({4 * 32, 8});
  std::vector<int64_t> balance = {1, 1, 1, 1};
  int64_t chunks = 32;
  if (!small) {
    auto conv = [](int64_t in, int64_t out) {
      return torch::nn::Conv2d(Conv2dOptions(in, out, 3).padding(1).bias(false));
    };
    model = torch::nn::Sequential(conv(16, 32), torch::nn::BatchNorm2d(32), torch::nn::ReLU(),
                                  conv(32, 32), torch::nn::BatchNorm2d(32), torch::nn::ReLU(),
                                  conv(32, 32), torch::nn::BatchNorm2d(32), torch::nn::ReLU());
    input = torch::randn({8, 16, 48, 48});
    balance = {3, 6};
    chunks = 2;
  }
  GPipe pipe(model, on_cpu(balance, chunks));
  const LossFn loss = [](const Tensors& outputs, const Tensors&) { return outputs[0].mean(); };
  const Schedule whole = Schedule::one_f_one_b(static_cast<int64_t>(balance.size()), chunks);
  const StepOptions options[] = {StepOptions().schedule(whole),
                                 StepOptions().schedule(split(whole))};
  input.requires_grad_();  // so that the first stage has both halves, too
  std::vector<double> costs;
  auto step = [&](int which) {
    return seconds_of([&] { pipe->step({input}, {}, loss, options[which]); });
  };
  step(0);
  step(1);
  for (auto _ : state) {
    const double of_whole = step(0);
    const double of_split = step(1);
    state.SetIterationTime(of_split);
    costs.push_back(of_split / of_whole);
  }
  state.counters["cost"] = median(costs);
}
BENCHMARK(BM_SplitCells)
    ->ArgName("small")
    ->Arg(0)
    ->Arg(1)
    ->UseManualTime()
    ->Iterations(60)
    ->Unit(benchmark::kMillisecond);

// The layer below takes a known time and no processor, so that only the pipeline's schedule is
// measured. This adds up the time that it really slept, since a busy machine wakes sleepers late.
std::atomic<int64_t> slept_ns{0};

void sleep_and_count(std::chrono::milliseconds duration) {
  const auto start = Clock::now();
  std::this_thread::sleep_for(duration);
  slept_ns += std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
}

struct SleepFunction : torch::autograd::Function<SleepFunction> {
  static torch::Tensor forward(torch::autograd::AutogradContext*, torch::Tensor x) {
    sleep_and_count(std::chrono::milliseconds(5));
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    sleep_and_count(std::chrono::milliseconds(10));
    return {gradients[0]};
  }
};

struct SleepImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) { return SleepFunction::apply(x); }
};
TORCH_MODULE(Sleep);

// In an ideal pipeline a stage is busy for a share m / (m + p - 1) of the time. `of_ideal`: the
// share that the stages were really busy, relative to that. `of_nominal`: the time that the sleeps
// as requested (not as slept) would take in an ideal pipeline, relative to the time taken.
void BM_Bubble(benchmark::State& state) {
  const int64_t stages = 8;
  const int64_t micro_batches = 32;
  const bool one_f_one_b = state.range(0) == 1;
  torch::nn::Sequential model;
  for (int64_t j = 0; j < stages; ++j) model->push_back(Sleep());
  GPipe pipe(model, on_cpu(std::vector<int64_t>(stages, 1), micro_batches));
  const torch::Tensor input = torch::randn({micro_batches, 2}).requires_grad_();
  const torch::Tensor target = torch::randn({micro_batches, 2});
  StepOptions options;
  options.schedule(one_f_one_b ? ScheduleGenerator(Schedule::one_f_one_b)
                               : ScheduleGenerator(Schedule::gpipe));
  auto loss = [](const Tensors& outputs, const Tensors& targets) {
    return torch::nn::functional::mse_loss(outputs[0], targets[0]);
  };
  auto run = [&] { pipe->step({input}, {target}, loss, options); };
  run();
  const double ideal_share =
      static_cast<double>(micro_batches) / static_cast<double>(micro_batches + stages - 1);
  std::vector<double> of_ideal;
  std::vector<double> times;
  for (auto _ : state) {
    slept_ns = 0;
    times.push_back(seconds_of(run));
    state.SetIterationTime(times.back());
    const double busy = static_cast<double>(slept_ns) * 1e-9 / static_cast<double>(stages);
    of_ideal.push_back(busy / times.back() / ideal_share);
  }
  const double nominal = 0.015 * static_cast<double>(micro_batches + stages - 1);
  state.counters["nominal_ms"] = nominal * 1e3;
  state.counters["of_nominal"] = nominal / median(times);
  state.counters["of_ideal"] = median(of_ideal);
}
BENCHMARK(BM_Bubble)->ArgName("1f1b")->Arg(0)->Arg(1)->UseManualTime()->Iterations(7)->Unit(
    benchmark::kMillisecond);

// The cost of deferred batch norms: the same step of convolutions and norms, with and without them.
void BM_DeferredBatchNorms(benchmark::State& state) {
  at::set_num_threads(1);
  static constexpr int64_t kChannels = 16;
  const torch::Tensor input = torch::randn({4, kChannels, 96, 96});
  const auto make = [](bool deferred) {
    torch::nn::Sequential model;
    for (int k = 0; k < 6; ++k) {
      model->push_back(torch::nn::Conv2d(
          torch::nn::Conv2dOptions(kChannels, kChannels, 3).padding(1).bias(false)));
      model->push_back(torch::nn::BatchNorm2d(kChannels));
      model->push_back(torch::nn::ReLU());
    }
    const auto layers = static_cast<int64_t>(model->size());
    return GPipe(model, on_cpu({layers}, 4).deferred_batch_norm(deferred));
  };
  GPipe plain = make(false);
  GPipe deferred = make(true);
  const auto step = [&](GPipe& pipe) {
    pipe->step({input}, {},
               [](const Tensors& outputs, const Tensors&) { return outputs[0].mean(); });
  };
  measure_pair(
      state, [&] { step(plain); }, [&] { step(deferred); }, "ratio");
}
BENCHMARK(BM_DeferredBatchNorms)->UseManualTime()->Iterations(15)->Unit(benchmark::kMillisecond);

// The cost of restoring buffers after recomputes. The rival has no buffers. The argument is the
// number of buffers, of 64, that the layers write.
void BM_Buffers(benchmark::State& state) {
  at::set_num_threads(1);
  struct LayerImpl : torch::nn::Module {
    LayerImpl(int64_t buffers, int64_t written) : written(written) {
      linear = register_module("linear", torch::nn::Linear(256, 256));
      for (int64_t k = 0; k < buffers; ++k) {
        own.push_back(register_buffer("b" + std::to_string(k), torch::zeros({2048})));
      }
    }
    torch::Tensor forward(const torch::Tensor& x) {
      const torch::NoGradGuard no_grad;
      for (int64_t k = 0; k < written; ++k) own[static_cast<size_t>(k)].add_(1);
      const torch::AutoGradMode grad(true);
      return linear(x);
    }
    int64_t written;
    torch::nn::Linear linear{nullptr};
    std::vector<torch::Tensor> own;
  };
  const auto make = [](int64_t buffers, int64_t written) {
    torch::nn::Sequential model;
    for (int k = 0; k < 8; ++k) model->push_back(std::make_shared<LayerImpl>(buffers, written));
    return GPipe(model, on_cpu({8}, 4).checkpoint(Checkpoint::kAlways));
  };
  GPipe without = make(0, 0);
  GPipe with = make(8, state.range(0) / 8);
  const torch::Tensor input = torch::randn({512, 256});
  const auto step = [&](GPipe& pipe) {
    pipe->step({input}, {},
               [](const Tensors& outputs, const Tensors&) { return outputs[0].mean(); });
  };
  measure_pair(
      state, [&] { step(without); }, [&] { step(with); }, "ratio");
}
BENCHMARK(BM_Buffers)
    ->ArgName("written")
    ->Arg(0)
    ->Arg(64)
    ->UseManualTime()
    ->Iterations(25)
    ->Unit(benchmark::kMillisecond);

// Compares two partitions with one thread each with the plain model on one thread. The cut is where
// a measured profile has half of the layers' time on each side.
void BM_UNetTwoPartitions(benchmark::State& state) {
  at::set_num_threads(1);
  const int64_t cut = state.range(0);
  torch::nn::Sequential plain = models::unet(small_unet());
  torch::nn::Sequential module = models::unet(small_unet());
  const int64_t layers = static_cast<int64_t>(module->size());
  GPipe pipe(module, on_cpu({cut, layers - cut}, 8));
  const torch::Tensor input = torch::randn({16, 3, 96, 96});
  measure_pair(
      state, [&] { plain->forward(input).mean().backward(); },
      [&] { pipe->forward(input).mean().backward(); }, "speedup");
}
BENCHMARK(BM_UNetTwoPartitions)
    ->ArgName("cut")
    ->Arg(52)
    ->UseManualTime()
    ->Iterations(15)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace gpipe
