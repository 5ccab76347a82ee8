// The program of chapter 24: several processes. It runs alone, and under a launcher with 2 or 4.

#include <torch/torch.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "examples/guide/guide.h"
#include "gpipe/distributed/any_rank.h"
#include "gpipe/distributed/failure.h"
#include "gpipe/distributed/from_rank_0.h"
#include "gpipe/distributed/gather_timelines.h"
#include "gpipe/gpipe.h"
#include "gpipe/saving/saving.h"
#include "gpipe/schedule/named_schedule.h"
#include "gpipe/timeline/chrome_trace.h"
#include "gpipe/timeline/time_split.h"
#include "gpipe/timeline/time_split_text.h"
#include "gpipe/zero_optimizer.h"
#include "meta/meta_scope.h"

namespace {

namespace nn = torch::nn;

nn::Sequential make_model() {
  torch::manual_seed(0);
  return nn::Sequential(nn::Linear(8, 16), nn::ReLU(), nn::Linear(16, 16), nn::Linear(16, 2));
}

volatile std::sig_atomic_t was_told = 0;

torch::Tensor loss_fn(torch::Tensor output, torch::Tensor target) {
  return torch::mse_loss(output, target);
}

std::vector<int64_t> even_balance(int64_t size) {
  return std::vector<int64_t>(static_cast<size_t>(size), 4 / size);
}

// Several stages in each process.
void run_stages(const gpipe::World& world, const torch::Tensor& input,
                const torch::Tensor& target) {
  nn::Sequential model = make_model();
  // [several]
  // #include "gpipe/schedule/named_schedule.h"
  const auto placement = gpipe::Placement::one_each(4).processes(
      world.size() == 2 ? std::vector<int64_t>{0, 0, 1, 1} : std::vector<int64_t>{0, 1, 2, 3});
  gpipe::GPipe pipe(model,
                    gpipe::GPipeOptions({1, 1, 1, 1}).placement(placement).chunks(4).world(world));
  pipe->step({input}, {target}, loss_fn,
             gpipe::StepOptions().schedule(gpipe::schedule_by_name("zb-h1")));
  // [/several]
}

// Two replicas of a pipeline.
void run_replicas(const gpipe::World& world, const torch::Tensor& input,
                  const torch::Tensor& target) {
  nn::Sequential model = make_model();
  // [replicas]
  // #include "gpipe/zero_optimizer.h"
  const auto grid = world.grid(2, world.size() / 2);  // two replicas
  const std::vector<int64_t> cut =
      grid.processes_each() == 1 ? std::vector<int64_t>{4} : std::vector<int64_t>{2, 2};
  gpipe::GPipe pipe(model, gpipe::GPipeOptions(cut).chunks(4).groups(4).world(grid));
  gpipe::ZeroOptimizer optimizer(pipe, [](std::vector<torch::Tensor> parameters) {
    return std::make_unique<torch::optim::Adam>(std::move(parameters), 0.01);
  });
  const gpipe::RowRange rows = grid.rows(input.size(0), pipe->chunks());
  optimizer.zero_grad();
  auto result = pipe->step({input.slice(0, rows.begin, rows.end)},
                           {target.slice(0, rows.begin, rows.end)}, loss_fn);
  optimizer.step();
  // [/replicas]
  gpipe::GPipe alone(make_model(), gpipe::GPipeOptions({2, 2}).chunks(4).groups(4));
  torch::optim::Adam plain(alone->parameters(), 0.01);
  guide::expect(alone->step({input}, {target}, loss_fn).loss == result.loss, "the same loss");
  plain.step();
  guide::expect(alone->parameter_hash() == pipe->parameter_hash(), "the same bits");
}

// Training that ends when a process is told to.
void stop_when_told(const gpipe::World& world, const torch::Tensor& input,
                    const torch::Tensor& target) {
  gpipe::GPipe pipe(make_model(),
                    gpipe::GPipeOptions(even_balance(world.size())).chunks(4).world(world));
  torch::optim::Adam optimizer(pipe->local_parameters(), 0.01);
  const std::string path = gpipe::from_rank_0(world, [] {
    const char* folder = std::getenv("TEST_TMPDIR");
    return std::string(folder != nullptr ? folder : "/tmp") + "/gpipe_guide_told_" +
           std::to_string(getpid());
  });
  int calls = 0;  // in the process of the last stage: it is told in the third step
  const auto loss = [&](torch::Tensor output, torch::Tensor target) {
    if (++calls == 9) std::raise(SIGUSR1);
    return loss_fn(std::move(output), std::move(target));
  };
  // [told]
  // #include "gpipe/distributed/any_rank.h"
  // #include "gpipe/saving/saving.h"
  std::signal(SIGUSR1, [](int) { was_told = 1; });  // a volatile std::sig_atomic_t
  for (int64_t step = 1; step <= 20; ++step) {
    pipe->zero_grad();
    pipe->step({input}, {target}, loss);
    optimizer.step();
    if (!gpipe::any_rank(world, was_told != 0)) continue;
    gpipe::save_checkpoint(pipe, optimizer, {step, 8 * step}, path);
    break;  // all ranks, after the same step, whichever was told
  }
  // [/told]
  guide::expect(gpipe::read_progress(path).step == 3, "saved after the step");
  (void)gpipe::any_rank(world, false);  // all have read it
  if (world.rank() == 0) {
    for (const auto& file : std::filesystem::directory_iterator(path)) {
      std::filesystem::remove(file.path());
    }
    std::filesystem::remove(path);
  }
}

// A step that fails in one process, and the next one.
void fail_once(gpipe::GPipe& pipe, const torch::Tensor& input, const torch::Tensor& target) {
  bool throws = true;
  const auto sometimes_throws = [&](torch::Tensor output, torch::Tensor target) -> torch::Tensor {
    if (std::exchange(throws, false)) throw std::runtime_error("no such class");
    return loss_fn(std::move(output), std::move(target));
  };
  std::string told;
  // [failure]
  // #include "gpipe/distributed/failure.h"
  try {
    pipe->step({input}, {target}, sometimes_throws);
  } catch (const gpipe::distributed::DistributedFailure& failure) {
    told = failure.what();  // another process: which, where in its part, and why
  } catch (const std::exception& error) {
    told = error.what();  // this one
  }
  pipe->zero_grad();
  pipe->step({input}, {target}, sometimes_throws);  // all are still there, so they go on
  // [/failure]
  guide::expect(told.find("no such class") != std::string::npos, "all know why");
}

const guide::Chapter kProcesses("24", [] {
  torch::manual_seed(1);
  const torch::Tensor input = torch::randn({8, 8});
  const torch::Tensor target = torch::zeros({8, 2});
  nn::Sequential model = make_model();
  const auto connected = gpipe::World::from_environment();
  const std::vector<int64_t> balance = even_balance(connected.size());

  double first = 0;
  double last = 0;
  const auto train = [&](const gpipe::World& world) {
    // [world]
    gpipe::GPipe pipe(model, gpipe::GPipeOptions(balance).chunks(4).world(world));
    torch::optim::Adam optimizer(pipe->local_parameters(), 0.01);
    for (int64_t step = 0; step < 20; ++step) {
      optimizer.zero_grad();
      auto result = pipe->step({input}, {target}, loss_fn);  // the same loss in all processes
      pipe->clip_grad_norm_(1.0);
      optimizer.step();
      (step == 0 ? first : last) = result.loss;
    }
    // [/world]
    guide::expect(last < 0.9 * first, "it has learned");
    guide::expect(pipe->local_parameters().size() * static_cast<size_t>(connected.size()) <= 12,
                  "each process has its own layers");
  };
  train(connected);

  const gpipe::World& world = connected;
  if (world.size() > 1) {
    run_stages(world, input, target);
    run_replicas(world, input, target);
  }
  stop_when_told(world, input, target);

  // [large]
  // #include "meta/meta_scope.h" (`nn` is `torch::nn`)
  nn::Sequential large = [] {
    const gpipe::MetaScope meta;  // shapes, and no memory
    return make_model();
  }();
  gpipe::GPipe pipe(large, gpipe::GPipeOptions(balance).chunks(4).world(world));
  pipe->materialize([](const std::string& name, torch::Tensor& tensor, torch::Generator generator) {
    if (name.find("weight") != std::string::npos) {
      tensor.normal_(0, 0.1, std::move(generator));
    } else {
      tensor.zero_();
    }
  });
  // [/large]

  // [trace]
  // #include "gpipe/distributed/gather_timelines.h"
  // #include "gpipe/timeline/chrome_trace.h"
  // #include "gpipe/timeline/time_split.h"
  // #include "gpipe/timeline/time_split_text.h"
  gpipe::Timeline timeline;
  pipe->step({input}, {target}, loss_fn, gpipe::StepOptions().on_event(timeline.observer()));
  const auto replicas = gpipe::gather_timelines(world, timeline);  // [replica][step]
  if (world.rank() == 0) {
    std::cout << gpipe::to_text(gpipe::split_time(replicas[0], pipe->routes()));
    std::ofstream("trace.json") << gpipe::to_chrome_trace(
        {{"pipeline", replicas[0], pipe->routes()}});
  }
  // [/trace]
  guide::expect(replicas[0].size() == 1 && replicas[0][0].whole(world.size()), "all workers");
  fail_once(pipe, input, target);
});

}  // namespace
