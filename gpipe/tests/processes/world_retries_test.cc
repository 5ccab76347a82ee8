// Runs random programs over processes that catch what is thrown and go on training. Again and again
// a rank throws, is late, or makes a call in the wrong place. The same mini-batches must succeed on
// all ranks, with the bits of a loop over these mini-batches alone.
//
// Draws 30 programs; GPIPE_RETRIES=2000 draws as many, GPIPE_TEST_SEED others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/distributed/control/agreement.h"
#include "gpipe/distributed/control/failure.h"
#include "gpipe/distributed/from_rank_0.h"
#include "gpipe/gpipe.h"
#include "gpipe/testing/number_from.h"
#include "gpipe/testing/processes/world_ranks.h"
#include "gpipe/testing/seed.h"
#include "gpipe/zero_optimizer.h"

namespace gpipe::distributed {
namespace {

namespace nn = torch::nn;
using Say = WorldRanks::Say;
using std::chrono::milliseconds;

constexpr milliseconds kCallLimit{250};
constexpr int64_t kChunks = 4;
constexpr int64_t kRows = 8;

enum class Place { kBefore, kLayer, kLoss, kHook, kObserver, kOptimizer, kOutputs, kCatch };
constexpr int64_t kPlaces = 8;
enum class Kind { kThrow, kNoMemory, kDisagreement, kFailure, kWrongCall, kDelay };
constexpr int64_t kKinds = 6;

const char* name_of(Place place) {
  constexpr const char* kNames[] = {"before the call", "a layer",      "the loss",
                                    "a hook",          "an observer",  "the optimizer",
                                    "the outputs",     "after a catch"};
  return kNames[static_cast<int>(place)];
}
const char* name_of(Kind kind) {
  constexpr const char* kNames[] = {
      "throws",       "has no memory", "throws Disagreement", "throws DistributedFailure",
      "makes a call", "is late"};
  return kNames[static_cast<int>(kind)];
}

struct Strike {
  int64_t rank = 0;
  int64_t batch = 0;
  int64_t attempt = 0;  // the number of the attempt at that mini-batch
  Place place = Place::kLayer;
  Kind kind = Kind::kThrow;
  int64_t detail = 0;  // how late the rank is, or which call it makes
};

struct Program {
  uint64_t seed = 0;
  int64_t batches = 5;
  int64_t attempts = 1;  // the most attempts at a mini-batch
  int64_t stages_each = 1;
  bool keeps_outputs = false;
  bool clips = false;
  bool evaluates = false;
  bool hashes = false;
  std::vector<Strike> strikes;
  int64_t unmade_rank = 0;  // the rank whose optimizer cannot be made at first
  int64_t unmade = 0;       // how many times
};

std::string to_text(const Program& program) {
  std::ostringstream text;
  text << "seed " << program.seed << ": " << program.batches << " mini-batches, "
       << program.attempts << " attempts, " << program.stages_each << " stages each"
       << (program.keeps_outputs ? ", outputs" : "") << (program.clips ? ", clips" : "")
       << (program.evaluates ? ", evaluates" : "") << (program.hashes ? ", hashes" : "");
  for (const Strike& strike : program.strikes) {
    text << "; rank " << strike.rank << " " << name_of(strike.kind) << " in "
         << name_of(strike.place) << ", mini-batch " << strike.batch << ", attempt "
         << strike.attempt << " (" << strike.detail << ")";
  }
  if (program.unmade > 0) {
    text << "; rank " << program.unmade_rank << " cannot make the optimizer, " << program.unmade
         << " times";
  }
  return text.str();
}

Program draw(uint64_t seed, int64_t size) {
  std::mt19937_64 random(seed);
  const auto below = [&](int64_t end) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(end));
  };
  Program program;
  program.seed = seed;
  program.batches = 3 + below(5);
  program.attempts = 1 + below(3);
  program.stages_each = 1 + below(2);
  program.keeps_outputs = below(2) == 0;
  program.clips = below(2) == 0;
  program.evaluates = below(3) == 0;
  program.hashes = below(3) == 0;
  const int64_t count = 1 + below(4);
  for (int64_t k = 0; k < count; ++k) {
    Strike strike;
    strike.rank = below(size);
    strike.batch = below(program.batches - 1);
    strike.attempt = below(program.attempts);
    strike.place = static_cast<Place>(below(kPlaces));
    strike.kind = static_cast<Kind>(below(kKinds));
    strike.detail = below(3);
    // Outside of all calls only delays are drawn: other ranks do not learn of an exception there,
    // and the loop for comparison would not have it.
    if (strike.place == Place::kBefore || strike.place == Place::kCatch) strike.kind = Kind::kDelay;
    if (strike.place == Place::kOutputs) program.keeps_outputs = true;
    program.strikes.push_back(strike);
    // After half of the failures a rank is late to go on.
    if (strike.kind != Kind::kDelay && below(2) == 0) {
      Strike late = strike;
      late.rank = below(size);
      late.place = Place::kCatch;
      late.kind = Kind::kDelay;
      program.strikes.push_back(late);
    }
  }
  program.unmade_rank = below(size);
  program.unmade = std::max<int64_t>(0, below(4) - 1);
  return program;
}

// Makes the strikes of one rank happen. Layers call this object on several threads.
class Striker {
 public:
  Striker(const Program& program, int64_t rank) {
    for (const Strike& strike : program.strikes) {
      if (strike.rank == rank) strikes_.push_back(strike);
    }
  }

  void begin(int64_t batch, int64_t attempt) {
    const std::lock_guard<std::mutex> lock(mutex_);
    batch_ = batch;
    attempt_ = attempt;
  }
  // Whether a strike is due at this place, which is set in *due. Each strike is due once.
  bool is_due(Place place, Strike* due) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto strike = strikes_.begin(); strike != strikes_.end(); ++strike) {
      if (strike->place != place || strike->batch != batch_ || strike->attempt != attempt_)
        continue;
      *due = *strike;
      strikes_.erase(strike);
      return true;
    }
    return false;
  }
  void at(Place place) {
    Strike strike;
    if (!is_due(place, &strike)) return;
    switch (strike.kind) {
      case Kind::kThrow:
        throw std::runtime_error("a fault of the test");
      case Kind::kNoMemory:
        throw std::bad_alloc();
      case Kind::kDisagreement:
        throw Disagreement("of the program's own");
      case Kind::kFailure:
        throw DistributedFailure(
            {Fault{FaultKind::kException, 0, "host", -1, -1, "", "an old one"}});
      case Kind::kWrongCall:
        return wrong_calls.at(static_cast<size_t>(strike.detail))();
      case Kind::kDelay:
        return std::this_thread::sleep_for(kCallLimit * (1 + 2 * strike.detail) / 2);
    }
  }

  std::vector<std::function<void()>> wrong_calls;

 private:
  std::mutex mutex_;
  std::vector<Strike> strikes_;
  int64_t batch_ = 0;
  int64_t attempt_ = 0;
};

struct StruckImpl : nn::Module {
  StruckImpl(Striker& striker, bool is_last) : striker(striker), is_last(is_last) {
    linear = register_module("linear", nn::Linear(6, 6));
  }
  torch::Tensor forward(torch::Tensor x) {
    striker.at(Place::kLayer);
    x = linear(x).tanh();
    if (x.requires_grad()) {
      x.register_hook([this](torch::Tensor gradient) {
        striker.at(Place::kHook);
        return gradient;
      });
    }
    // A strike at kOutputs: outputs of two widths cannot be joined.
    Strike strike;
    return is_last && striker.is_due(Place::kOutputs, &strike) ? x.narrow(1, 0, 5) : x;
  }
  Striker& striker;
  bool is_last;
  nn::Linear linear{nullptr};
};
TORCH_MODULE(Struck);

struct StruckSgd : torch::optim::SGD {
  StruckSgd(std::vector<at::Tensor> parameters, Striker& striker)
      : SGD(std::move(parameters), torch::optim::SGDOptions(0.1)), striker(striker) {}
  torch::Tensor step(LossClosure closure) override {
    torch::Tensor result = SGD::step(std::move(closure));
    striker.at(Place::kOptimizer);
    return result;
  }
  Striker& striker;
};

torch::Tensor numbers(int64_t batch, double factor) {
  return torch::arange(kRows * 6, torch::kFloat)
      .reshape({kRows, 6})
      .mul(factor * static_cast<double>(batch + 1))
      .sin();
}

std::string bits(double value) {
  std::ostringstream text;
  text << std::hexfloat << value;
  return text.str();
}

// Trains by one program, as a rank of a run or alone in a single process.
class Training {
 public:
  // `can_make`: whether this rank can make the optimizer.
  Training(World world, const Program& program, int64_t stages, bool can_make = true)
      : world_(std::move(world)), program_(program), striker_(program, world_.rank()) {
    torch::manual_seed(7);
    nn::Sequential model;
    for (int64_t k = 0; k < stages; ++k) model->push_back(Struck(striker_, k == stages - 1));
    std::vector<int64_t> process_of_stage;
    for (int64_t k = 0; k < stages; ++k) {
      process_of_stage.push_back(k * world_.processes_each() / stages);
    }
    GPipeOptions options(std::vector<int64_t>(static_cast<size_t>(stages), 1));
    options.chunks(kChunks).groups(2).cpu_threads_per_stage(1).world(world_);
    if (world_.size() > 1) {
      options.placement(Placement::one_each(stages).processes(process_of_stage));
    }
    pipe_ = GPipe(model, options);
    optimizer_ = std::make_unique<ZeroOptimizer>(pipe_, [&](std::vector<at::Tensor> parameters) {
      if (!can_make) throw std::runtime_error("no optimizer");
      return std::make_unique<StruckSgd>(std::move(parameters), striker_);
    });
    striker_.wrong_calls = {[&] { (void)pipe_->parameter_hash(); }, [&] { optimizer_->step(); },
                            [&] { (void)from_rank_0(world_, [] { return std::string("text"); }); }};
  }

  // The outcome of each attempt, and the losses of the successful ones, as one line.
  std::string run() {
    std::string marks;
    for (int64_t batch = 0; batch < program_.batches; ++batch) {
      for (int64_t attempt = 0; attempt < program_.attempts; ++attempt) {
        striker_.begin(batch, attempt);
        const std::vector<at::Tensor> before = values();
        pipe_->zero_grad();
        try {
          striker_.at(Place::kBefore);
          const std::string loss = one(batch);
          marks += " " + std::to_string(batch) + ":" + loss;
          done_.push_back(batch);
          break;
        } catch (const std::exception& error) {
          marks += " x";
          texts_ += std::string(error.what()).substr(0, 300) + "\n";
          restore(before);
          striker_.at(Place::kCatch);
        }
      }
    }
    return marks;
  }
  // Runs the loop for comparison: these mini-batches alone, without strikes.
  std::string run(const std::vector<int64_t>& batches) {
    std::string marks;
    for (const int64_t batch : batches) {
      pipe_->zero_grad();
      marks += " " + std::to_string(batch) + ":" + one(batch);
    }
    return marks;
  }

  std::string hash() { return pipe_->parameter_hash(); }
  const std::vector<int64_t>& done() const { return done_; }
  const std::string& texts() const { return texts_; }

 private:
  std::string one(int64_t batch) {
    const RowRange rows = world_.rows(kRows, kChunks);
    const torch::Tensor input = numbers(batch, 0.1).slice(0, rows.begin, rows.end);
    const torch::Tensor target = numbers(batch, 0.7).slice(0, rows.begin, rows.end);
    const LossFn loss_fn = [&](torch::Tensor output, torch::Tensor wanted) {
      striker_.at(Place::kLoss);
      return torch::mse_loss(output, wanted.narrow(1, 0, output.size(1)));
    };
    StepOptions options;
    options.keep_outputs(program_.keeps_outputs).on_event([&](const Event&) {
      striker_.at(Place::kObserver);
    });
    std::string result = bits(pipe_->step({input}, {target}, loss_fn, options).loss);
    if (program_.clips) result += " " + bits(pipe_->clip_grad_norm_(0.5));
    optimizer_->step();
    if (program_.evaluates) {
      result += " " + bits(pipe_->evaluate({input}, {target}, loss_fn).loss);
    }
    if (program_.hashes) result += " " + pipe_->parameter_hash();
    return result;
  }

  std::vector<at::Tensor> values() {
    std::vector<at::Tensor> values;
    for (const at::Tensor& parameter : pipe_->local_parameters()) {
      values.push_back(parameter.detach().clone());
    }
    return values;
  }
  void restore(const std::vector<at::Tensor>& values) {
    const torch::NoGradGuard no_grad;
    const std::vector<at::Tensor> parameters = pipe_->local_parameters();
    for (size_t k = 0; k < parameters.size(); ++k) parameters[k].copy_(values[k]);
  }

  World world_;
  const Program& program_;
  Striker striker_;
  GPipe pipe_{nullptr};
  std::unique_ptr<ZeroOptimizer> optimizer_;
  std::vector<int64_t> done_;
  std::string texts_;
};

// Repeats a call that the test itself makes until it succeeds. After it all ranks are in step
// again.
template <typename Call>
void until_done(const Call& call) {
  for (int tries = 0;; ++tries) {
    try {
      return call();
    } catch (const std::exception&) {
      if (tries == 200) throw;  // on a busy machine a rank may compute for long before it comes
    }
  }
}

// Removes the marks of failures, each of which is " x".
std::string without_failures(const std::string& marks) {
  std::string well;
  std::istringstream words(marks);
  for (std::string word; words >> word;) well += word == "x" ? "" : " " + word;
  return well;
}

void run_programs(int64_t size, int64_t replicas, uint64_t count) {
  constexpr uint64_t kInOneSession = 10;
  WorldOptions options = WorldRanks::quick();
  options.call_limit = kCallLimit;
  std::map<std::string, int64_t> counts;
  for (uint64_t first = 0; first < count; first += kInOneSession) {
    std::vector<Program> programs;
    for (uint64_t k = first; k < std::min(count, first + kInOneSession); ++k) {
      const uint64_t seed = testing::test_random(k * 8 + static_cast<uint64_t>(size + replicas))();
      programs.push_back(draw(seed, size));
    }
    WorldRanks ranks(
        size,
        [&](const World& world, const Say& say) {
          const World grid = world.grid(replicas, size / replicas);
          for (const Program& program : programs) {
            const int64_t stages = grid.processes_each() * program.stages_each;
            std::unique_ptr<Training> training;
            int64_t made = 0;
            until_done([&] {
              const bool can_make = world.rank() != program.unmade_rank || made >= program.unmade;
              ++made;
              training = std::make_unique<Training>(grid, program, stages, can_make);
            });
            const std::string marks = training->run();
            std::string hash;
            until_done([&] { hash = training->hash(); });
            Program quiet = program;
            quiet.strikes.clear();
            Training alone(World(), quiet, stages);
            std::string expected = alone.run(training->done());
            expected += " " + alone.hash();
            const std::string well = without_failures(marks);
            say(marks);
            say(well + " " + hash == expected ? "right" : "wrong: " + well + " " + hash);
            std::string texts = training->texts();
            std::replace(texts.begin(), texts.end(), '\n', '|');
            say(texts);
          }
        },
        options);
    for (const Program& program : programs) {
      const std::vector<std::string> marks = ranks.lines();
      const std::vector<std::string> verdicts = ranks.lines();
      const std::vector<std::string> texts = ranks.lines();
      for (size_t rank = 0; rank < marks.size(); ++rank) {
        ASSERT_EQ(marks[rank], marks[0]) << to_text(program) << "\n"
                                         << texts[0] << "\n"
                                         << texts[rank];
        ASSERT_EQ(verdicts[rank], "right") << to_text(program) << "\n"
                                           << marks[rank] << "\n"
                                           << texts[rank];
      }
      for (const Strike& strike : program.strikes) {
        ++counts[std::string(name_of(strike.kind)) + " in " + name_of(strike.place)];
      }
      if (program.unmade > 0) ++counts["an optimizer cannot be made"];
      counts["failed attempts"] +=
          static_cast<int64_t>(marks[0].size() - without_failures(marks[0]).size()) / 2;
      counts["mini-batches that went well"] += std::count(marks[0].begin(), marks[0].end(), ':');
    }
    ranks.expect_ends();
  }
  std::cout << count << " programs over " << size << " processes, " << replicas << " replicas:\n";
  for (const auto& [what, times] : counts) std::cout << "  " << what << ": " << times << "\n";
  EXPECT_GT(counts["mini-batches that went well"], static_cast<int64_t>(count));
}

uint64_t programs() { return testing::number_from("GPIPE_RETRIES", 30); }

TEST(WorldRetries, TwoProcesses) { run_programs(2, 1, programs() / 3); }
TEST(WorldRetries, ThreeProcesses) { run_programs(3, 1, programs() / 3); }
TEST(WorldRetries, TwoReplicas) { run_programs(4, 2, programs() / 3); }

}  // namespace
}  // namespace gpipe::distributed
