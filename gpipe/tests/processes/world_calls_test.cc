// Tests that calls of all processes stay in step: the n-th call succeeds in all of them or fails in
// all of them, whichever process throws, is late or gives up. So a mini-batch never gets the
// targets of another one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/checkpoint.h"
#include "gpipe/distributed/control/agreement.h"
#include "gpipe/distributed/control/failure.h"
#include "gpipe/distributed/from_rank_0.h"
#include "gpipe/distributed/gather_timelines.h"
#include "gpipe/gpipe.h"
#include "gpipe/saving/saving.h"
#include "gpipe/testing/function_layer.h"
#include "gpipe/testing/log_capture.h"
#include "gpipe/testing/processes/world_ranks.h"
#include "gpipe/timeline/timeline.h"
#include "gpipe/zero_optimizer.h"
#include "meta/meta_scope.h"
#include "tied/tied_layer.h"

namespace gpipe::distributed {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Say = WorldRanks::Say;

namespace nn = torch::nn;

constexpr std::chrono::milliseconds kCallLimit{400};
constexpr int64_t kBatches = 9;
constexpr int64_t kStrange = 2;  // the mini-batch in which something happens

void sleep_for(std::chrono::milliseconds time) { std::this_thread::sleep_for(time); }

WorldOptions limited() {
  WorldOptions options = WorldRanks::quick();
  options.call_limit = kCallLimit;
  return options;
}

torch::Tensor x(int64_t b) { return torch::full({4, 4}, 0.1 * static_cast<double>(b + 1)); }
torch::Tensor t(int64_t b) { return torch::full({4, 4}, static_cast<double>(b * b)); }

torch::Tensor loss(torch::Tensor output, torch::Tensor target) {
  return (output.mean() - target.mean()).square();
}

using Function = std::function<torch::Tensor(torch::Tensor)>;

nn::Sequential model(Function first, Function last) {
  torch::manual_seed(1);
  return nn::Sequential(testing::layer<torch::Tensor, torch::Tensor>(std::move(first)),
                        nn::Linear(4, 4), nn::Linear(4, 4),
                        testing::layer<torch::Tensor, torch::Tensor>(std::move(last)));
}
torch::Tensor same(torch::Tensor value) { return value * 1; }

// The outcome of each mini-batch of a run: "." if the loss is that of x(b) and t(b), "!" if it is
// another loss, "x" if the call threw.
struct Batches {
  std::string marks;
  std::vector<std::string> thrown;

  // `call` returns the loss, or no value if this rank has none.
  void add(int64_t b, const std::function<std::optional<double>()>& call) {
    try {
      const std::optional<double> got = call();
      const torch::NoGradGuard no_grad;
      double expected = 0;
      nn::Sequential plain = model(same, same);
      for (const torch::Tensor& rows : x(b).chunk(2)) {
        expected += loss(plain->forward(rows), t(b)).item<double>() / 2;
      }
      marks += !got || std::abs(*got - expected) < 1e-4 * (1 + expected) ? '.' : '!';
    } catch (const std::exception& error) {
      marks += 'x';
      thrown.emplace_back(error.what());
    }
  }
};

// The loop that users write, run on each of two ranks. `call` is the call itself. `before` runs
// within the same try, before the call, and `after_failure` in the catch.
struct Loop {
  std::function<std::optional<double>(GPipe&, int64_t b)> call = [](GPipe& pipe, int64_t b) {
    return pipe->step({x(b)}, {t(b)}, loss).loss;
  };
  // The layers get the rank and the number of its mini-batch.
  std::function<torch::Tensor(int64_t rank, int64_t b, torch::Tensor)> first_layer, last_layer;
  std::function<void(int64_t rank, int64_t b)> before, after_failure;
};

// Runs the loop on both ranks, and returns their marks.
std::vector<std::string> run(const Loop& loop, std::vector<std::string>* thrown = nullptr) {
  WorldRanks ranks(
      2,
      [&](const World& world, const Say& say) {
        int64_t b = 0;
        const auto layer = [&](const auto& function) {
          return [&](torch::Tensor value) {
            return function ? function(world.rank(), b, value) : same(value);
          };
        };
        GPipe pipe(model(layer(loop.first_layer), layer(loop.last_layer)),
                   GPipeOptions({2, 2}).chunks(2).cpu_threads_per_stage(1).world(world));
        Batches batches;
        for (; b < kBatches; ++b) {
          pipe->zero_grad();
          const size_t failures = batches.thrown.size();
          batches.add(b, [&] {
            if (loop.before) loop.before(world.rank(), b);
            return loop.call(pipe, b);
          });
          if (batches.thrown.size() > failures && loop.after_failure) {
            loop.after_failure(world.rank(), b);
          }
        }
        say(batches.marks);
        std::string all;
        for (const std::string& text : batches.thrown) all += text + "\n";
        for (char& c : all) c = c == '\n' ? ' ' : c;
        say(all);
      },
      limited());
  const std::vector<std::string> marks = ranks.lines();
  const std::vector<std::string> texts = ranks.lines();
  if (thrown != nullptr) *thrown = texts;
  ranks.expect_ends();
  return marks;
}

// A layer whose output has fewer columns in the second micro-batch of mini-batch kStrange.
torch::Tensor two_widths(int64_t b, torch::Tensor value) {
  static int64_t calls = 0;
  return b == kStrange && ++calls % 2 == 0 ? value.narrow(1, 0, 3) : same(value);
}

TEST(WorldCalls, OutputsThatCannotBeJoinedFailOnAll) {
  Loop loop;
  loop.last_layer = [](int64_t, int64_t b, torch::Tensor value) { return two_widths(b, value); };
  loop.call = [](GPipe& pipe, int64_t b) {
    return pipe->step({x(b)}, {t(b)}, loss, StepOptions().keep_outputs(true)).loss;
  };
  EXPECT_THAT(run(loop), Each("..x......"));
  loop.call = [](GPipe& pipe, int64_t b) {
    return pipe->evaluate({x(b)}, {t(b)}, loss, StepOptions().keep_outputs(true)).loss;
  };
  EXPECT_THAT(run(loop), Each("..x......"));
  loop.call = [](GPipe& pipe, int64_t b) -> std::optional<double> {
    const torch::NoGradGuard no_grad;
    if (b % 2 != 0) return pipe->evaluate({x(b)}, {t(b)}, loss).loss;
    (void)pipe->forward(Tensors{x(b)});
    return std::nullopt;
  };
  EXPECT_THAT(run(loop), Each("..x......"));
}

TEST(WorldCalls, ForwardOfOneTensorFailsOnAllWhereTheModelGivesMore) {
  WorldRanks ranks(
      2,
      [](const World& world, const Say& say) {
        GPipe pipe(nn::Sequential(nn::Linear(4, 4),
                                  testing::layer<torch::Tensor, std::vector<torch::Tensor>>(
                                      [](torch::Tensor value) {
                                        return std::vector<torch::Tensor>{value, value * 2};
                                      })),
                   GPipeOptions({1, 1}).cpu_threads_per_stage(1).world(world));
        const torch::NoGradGuard no_grad;
        say(outcome([&] { return pipe->forward(x(0)).defined() ? "well" : "nothing"; }));
        say(outcome([&] { return std::to_string(pipe->forward(Tensors{x(0)}).size()); }));
      },
      limited());
  EXPECT_THAT(ranks.lines(), Each(HasSubstr("the model gives 2 values")));
  EXPECT_THAT(ranks.lines(), ::testing::ElementsAre("0", "2"));
  ranks.expect_ends();
}

// After a failure one rank sleeps in its catch for longer than the other waits. That wait fails,
// but both ranks must still fail or succeed in the same mini-batches.
TEST(WorldCalls, AFailedAttemptToGoOnUsesUpNobodysCall) {
  Loop loop;
  loop.last_layer = [](int64_t, int64_t b, torch::Tensor value) {
    if (b == kStrange) throw std::runtime_error("boom");
    return same(value);
  };
  for (const int64_t late : {0, 1}) {
    for (const int64_t limits : {1, 2, 3}) {
      loop.after_failure = [&](int64_t rank, int64_t b) {
        if (rank == late && b == kStrange) sleep_for(kCallLimit * limits + kCallLimit / 2);
      };
      std::vector<std::string> thrown;
      const std::vector<std::string> marks = run(loop, &thrown);
      EXPECT_EQ(marks[0], marks[1]) << "rank " << late << " sleeps for " << limits;
      EXPECT_THAT(marks[0], AllOf(StartsWith("..xx"), ::testing::EndsWith("..")));
      EXPECT_EQ(marks[0].find('!'), std::string::npos) << marks[0];
      EXPECT_THAT(thrown[0], HasSubstr("did not come within 0.4 s"));
    }
  }
}

TEST(WorldCalls, ARankThatIsLateWithoutAFailure) {
  Loop loop;
  for (const int64_t late : {0, 1}) {
    loop.before = [&](int64_t rank, int64_t b) {
      if (rank == late && b == kStrange) sleep_for(kCallLimit * 5 / 2);
    };
    const std::vector<std::string> marks = run(loop);
    EXPECT_EQ(marks[0], marks[1]);
    EXPECT_THAT(marks[0], AllOf(StartsWith("..x"), ::testing::EndsWith("..")));
    EXPECT_EQ(marks[0].find('!'), std::string::npos) << marks[0];
  }
}

// A second thread of rank 0 waits in vain for its turn while the step takes long. The second thread
// of rank 1 begins to wait later, and gets its turn. The calls of both ranks must stay in step.
TEST(WorldCalls, ACallThatAnotherThreadHoldsUpForTooLongIsCounted) {
  std::thread second;
  Loop loop;
  loop.first_layer = [](int64_t, int64_t b, torch::Tensor value) {
    // The layer sleeps in each of the two micro-batches of this mini-batch.
    if (b == kStrange && !is_recomputing()) sleep_for(kCallLimit * 2);
    return same(value);
  };
  loop.call = [&](GPipe& pipe, int64_t b) {
    if (b == kStrange) {
      second = std::thread([&pipe] {
        sleep_for(pipe->is_here(0) ? kCallLimit / 2 : kCallLimit * 7 / 2);
        try {
          (void)pipe->parameter_hash();
        } catch (const std::exception&) {
        }
      });
    }
    const double found = pipe->step({x(b)}, {t(b)}, loss).loss;
    if (b == kStrange) sleep_for(kCallLimit / 4);  // gives the second thread its turn
    if (b == kBatches - 1) second.join();
    return found;
  };
  const std::vector<std::string> marks = run(loop);
  EXPECT_EQ(marks[0], marks[1]);
  EXPECT_THAT(marks[0], AllOf(StartsWith("..."), ::testing::EndsWith("..")));
  EXPECT_EQ(marks[0].find('!'), std::string::npos) << marks[0];
}

// A layer throws a type that the library throws on all ranks. Other ranks do not know of such an
// exception, so it must be told to them as the layer's.
TEST(WorldCalls, ALayerMayThrowWhatTheLibraryThrowsOnAll) {
  Loop loop;
  for (const bool is_disagreement : {true, false}) {
    loop.last_layer = [=](int64_t, int64_t b, torch::Tensor value) {
      if (b != kStrange) return same(value);
      if (is_disagreement) throw Disagreement("of the layer's own");
      throw DistributedFailure({Fault{FaultKind::kException, 0, "host", -1, -1, "", "an old one"}});
    };
    std::vector<std::string> thrown;
    EXPECT_THAT(run(loop, &thrown), Each("..x......"));
    EXPECT_THAT(thrown, Each(HasSubstr(is_disagreement ? "of the layer's own" : "an old one")));
  }
}

// If a rank has begun fewer calls than another one, all ranks throw an error that names it, and
// then all go on.
TEST(WorldCalls, ARankThatIsBehindIsNamedOnAll) {
  WorldRanks ranks(
      3,
      [](const World& world, const Say& say) {
        GPipe pipe(model(same, same),
                   GPipeOptions({2, 1, 1}).chunks(2).cpu_threads_per_stage(1).world(world));
        const auto step = [&](int64_t b, bool boom) {
          return outcome([&] {
            return "loss " +
                   std::to_string(pipe->step({x(b)}, {t(b)},
                                             [&](torch::Tensor output, torch::Tensor target) {
                                               if (boom) throw std::runtime_error("boom");
                                               return loss(output, target);
                                             })
                                      .loss);
          });
        };
        say(step(0, true));
        // While rank 1 sleeps, ranks 0 and 2 give up the call that rank 1 has not begun. So rank 1
        // is behind when it wakes.
        if (world.rank() == 1) sleep_for(kCallLimit * 3 / 2);
        for (int64_t b = 1; b < 6; ++b) say(step(b, false));
      },
      limited());
  EXPECT_THAT(ranks.lines(), Each(HasSubstr("boom")));
  const std::vector<std::string> second = ranks.lines();
  EXPECT_THAT(second, Each(HasSubstr("rank 1 did not come within 0.4 s to the first call after")));
  for (int64_t b = 2; b < 6; ++b) {
    const std::vector<std::string> lines = ranks.lines();
    EXPECT_THAT(lines, Each(lines[0])) << b;
    if (b == 5) {
      EXPECT_THAT(lines[0], StartsWith("loss "));
    }
  }
  ranks.expect_ends();
}

// If the optimizer of one rank throws in ZeroOptimizer::step(), the step fails on all ranks, even
// without replicas, and all ranks go on.
TEST(WorldCalls, AnOptimizerThatThrowsFailsOnAll) {
  struct Throwing : torch::optim::SGD {
    Throwing(std::vector<at::Tensor> parameters, bool throws)
        : SGD(std::move(parameters), torch::optim::SGDOptions(0)), throws(throws) {}
    torch::Tensor step(LossClosure closure) override {
      if (throws && ++steps == kStrange + 1) throw std::runtime_error("no room");
      return SGD::step(std::move(closure));
    }
    bool throws;
    int64_t steps = 0;
  };
  for (const int64_t odd : {0, 1}) {
    WorldRanks ranks(
        2,
        [&](const World& world, const Say& say) {
          GPipe pipe(model(same, same),
                     GPipeOptions({2, 2}).chunks(2).cpu_threads_per_stage(1).world(world));
          ZeroOptimizer optimizer(pipe, [&](std::vector<at::Tensor> parameters) {
            return std::make_unique<Throwing>(std::move(parameters), world.rank() == odd);
          });
          Batches batches;
          for (int64_t b = 0; b < kBatches; ++b) {
            batches.add(b, [&]() -> std::optional<double> {
              const double got = pipe->step({x(b)}, {t(b)}, loss).loss;
              optimizer.step();
              return got;
            });
          }
          say(batches.marks);
        },
        limited());
    EXPECT_THAT(ranks.lines(), Each("..x......")) << odd;
    ranks.expect_ends();
  }
}

// If the function of a ZeroOptimizer throws on one rank, the making fails on all ranks. If the
// others went on, they would be calls ahead, and train on other mini-batches than that rank.
TEST(WorldCalls, AnOptimizerThatCannotBeMadeFailsOnAll) {
  for (const int64_t odd : {0, 1}) {
    for (const bool is_null : {false, true}) {
      WorldRanks ranks(
          2,
          [&](const World& world, const Say& say) {
            GPipe pipe(model(same, same),
                       GPipeOptions({2, 2}).chunks(2).cpu_threads_per_stage(1).world(world));
            Batches batches;
            for (int64_t b = 0; b < kBatches; ++b) {
              batches.add(b, [&]() -> std::optional<double> {
                ZeroOptimizer optimizer(
                    pipe,
                    [&](std::vector<at::Tensor> parameters) -> std::unique_ptr<torch::optim::SGD> {
                      if (b == kStrange && world.rank() == odd) {
                        if (is_null) return nullptr;
                        throw std::runtime_error("no room");
                      }
                      return std::make_unique<torch::optim::SGD>(std::move(parameters),
                                                                 torch::optim::SGDOptions(0));
                    });
                const double got = pipe->step({x(b)}, {t(b)}, loss).loss;
                optimizer.step();
                return got;
              });
            }
            say(batches.marks);
            say(batches.thrown.empty() ? "nothing" : batches.thrown[0]);
          },
          limited());
      EXPECT_THAT(ranks.lines(), Each("..x......")) << odd;
      const std::vector<std::string> thrown = ranks.lines();
      EXPECT_THAT(thrown, Each(HasSubstr(is_null ? "returned null" : "no room")));
      EXPECT_THAT(thrown[static_cast<size_t>(1 - odd)], HasSubstr("rank " + std::to_string(odd)));
      ranks.expect_ends();
    }
  }
}

// `make` runs within the call of all processes. Another such call would wait for that one to end.
TEST(WorldCalls, ACallInTheMakingOfAnOptimizerIsRefused) {
  WorldRanks ranks(
      2,
      [&](const World& world, const Say& say) {
        GPipe pipe(model(same, same), GPipeOptions({2, 2}).world(world));
        const auto make = [&](bool calls) {
          return outcome([&] {
            const ZeroOptimizer optimizer(pipe, [&](std::vector<at::Tensor> parameters) {
              if (calls) (void)pipe->parameter_hash();
              return std::make_unique<torch::optim::SGD>(std::move(parameters),
                                                         torch::optim::SGDOptions(0.1));
            });
            return "made";
          });
        };
        say(make(true));
        say(make(false));
      },
      limited());
  EXPECT_THAT(ranks.lines(), Each(HasSubstr("would wait for itself")));
  EXPECT_THAT(ranks.lines(), Each("made"));
  ranks.expect_ends();
}

// A last layer that uses the weight of the first layer, as a tied language model does.
struct TiedHead : nn::Module, TiedLayer {
  explicit TiedHead(torch::Tensor weight) : weight(std::move(weight)) {}
  std::vector<torch::Tensor> tied_parameters() const override { return {weight}; }
  void use_tied_parameters(const std::vector<torch::Tensor>& parameters) override {
    weight = parameters[0];
  }
  torch::Tensor forward(torch::Tensor value) { return value.mm(weight.slice(0, 0, 4).t()); }
  torch::Tensor weight;
};

// Rank 0 fails after it has sent the tied weight. Rank 1 may not have taken that message yet, and
// must not take it for the weight of the next step.
TEST(WorldCalls, ACopyOfATiedWeightIsThatOfTheOwnerAfterAFailure) {
  WorldRanks ranks(
      2,
      [&](const World& world, const Say& say) {
        const auto train = [&](bool fails) {
          torch::manual_seed(1);
          const nn::Linear first(nn::LinearOptions(4, 20'000).bias(false));
          GPipe pipe(nn::Sequential(first,
                                    testing::layer<torch::Tensor, torch::Tensor>(
                                        [](torch::Tensor value) { return value.slice(1, 0, 4); }),
                                    nn::Linear(4, 4), std::make_shared<TiedHead>(first->weight)),
                     GPipeOptions({2, 2}).chunks(2).cpu_threads_per_stage(1).world(world));
          torch::optim::SGD optimizer(pipe->local_parameters(), torch::optim::SGDOptions(0.1));
          bool fails_now = false;
          const auto options = StepOptions().schedule([&](int64_t stages, int64_t micro_batches) {
            if (std::exchange(fails_now, false)) throw std::runtime_error("no schedule");
            return Schedule::one_f_one_b(stages, micro_batches);
          });
          for (int64_t b = 0; b < 24; ++b) {
            fails_now = fails && world.rank() == 0 && b % 2 == 1;
            for (int tries = 0; tries < 2; ++tries) {
              try {
                pipe->zero_grad();
                pipe->step({x(b)}, {t(b % 3)}, loss, options);
                optimizer.step();
                break;
              } catch (const std::exception&) {
                if (!fails) throw;
              }
            }
          }
          return pipe->parameter_hash();
        };
        say(outcome([&] { return train(true) == train(false) ? "the same" : "other values"; }));
      },
      limited());
  EXPECT_THAT(ranks.lines(), Each("the same"));
  ranks.expect_ends();
}

// One rank throws, or is late, at one of its first calls. All ranks must agree on the outcome of
// each call, and must be able to make the next pipeline, which has the same number on all ranks.
TEST(WorldCalls, AFailureOrADelayAtEachOfTheFirstCalls) {
  enum class What { kThrows, kIsLate };
  for (const What what : {What::kThrows, What::kIsLate}) {
    for (int64_t odd = 0; odd < 2; ++odd) {
      for (int64_t at = 0; at < 4; ++at) {
        WorldRanks ranks(
            2,
            [&](const World& world, const Say& say) {
              const auto strange = [&](int64_t call) {
                if (world.rank() != odd || call != at) return false;
                if (what == What::kIsLate) sleep_for(kCallLimit * 5 / 2);
                return what == What::kThrows;
              };
              std::string marks;
              const auto mark = [&](const std::function<void()>& call) {
                try {
                  call();
                  marks += '.';
                } catch (const std::exception& error) {
                  marks += 'x';
                }
              };
              std::unique_ptr<GPipe> pipe;
              const auto make = [&](bool throws) {
                struct Layer : nn::Module {
                  explicit Layer(bool throws) : throws(throws) {}
                  torch::Tensor forward(torch::Tensor value) { return value * 1; }
                  void to(torch::Device device, bool non_blocking) override {
                    if (throws) throw std::runtime_error("no room");
                    nn::Module::to(device, non_blocking);
                  }
                  bool throws;
                };
                const nn::Sequential all = [&] {
                  const MetaScope meta;
                  return nn::Sequential(std::make_shared<Layer>(throws && odd == 0),
                                        nn::Linear(4, 4), nn::Linear(4, 4),
                                        std::make_shared<Layer>(throws && odd == 1));
                }();
                pipe = std::make_unique<GPipe>(
                    all, GPipeOptions({2, 2}).cpu_threads_per_stage(1).world(world));
              };
              const auto fill = [&](bool throws) {
                (*pipe)->materialize([&](const std::string&, at::Tensor& tensor, at::Generator) {
                  if (throws) throw std::runtime_error("no such file");
                  tensor.fill_(0.5);
                });
              };
              for (int64_t tries = 0; pipe == nullptr && tries < 5; ++tries) {
                mark([&] { make(tries == 0 && strange(0)); });
              }
              bool is_filled = false;
              for (int64_t tries = 0; !is_filled && tries < 5; ++tries) {
                mark([&] {
                  fill(tries == 0 && strange(1));
                  is_filled = true;
                });
              }
              for (int64_t b = 0; b < 4; ++b) {
                mark([&] {
                  const bool throws = b == 0 && strange(2);
                  (*pipe)->step({x(b)}, {t(b)}, loss,
                                StepOptions().schedule([&](int64_t stages, int64_t micro_batches) {
                                  if (throws) throw std::runtime_error("no schedule");
                                  return Schedule::gpipe(stages, micro_batches);
                                }));
                });
              }
              for (int64_t tries = 0; tries < 4; ++tries) {
                mark([&] { make(tries == 0 && strange(3)); });
              }
              mark([&] { fill(false); });
              mark([&] { (*pipe)->step({x(0)}, {t(0)}, loss); });
              say(marks);
            },
            limited());
        const std::vector<std::string> lines = ranks.lines();
        EXPECT_EQ(lines[0], lines[1]) << odd << " " << at << " " << static_cast<int>(what);
        EXPECT_THAT(lines[0], ::testing::EndsWith("....")) << odd << " " << at;
        EXPECT_NE(lines[0].find('x'), std::string::npos) << odd << " " << at;
        ranks.expect_ends();
      }
    }
  }
}

// Each process has two stages, so layers run on threads of their own. A call of all processes from
// a layer, the loss, a hook or an observer is refused at once.
TEST(WorldCalls, ACallInTheMidstOfARunIsRefusedAtOnce) {
  enum Place { kLayer, kLoss, kHook, kObserver, kWeight, kPlaces };
  const std::string path = ::testing::TempDir() + "/midst" + std::to_string(getpid());
  WorldRanks ranks(2, [&](const World& world, const Say& say) {
    std::function<void()> in_layer;
    std::function<void()> in_hook;
    GPipe pipe(model([](torch::Tensor value) { return value * 1; },
                     [&](torch::Tensor value) {
                       if (in_layer) in_layer();
                       if (in_hook && value.requires_grad()) {
                         value.register_hook([&](torch::Tensor gradient) {
                           in_hook();
                           return gradient;
                         });
                       }
                       return value * 1;
                     }),
               GPipeOptions({1, 1, 1, 1})
                   .chunks(2)
                   .cpu_threads_per_stage(1)
                   .placement(Placement::one_each(4).processes({0, 0, 1, 1}))
                   .world(world));
    ZeroOptimizer optimizer(pipe, [](std::vector<at::Tensor> parameters) {
      return std::make_unique<torch::optim::SGD>(std::move(parameters),
                                                 torch::optim::SGDOptions(0.1));
    });
    Timeline timeline;
    const std::vector<std::function<void()>> calls = {
        [&] { save_checkpoint(pipe, optimizer, {}, path); },
        [&] { (void)load_checkpoint(pipe, optimizer, path); },
        [&] { optimizer.step(); },
        [&] { (void)from_rank_0(world, [] { return std::string("text"); }); },
        [&] { (void)gather_timelines(world, timeline); },
        [&] { (void)pipe->clip_grad_norm_(1); },
        [&] { (void)pipe->unscale_gradients_(2); },
        [&] { (void)pipe->parameter_hash(); },
        [&] { pipe->materialize([](const std::string&, at::Tensor&, at::Generator) {}); },
        [&] { pipe->step({x(0)}, {t(0)}, loss); },
        [&] { (void)World::from_environment(WorldRanks::quick()); },
        [&] {
          const GPipe other(nn::Sequential(nn::Linear(4, 4), nn::Linear(4, 4)),
                            GPipeOptions({1, 1}).world(world));
        }};
    for (int place = 0; place < kPlaces; ++place) {
      for (const auto& call : calls) {
        in_layer = place == kLayer ? call : nullptr;
        in_hook = place == kHook ? call : nullptr;
        StepOptions step_options;
        if (place == kWeight) {
          step_options.weight([&](const Tensors&) {
            call();
            return 1.0;
          });
        }
        if (place == kObserver) {
          step_options.on_event([&](const Event& event) {
            if (event.action.stage == 3) call();
          });
        }
        const auto begin = std::chrono::steady_clock::now();
        std::string text = outcome([&]() -> std::string {
          pipe->step(
              {x(0)}, {t(0)},
              [&](torch::Tensor output, torch::Tensor target) {
                if (place == kLoss) call();
                return loss(output, target);
              },
              step_options);
          return "went well";
        });
        const bool is_late = std::chrono::steady_clock::now() - begin > std::chrono::seconds(5);
        say(is_late ? "late: " + text : text.substr(0, text.find("\nException raised")));
      }
    }
    in_layer = in_hook = nullptr;
    say(outcome([&] { return "loss " + std::to_string(pipe->step({x(0)}, {t(0)}, loss).loss); }));
  });
  for (int place = 0; place < kPlaces; ++place) {
    for (int call = 0; call < 12; ++call) {
      const std::vector<std::string> lines = ranks.lines();
      for (const std::string& line : lines) {
        EXPECT_THAT(line, ::testing::AnyOf(HasSubstr("its loss function, a hook or an observer"),
                                           HasSubstr("from inside a layer of a pipeline"),
                                           HasSubstr("in a schedule's generator, ")))
            << place << " " << call;
        EXPECT_THAT(line, ::testing::Not(StartsWith("late")));
      }
      EXPECT_THAT(lines[1], StartsWith("value error: ")) << place << " " << call;
      EXPECT_THAT(lines[0], StartsWith("failure: rank 1")) << place << " " << call;
    }
  }
  EXPECT_THAT(ranks.lines(), Each(StartsWith("loss ")));
  ranks.expect_ends();
}

// A thread that a layer starts and joins cannot be told from any other thread of the user, which
// may wait for another rank. So only the limit ends its call.
TEST(WorldCalls, AThreadThatALayerStartsAndJoinsEndsWithTheLimit) {
  for (const int64_t stages : {2, 4}) {
    WorldRanks ranks(
        2,
        [&](const World& world, const Say& say) {
          GPipe* made = nullptr;
          bool calls = false;
          GPipe pipe(model(same,
                           [&](torch::Tensor value) {
                             if (std::exchange(calls, false)) {
                               std::async(std::launch::async, [&] {
                                 (void)(*made)->parameter_hash();
                               }).get();
                             }
                             return same(value);
                           }),
                     stages == 2 ? GPipeOptions({2, 2}).world(world)
                                 : GPipeOptions({1, 1, 1, 1})
                                       .placement(Placement::one_each(4).processes({0, 0, 1, 1}))
                                       .world(world));
          made = &pipe;
          calls = world.rank() == 1;
          const auto step = [&] {
            return outcome(
                [&] { return "loss " + std::to_string(pipe->step({x(0)}, {t(0)}, loss).loss); });
          };
          say(step());
          say(step());
        },
        limited());
    EXPECT_THAT(ranks.lines(), Each(HasSubstr("has started this thread, and waits for it")));
    EXPECT_THAT(ranks.lines(), Each(StartsWith("loss ")));
    ranks.expect_ends();
  }
}

// In one process such a call would not wait, but it would read or change what the run uses. So it
// is refused there, too.
TEST(WorldCalls, InOneProcessTooAPipelineIsLeftAloneInTheMidstOfARun) {
  const std::string path = ::testing::TempDir() + "/alone" + std::to_string(getpid());
  WorldRanks ranks(1, [&](const World& world, const Say& say) {
    GPipe pipe(model(same, same), GPipeOptions({2, 2}).world(world));
    torch::optim::SGD optimizer(pipe->parameters(), torch::optim::SGDOptions(0.1));
    save_checkpoint(pipe, optimizer, {}, path);
    const std::vector<std::function<void()>> calls = {
        [&] { save_checkpoint(pipe, optimizer, {}, path); },
        [&] { (void)load_checkpoint(pipe, optimizer, path); },
        [&] { (void)pipe->clip_grad_norm_(1); },
        [&] { (void)pipe->unscale_gradients_(2); },
        [&] { (void)pipe->parameter_hash(); },
        [&] { pipe->materialize([](const std::string&, at::Tensor&, at::Generator) {}); },
        [&] {
          std::stringstream stream;
          torch::save(pipe, stream);
        },
        [&] {
          std::stringstream stream;
          torch::save(model(same, same), stream);
          torch::load(pipe, stream);
        }};
    for (const auto& call : calls) {
      say(outcome([&]() -> std::string {
        pipe->step({x(0)}, {t(0)}, [&](torch::Tensor output, torch::Tensor target) {
          call();
          return loss(output, target);
        });
        return "went well";
      }));
    }
  });
  for (int call = 0; call < 7; ++call) {
    EXPECT_THAT(ranks->next(0), AllOf(StartsWith("value error: "),
                                      HasSubstr("its loss function, a hook or an observer")))
        << call;
  }
  ranks.expect_ends();
}

// Each rank leaves out one mini-batch, but not the same one. That mistake is not an error, because
// all calls are made together all the same. But there is a warning.
TEST(WorldCalls, ARankThatThrowsBeforeItsCallIsWarnedOf) {
  WorldRanks ranks(
      2,
      [](const World& world, const Say& say) {
        const testing::LogCapture log;
        GPipe pipe(model(same, same), GPipeOptions({2, 2}).cpu_threads_per_stage(1).world(world));
        for (int64_t b = 0; b < kBatches; ++b) {
          pipe->zero_grad();
          if (world.rank() == 1 && b == kStrange) continue;
          if (world.rank() == 0 && b == kBatches - 1) continue;
          pipe->step({x(b)}, {t(b)}, loss);
        }
        std::string all;
        for (const std::string& text : log.warnings()) all += text + "; ";
        say(all);
      },
      limited());
  EXPECT_THAT(ranks.lines(), Each(AllOf(HasSubstr("3 times on rank 0, and 4 times on rank 1"),
                                        HasSubstr("has missed one that the others make"))));
  ranks.expect_ends();
}

// A layer with a parameter that has a name from the start, but gets its shape only in the first
// forward.
struct LaterShapedImpl : nn::Module {
  LaterShapedImpl() { register_parameter("late", torch::Tensor(), /*requires_grad=*/false); }
  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor& late = parameters_["late"];
    if (!late.defined()) late = torch::ones({4}).requires_grad_();
    return x * late;
  }
};
TORCH_MODULE(LaterShaped);

TEST(WorldCalls, WhatOneRankCannotRegisterFailsOnAll) {
  WorldRanks ranks(2, [](const World& world, const Say& say) {
    GPipe pipe(nn::Sequential(LaterShaped(), nn::Linear(4, 4)),
               GPipeOptions({1, 1}).cpu_threads_per_stage(1).world(world));
    const auto step = [&]() -> std::string {
      const auto mean = [](const Tensors& outputs, const Tensors&) { return outputs[0].mean(); };
      pipe->step({x(0)}, {}, mean);
      return "went well";
    };
    for (int k = 0; k < 2; ++k) say(outcome(step));
  });
  EXPECT_THAT(ranks.lines(), Each(HasSubstr("rank 1 cannot register in its copy of the layer: "
                                            "Parameter 'late' already defined")));
  EXPECT_THAT(ranks.lines(), Each(HasSubstr("when the layer is made")));
  ranks.expect_ends();
}

TEST(WorldCalls, PathsOfACheckpointMustBeTheSame) {
  // The path is long, so that the message can show only a part of it. That part must show the
  // difference.
  const std::string name = "/paths" + std::to_string(getpid());
  const std::string path = ::testing::TempDir() + name;
  WorldRanks ranks(2, [&](const World& world, const Say& say) {
    GPipe pipe(model(same, same), GPipeOptions({2, 2}).cpu_threads_per_stage(1).world(world));
    torch::optim::SGD optimizer(pipe->local_parameters(), torch::optim::SGDOptions(0.1));
    const auto save = [&](const std::string& to) {
      return outcome([&]() -> std::string {
        save_checkpoint(pipe, optimizer, {}, to);
        return "saved";
      });
    };
    say(save(path + std::to_string(world.rank())));
    say(save(path + std::string("\0x", 2)));
    say(save(path));
  });
  EXPECT_THAT(ranks.lines(), Each(AllOf(HasSubstr("save_checkpoint: the path must be the same"),
                                        HasSubstr(name + "0"), HasSubstr(name + "1"))));
  EXPECT_THAT(ranks.lines(), Each(HasSubstr("has a NUL byte")));
  EXPECT_THAT(ranks.lines(), Each("saved"));
  ranks.expect_ends();
}

}  // namespace
}  // namespace gpipe::distributed
