// Tests pipelines over processes whose devices are joined by links (GPIPE_DEVICE_LINKS), on the
// fake accelerator. They must have the bits of one process and no races, and failures must be told
// in time.

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <streambuf>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/distributed/control/failure.h"
#include "gpipe/distributed/packets/device_link.h"
#include "gpipe/gpipe.h"
#include "gpipe/testing/device.h"
#include "gpipe/testing/fake_accelerator/allocator.h"
#include "gpipe/testing/fake_accelerator/backend.h"
#include "gpipe/testing/fake_accelerator/runtime.h"
#include "gpipe/testing/function_layer.h"
#include "gpipe/testing/processes/loopback_processes.h"
#include "gpipe/testing/processes/socket_link.h"
#include "gpipe/testing/processes/world_ranks.h"
#include "gpipe/testing/processes/world_training.h"
#include "gpipe/testing/programs/compare.h"
#include "gpipe/testing/programs/program.h"
#include "gpipe/testing/sample_models.h"
#include "skip/skippable.h"

namespace gpipe::distributed {
namespace {

namespace nn = torch::nn;
using ::testing::AllOf;
using testing::device;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::SampleModel;
using ::testing::StartsWith;
using Say = WorldRanks::Say;

Spread by_sockets() {
  Spread spread;
  spread.links = "sockets";
  spread.used_links = [] { return sent_by_sockets() > 0 ? "sockets" : "host"; };
  return spread;
}

TEST(WorldLinks, EverySampleModel) {
  for (const SampleModel& sample : testing::sample_models()) {
    Spread spread = by_sockets();
    expect_one_processs_bits(sample, spread);
  }
}

// In a V schedule messages go both ways between two workers, and the two ends handle them in
// different orders. The bits must be those of one process.
TEST(WorldLinks, SeveralStagesInAProcess) {
  int64_t count = 0;
  for (const SampleModel& sample : testing::sample_models()) {
    if (sample.layers < 4) continue;
    ++count;
    Spread spread = by_sockets();
    spread.schedule = "zb-v";
    spread.stages = 4;
    expect_one_processs_bits(sample, spread);
  }
  EXPECT_GE(count, 2);
}

// Each process may make only its own device current, because on CUDA a device that is made current
// gets a context, which takes memory.
void expect_only_own_devices_are_made_current(const std::string& links) {
  WorldRanks ranks = ranks_with(links, 2, [](const World& world, const Say& say) {
    const c10::Device here = device(world.rank() + 1);
    GPipe pipe(nn::Sequential(nn::Linear(5, 5), nn::Linear(5, 5)),
               GPipeOptions({1, 1}).chunks(4).devices({here}).world(world));
    const torch::Tensor rows = testing::copy_on(here, torch::ones({8, 5}));
    say(outcome([&] { return bits(pipe->step({rows}, {rows}, squares()).loss); }));
    std::string current;
    for (int k = 0; k < testing::fake::kDevices; ++k) {
      if (testing::fake::was_made_current(k)) current += testing::fake::device(k).str() + " ";
    }
    say(current);
  });
  EXPECT_THAT(ranks.lines(), Each(HasSubstr("0x")));
  EXPECT_THAT(ranks.lines(), ::testing::ElementsAre(device(1).str() + " ", device(2).str() + " "));
  ranks.expect_ends();
}

TEST(WorldLinks, EachProcessUsesItsDeviceOnly) {
  expect_only_own_devices_are_made_current("host");
  expect_only_own_devices_are_made_current("sockets");
}

// Each replica has links of its own, and the replicas have others for their gradients. The bits
// must be those of one process.
TEST(WorldLinks, Replicas) {
  for (const SampleModel& sample : testing::sample_models()) {
    Spread spread = by_sockets();
    spread.replicas = 2;
    expect_one_processs_bits(sample, spread);
  }
}

// A replica is one process, so only the sums over replicas can go by links.
TEST(WorldLinks, FourReplicas) {
  Spread spread = by_sockets();
  spread.replicas = 4;
  spread.processes = 1;
  const std::vector<SampleModel> samples = testing::sample_models();
  for (size_t k = 0; k < 2; ++k) expect_one_processs_bits(samples.at(k), spread);
}

// What the replicas of a stage tell each other goes over one link in each process, however many
// replicas there are. The run needs a link in either direction.
TEST(WorldLinks, TheReplicasOfAStageHaveOneLink) {
  const auto count = [](int64_t replicas, int64_t processes, const std::string& links) {
    auto ranks =
        ranks_with("sockets", replicas * processes, [&](const World& connected, const Say& say) {
          const World world = connected.grid(replicas, processes);
          const c10::Device here = device(world.rank());
          const std::vector<int64_t> balance(processes, 8 / processes);
          GPipe pipe(layers([](int64_t) {}),
                     GPipeOptions(balance).chunks(4).groups(4).devices({here}).world(world));
          for (int step = 0; step < 2; ++step) say(stepped(pipe, here));
          say(std::to_string(connected_by_sockets()));
        });
    for (int step = 0; step < 2; ++step) EXPECT_THAT(ranks.lines(), Each(HasSubstr("0x")));
    EXPECT_THAT(ranks.lines(), Each(links));
    ranks.expect_ends();
  };
  count(/*replicas=*/4, /*processes=*/1, "1");
  count(/*replicas=*/2, /*processes=*/2, "3");
}

void check_programs(const World& world, uint64_t first_seed, int64_t count,
                    const std::function<void(const testing::programs::Outcome&,
                                             const testing::programs::Program&)>& check) {
  int64_t found = 0;
  for (uint64_t seed = first_seed; found < count; ++seed) {
    const testing::programs::Program program = testing::programs::random_program(
        seed, {"ScaleGradientInPlace", "gradient_scaled_in_place"});
    if (!testing::programs::can_run(program, world)) continue;
    ++found;
    check(testing::programs::run(program, world), program);
  }
}

TEST(WorldLinks, RandomProgramsOverThreeProcesses) {
  auto ranks = ranks_with("sockets", 3, [](const World& world, const Say& say) {
    std::string failed;
    int64_t equal = 0;
    check_programs(world, 7, 25, [&](const auto& outcome, const auto& program) {
      if (outcome.failed()) failed += std::to_string(program.seed) + ": " + outcome.what + "\n";
      if (outcome.kind == testing::programs::Outcome::kEqual) ++equal;
    });
    say(!failed.empty() ? failed : equal < 12 ? "few are equal" : "equal");
  });
  EXPECT_THAT(ranks.lines(), Each("equal"));
  ranks.expect_ends();
}

// Layers for a value that is sent to another process first, and then changed in place by a later
// stage of this process while it is in transit. The other process must get the unchanged value.
struct StashImpl : nn::Module, skip::Skippable {
  explicit StashImpl(std::vector<std::string> names)
      : Skippable(names, {}), names_(std::move(names)) {}
  torch::Tensor forward(torch::Tensor x) {
    const torch::Tensor tripled = x * 3;
    for (const std::string& name : names_) stash(name, tripled);
    return tripled;
  }

 private:
  std::vector<std::string> names_;
};
TORCH_MODULE(Stash);
struct ChangeImpl : nn::Module, skip::Skippable {
  explicit ChangeImpl(const std::string& name) : Skippable({}, {name}), name_(name) {}
  torch::Tensor forward(torch::Tensor x) { return x + pop(name_).add_(1); }

 private:
  std::string name_;
};
TORCH_MODULE(Change);
struct HandOnImpl : nn::Module, skip::Skippable {
  explicit HandOnImpl(const std::string& name) : Skippable({}, {name}), name_(name) {}
  torch::Tensor forward(torch::Tensor /*x*/) { return pop(name_); }

 private:
  std::string name_;
};
TORCH_MODULE(HandOn);

nn::Sequential doubling() {
  return nn::Sequential(
      testing::layer<torch::Tensor, torch::Tensor>([](torch::Tensor x) { return x * 2; }));
}

// The loss of a loop over two processes, with stages 0, 2, ... in process 0, must be that of one
// process.
void expect_loss_of_one_process(const std::function<nn::Sequential()>& make, int64_t stages) {
  auto ranks = ranks_with("sockets", 2, [&](const World& world, const Say& say) {
    const GPipeOptions options = GPipeOptions(std::vector<int64_t>(stages, 1))
                                     .chunks(2)
                                     .placement(Placement::loop(2, stages / 2))
                                     .checkpoint(Checkpoint::kNever)
                                     .cpu_threads_per_stage(1);
    const auto loss_on = [&](GPipe pipe, c10::Device where) {
      const torch::Tensor rows = testing::copy_on(where, torch::linspace(-1, 1, 30).view({6, 5}));
      return outcome([&] { return bits(pipe->evaluate({rows}, {rows}, squares()).loss); });
    };
    say(loss_on(
        GPipe(make(), GPipeOptions(options).devices(std::vector<c10::Device>(stages, device(0)))),
        device(0)));
    const c10::Device here = device(world.rank());
    say(loss_on(GPipe(make(), GPipeOptions(options).devices({here}).world(world)), here));
  });
  const std::vector<std::string> alone = ranks.lines();
  EXPECT_THAT(alone, Each(HasSubstr("0x")));
  EXPECT_THAT(ranks.lines(), Each(alone.front()));
  ranks.expect_ends();
}

TEST(WorldLinks, WhatIsSentMayBeChangedHere) {
  expect_loss_of_one_process(
      [] {
        nn::Sequential model;
        model->push_back(Stash(std::vector<std::string>{"a"}));
        model->extend(*doubling());
        model->push_back(Change("a"));
        model->extend(*doubling());
        return model;
      },
      4);
}

TEST(WorldLinks, WhatIsSentMayBeChangedHereLater) {
  expect_loss_of_one_process(
      [] {
        nn::Sequential model;
        model->push_back(Stash(std::vector<std::string>{"a", "b"}));
        model->extend(*doubling());
        model->push_back(HandOn("a"));
        model->extend(*doubling());
        model->push_back(Change("b"));
        model->extend(*doubling());
        return model;
      },
      6);
}

// The process that lacks memory must throw its own OutOfMemoryError. The other process must be told
// on which rank that happened.
TEST(WorldLinks, NoMemoryForWhatComes) {
  auto ranks = ranks_with("sockets", 2, [](const World& world, const Say& say) {
    const c10::Device here = device(world.rank());
    GPipe pipe(layers([](int64_t) {}), GPipeOptions({4, 4}).chunks(2).devices({here}).world(world));
    const torch::Tensor rows = testing::copy_on(here, torch::linspace(-1, 1, 30).view({6, 5}));
    const auto step = [&] {
      say(outcome([&] { return bits(pipe->step({rows}, {rows}, squares()).loss); }));
    };
    step();
    // The first allocation of rank 1 in a step is for the tensors that arrive.
    if (world.rank() == 1) testing::fake::allocator().fail(here.index(), 0);
    step();
    if (world.rank() == 1) testing::fake::allocator().fail(here.index(), -1);
    step();
  });
  EXPECT_THAT(ranks.lines(), Each(HasSubstr("0x")));
  const std::vector<std::string> short_of = ranks.lines();
  EXPECT_THAT(short_of[1], AllOf(HasSubstr("out of memory"), Not(HasSubstr("receiving from")),
                                 Not(HasSubstr("frame #"))));
  EXPECT_THAT(short_of[0], AllOf(HasSubstr("failure: rank 1"), HasSubstr("out of memory"),
                                 Not(HasSubstr("frame #"))));
  EXPECT_THAT(ranks.lines(), Each(HasSubstr("0x")));
  ranks.expect_ends();
}

TEST(WorldLinks, AnExceptionAndTheNextStep) { expect_an_exception_is_survived("sockets"); }

TEST(WorldLinks, AKilledProcess) {
  expect_a_killed_rank_is_named("sockets", std::chrono::seconds(1));
}

// Another thread of rank 1 calls exit() in the process's first backward, which makes autograd's
// engine and its threads. The process must end, and rank 0 must be told.
TEST(WorldLinks, AnExitInTheFirstBackward) {
  auto ranks = ranks_with("sockets", 2, [](const World& world, const Say& say) {
    static std::atomic<bool> exits{false};
    nn::Sequential model = layers([](int64_t) {});
    model->push_back(testing::layer<torch::Tensor, torch::Tensor>([](torch::Tensor x) {
      x = x * 2;
      if (!x.requires_grad()) return x;
      x.register_hook([](const torch::Tensor&) {
        if (exits.exchange(true)) return;
        std::thread([] { std::exit(0); }).detach();
        std::this_thread::sleep_for(std::chrono::milliseconds(500));  // for exit()'s handlers
      });
      return x;
    }));
    const c10::Device here = device(world.rank());
    GPipe pipe(model, GPipeOptions({4, 5}).chunks(3).devices({here}).world(world));
    say(stepped(pipe, here));
  });
  EXPECT_THAT(ranks->next(0), HasSubstr("failure: rank 1"));
  ranks.expect_ends();
}

// The devices work later than their processes launch. So rank 0 has launched sends that wait for
// its stage, and the stage waits for gradients that never come. All of these waits must end, in
// whichever order links are aborted.
void expect_survivors_go_on(const std::function<void()>& fail, bool dies) {
  auto ranks = ranks_with("sockets", 2, [&](const World& world, const Say& say) {
    const c10::Device here = device(world.rank());
    bool fails = false;
    int64_t forwards = 0;
    std::shared_ptr<void> busy;
    GPipe pipe(layers([&](int64_t k) {
                 if (k != 2 || !fails || ++forwards < 2) return;  // fails in the second micro-batch
                 std::this_thread::sleep_for(std::chrono::milliseconds(300));
                 fail();
               }),
               GPipeOptions({4, 4}).chunks(4).devices({here}).world(world));
    const auto step = [&] {
      const torch::Tensor rows = testing::copy_on(here, torch::linspace(-1, 1, 40).view({8, 5}));
      if (fails && world.rank() == 1) busy = testing::hold_stream(here);
      say(outcome([&] { return bits(pipe->step({rows}, {rows}, squares()).loss); }));
    };
    step();
    fails = true;
    step();
    busy.reset();
    fails = false;
    if (!dies) step();
  });
  const std::vector<std::string> before = ranks.lines();
  EXPECT_THAT(before, Each(HasSubstr("0x")));
  EXPECT_THAT(ranks->next(0), HasSubstr("failure: rank 1"));
  if (!dies) {
    EXPECT_THAT(ranks->next(1), HasSubstr("a layer's own"));
    EXPECT_THAT(ranks.lines(), Each(before.front()));
  }
  EXPECT_TRUE(ranks->ends(0));
}

TEST(WorldLinks, AKilledProcessBehindWaitingSends) {
  expect_survivors_go_on([] { std::raise(SIGKILL); }, /*dies=*/true);
}

TEST(WorldLinks, AnExceptionBehindWaitingSends) {
  expect_survivors_go_on([] { throw std::runtime_error("a layer's own"); }, /*dies=*/false);
}

// Links of sockets whose functions first call a test's hooks.
struct Hooks {
  std::function<void()> on_identity = [] {};
  std::function<bool()> may_connect = [] { return true; };
  std::function<void()> on_check = [] {};
  std::function<void()> on_send = [] {};
};
Hooks& hooks() {
  static auto* const hooks = new Hooks;
  return *hooks;
}

class HookedLink final : public DeviceLink {
 public:
  explicit HookedLink(std::unique_ptr<DeviceLink> link) : link_(std::move(link)) {}
  bool is_connected() override { return hooks().may_connect() && link_->is_connected(); }
  void move(const std::vector<Message>& sends, const std::vector<Message>& receives,
            const c10::Stream& stream) override {
    if (!sends.empty()) hooks().on_send();
    link_->move(sends, receives, stream);
  }
  void check() override {
    hooks().on_check();
    link_->check();
  }
  void abort() noexcept override { link_->abort(); }

 private:
  const std::unique_ptr<DeviceLink> link_;
};

class HookedLinks final : public LinkKind {
 public:
  std::string name() const override { return "hooked sockets"; }
  c10::DeviceType device_type() const override { return socket_links().device_type(); }
  void check_available() const override {}
  std::string identity(c10::Device device) const override {
    hooks().on_identity();
    return socket_links().identity(device);
  }
  std::string new_id() const override { return socket_links().new_id(); }
  std::unique_ptr<DeviceLink> connect(const std::string& id, const LinkEnd& end, c10::Device device,
                                      int64_t most_blocks) const override {
    return std::make_unique<HookedLink>(socket_links().connect(id, end, device, most_blocks));
  }
};

[[maybe_unused]] const bool added = (add_link_kind(*new HookedLinks), true);

// `wait` sets hooks that make rank 0 wait for rank 1. Meanwhile another thread of rank 0 calls
// exit(), and the process must end in time.
void expect_exit_in_time(const std::function<void(const World&, std::atomic<bool>&)>& wait) {
  auto ranks = ranks_with("hooked sockets", 2, [&](const World& world, const Say& say) {
    std::atomic<bool> waits{false};
    wait(world, waits);
    if (world.rank() == 0) {
      std::thread([&waits, say] {
        while (!waits) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        say("exits");
        std::exit(0);
      }).detach();
    }
    GPipe pipe(layers([](int64_t) {}),
               GPipeOptions({4, 4}).chunks(3).devices({device(world.rank())}).world(world));
    say(stepped(pipe, device(world.rank())));
  });
  EXPECT_EQ(ranks->next(0), "exits");
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_TRUE(ranks->ends(0));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

TEST(WorldLinks, ExitDoesNotWaitForAnExchange) {
  expect_exit_in_time([](const World& world, std::atomic<bool>& waits) {
    hooks().on_identity = [&waits, comes = world.rank() == 0] {
      if (!comes) std::this_thread::sleep_for(std::chrono::minutes(1));
      waits = true;
    };
  });
}

TEST(WorldLinks, ExitDoesNotWaitForALink) {
  expect_exit_in_time([](const World&, std::atomic<bool>& waits) {
    hooks().may_connect = [&waits] {
      waits = true;
      return false;
    };
  });
}

// The links of pipeline `two` have no part in the failure of pipeline `one`, but they break after
// it, because their other ends are destroyed. That is noticed late, in the next step, and must not
// fail that step.
TEST(WorldLinks, AnEarlierEpochsLinksBreakLate) {
  auto ranks = ranks_with("hooked sockets", 2, [](const World& world, const Say& say) {
    enum { kPasses, kWaits, kIsOver };
    static std::atomic<int> state{kPasses};
    hooks().on_check = [] {
      if (state != kWaits) return;
      while (state == kWaits) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      throw std::runtime_error("too late");
    };
    const c10::Device here = device(world.rank());
    const c10::Device there = device(2 + world.rank());
    bool throws = false;
    const auto make = [&](c10::Device where) {
      return GPipe(layers([&](int64_t k) {
                     if (k == 3 && throws) throw std::runtime_error("a layer's own");
                   }),
                   GPipeOptions({4, 4}).chunks(3).devices({where}).world(world));
    };
    GPipe one = make(here);
    GPipe two = make(there);
    say(stepped(one, here));
    say(stepped(two, there));
    throws = true;
    if (world.rank() == 1) {
      state = kWaits;
      // By then all links are being checked.
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
    }
    say(stepped(one, here));
    throws = false;
    std::thread([] {  // the late check fails when the next step has begun
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      state = kIsOver;
    })
        .detach();
    say(stepped(one, here));
    say(stepped(two, there));
  });
  EXPECT_THAT(ranks.lines(), Each(HasSubstr("0x")));
  EXPECT_THAT(ranks.lines(), Each(HasSubstr("0x")));
  EXPECT_THAT(ranks.lines(), Each(HasSubstr("a layer's own")));
  EXPECT_THAT(ranks.lines(), Each(HasSubstr("0x")));
  EXPECT_THAT(ranks.lines(), Each(HasSubstr("0x")));
  ranks.expect_ends();
}

// The gradients of the pipeline's parameters, after all work of the device.
std::string gradients_of(GPipe pipe) {
  std::string text;
  for (const torch::Tensor& parameter : pipe->local_parameters()) {
    (void)testing::on_host(parameter);  // waits for the device
    const torch::Tensor& grad = parameter.grad();
    text +=
        grad.defined() ? bits(grad.to(torch::kCPU, torch::kDouble).sum().item<double>()) : "no ";
  }
  return text;
}

// Rank 1 fails between two messages of a sum over replicas, while rank 0's device waits for the
// second one. Rank 0 must learn of it, keep no gradients, and have its device back.
void expect_a_failure_in_a_sum_is_survived(const std::function<void()>& fail, bool dies) {
  auto ranks = ranks_with("hooked sockets", 2, [&](const World& world, const Say& say) {
    const c10::Device here = device(world.rank());
    GPipe pipe(layers([](int64_t) {}),
               GPipeOptions({8}).chunks(2).groups(2).devices({here}).world(world.grid(2, 1)));
    const auto step = [&] {
      say(stepped(pipe, here));
      say(gradients_of(pipe));
    };
    int64_t sends = 0;
    if (world.rank() == 1) hooks().on_send = [&] { return ++sends == 2 ? fail() : void(); };
    step();
    if (!dies) step();
  });
  EXPECT_THAT(ranks->next(0), HasSubstr("failure: rank 1"));
  EXPECT_EQ(ranks->next(0), "no no no no no no no no ");
  if (!dies) {
    EXPECT_THAT(ranks->next(1), HasSubstr("a link's own"));
    EXPECT_EQ(ranks->next(1), "no no no no no no no no ");
    EXPECT_THAT(ranks.lines(), Each(HasSubstr("0x")));
    const std::vector<std::string> gradients = ranks.lines();
    EXPECT_THAT(gradients, Each(AllOf(HasSubstr("0x"), gradients.front())));
  }
  EXPECT_TRUE(ranks->ends(0));
}

TEST(WorldLinks, AKilledProcessInASum) {
  expect_a_failure_in_a_sum_is_survived([] { std::raise(SIGKILL); }, /*dies=*/true);
}

TEST(WorldLinks, AnExceptionInASum) {
  expect_a_failure_in_a_sum_is_survived([] { throw std::logic_error("a link's own"); },
                                        /*dies=*/false);
}

// The devices of rank 0 and 2, which have no losses to read, are still at the sums of a step that
// went well when the next step throws. The gradients must be those of the first step.
TEST(WorldLinks, AFailureSparesTheMessagesOfTheStepBefore) {
  auto ranks = ranks_with("sockets", 4, [](const World& connected, const Say& say) {
    const World world = connected.grid(2, 2);
    const c10::Device here = device(world.rank());
    std::shared_ptr<void> busy;
    int64_t backwards = 0;
    bool throws = false;
    const auto make = [&](bool holds) {
      torch::manual_seed(5);
      return nn::Sequential(
          nn::Linear(5, 5),
          testing::layer<torch::Tensor, torch::Tensor>([&, holds](torch::Tensor x) {
            if (throws) throw std::runtime_error("a layer's own");
            const torch::Tensor y = torch::tanh(x);
            y.register_hook([&, holds](const torch::Tensor&) {
              // The last backward of this rank's first step.
              if (holds && ++backwards == 2) busy = testing::hold_stream(here);
            });
            return y;
          }),
          nn::Linear(5, 5));
    };
    const GPipeOptions options = GPipeOptions({2, 1})
                                     .chunks(4)
                                     .groups(2)
                                     .checkpoint(Checkpoint::kNever)
                                     .cpu_threads_per_stage(1);
    // Made before a device is held, because a copy to it waits.
    const auto rows_of = [](const World& of, c10::Device where) {
      const RowRange range = of.rows(8, 4);
      return testing::copy_on(
          where, torch::linspace(-1, 1, 40).view({8, 5}).slice(0, range.begin, range.end));
    };
    const torch::Tensor all = rows_of(World(), device(0));
    const torch::Tensor own = rows_of(world, here);
    const auto step = [](GPipe pipe, const torch::Tensor& rows) {
      return outcome([&] { return bits(pipe->step({rows}, {rows}, squares()).loss); });
    };
    GPipe alone(make(false), GPipeOptions(options).devices({device(0), device(0)}));
    (void)step(alone, all);
    const std::string expected = gradients_of(alone);
    GPipe pipe(make(world.rank() == 2), GPipeOptions(options).devices({here}).world(world));
    say(step(pipe, own));
    throws = world.rank() == 2;
    say(step(pipe, own));
    busy.reset();
    const std::string gradients = gradients_of(pipe);
    say(world.process() == 1 || expected.rfind(gradients, 0) == 0 ? "as they were" : gradients);
  });
  EXPECT_THAT(ranks.lines(), Each(HasSubstr("0x")));
  EXPECT_THAT(ranks.lines(), Each(HasSubstr("a layer's own")));
  EXPECT_THAT(ranks.lines(), Each("as they were"));
  ranks.expect_ends();
}

TEST(WorldLinks, TwoProcessesOnOneDeviceAreToldWhatToDo) {
  auto ranks = ranks_with("sockets", 2, [](const World& world, const Say& say) {
    GPipe pipe(layers([](int64_t) {}),
               GPipeOptions({4, 4}).chunks(3).devices({device(0)}).world(world));
    say(stepped(pipe, device(0)));
    // After that error the processes can make a pipeline on different devices.
    GPipe other(layers([](int64_t) {}),
                GPipeOptions({4, 4}).chunks(3).devices({device(world.rank())}).world(world));
    say(stepped(other, device(world.rank())));
  });
  EXPECT_THAT(ranks.lines(), Each(AllOf(HasSubstr("ranks 0 and 1 are on the same device"),
                                        HasSubstr("unset GPIPE_DEVICE_LINKS"))));
  EXPECT_THAT(ranks.lines(), Each(HasSubstr("0x")));
  ranks.expect_ends();
}

TEST(WorldLinks, ThatNoStageUsesThemIsToldOnce) {
  setenv("GPIPE_DEVICE_LINKS", "sockets", /*overwrite=*/1);
  WorldOptions options = WorldRanks::quick();
  options.announce = true;
  WorldRanks ranks(
      2,
      [](const World& world, const Say& say) {
        std::ostringstream log;
        std::streambuf* const before = std::clog.rdbuf(log.rdbuf());
        const c10::Device cpu(c10::kCPU);
        for (int k = 0; k < 2; ++k) {
          GPipe pipe(layers([](int64_t) {}),
                     GPipeOptions({4, 4}).chunks(3).devices({cpu}).world(world));
          (void)stepped(pipe, cpu);
        }
        std::clog.rdbuf(before);
        std::string told = log.str();
        std::replace(told.begin(), told.end(), '\n', '|');
        say(told + ".");
      },
      options);
  EXPECT_THAT(ranks.lines(), ElementsAre(StartsWith("gpipe: GPIPE_DEVICE_LINKS=sockets is not "
                                                    "used: the stages are on cpu, and it joins"),
                                         "."));
  ranks.expect_ends();
}

TEST(WorldLinks, AllProcessesHaveTheSameWay) {
  setenv("GPIPE_DEVICE_LINKS", "host", /*overwrite=*/1);
  const MasterPort port;
  RankProcesses ranks(2, [&](int64_t rank, const Say& say) {
    WorldRanks::become(rank, 2, port.number());
    if (rank == 1) setenv("GPIPE_DEVICE_LINKS", "sockets", /*overwrite=*/1);
    say(outcome([] {
      (void)World::from_environment(WorldRanks::quick());
      return "connected";
    }));
  });
  for (int64_t rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(ranks.next(rank), AllOf(HasSubstr("GPIPE_DEVICE_LINKS"), HasSubstr("'host'"),
                                        HasSubstr("'sockets'")));
  }
}

// Random programs in one process, whose workers send to each other over links on one device. This
// is the last test, because it starts threads, and the parent of forked children must have none.
TEST(WorldLinks, RandomProgramsWithinAProcess) {
  at::set_num_threads(1);
  const World world(std::make_shared<LoopbackProcesses>(&socket_links()), /*rank=*/0, /*size=*/1);
  int64_t equal = 0;
  const int64_t before = sent_by_sockets();
  check_programs(world, 20261126, 100, [&](const auto& outcome, const auto& program) {
    EXPECT_FALSE(outcome.failed()) << "seed " << program.seed << ": " << outcome.what << "\n"
                                   << testing::programs::to_text(program);
    if (outcome.kind == testing::programs::Outcome::kEqual) ++equal;
  });
  EXPECT_GE(equal, 50);
  EXPECT_GT(sent_by_sockets() - before, 100);
}

}  // namespace
}  // namespace gpipe::distributed
