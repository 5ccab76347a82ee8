// Tests random faults at random moments of a training run over processes. All remaining ranks must
// be told the same, at once, and nothing may hang. Runs that go on must end with the parameters of
// a run without faults.
//
// On the fake accelerator the processes are joined by links between its devices, which fail as
// NCCL's do.
//
// Draws 50 runs, 15 on the fake accelerator; GPIPE_FAULTS=1000 draws as many, GPIPE_TEST_SEED
// others, GPIPE_FAULT=17 one alone. GPIPE_FAULTS_LIMIT_MS: how soon all must know, 1000 by default;
// use more on a busy machine. Over links it is 7000, and a process may take 5 s longer to end: an
// abort gives the messages of the step before 5 s, which those of a stopped process take in full
// (docs/design/device_links.md).
#include <ftw.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/distributed/control/failure.h"
#include "gpipe/distributed/sockets/master_port.h"
#include "gpipe/gpipe.h"
#include "gpipe/saving/saving.h"
#include "gpipe/testing/device.h"
#include "gpipe/testing/number_from.h"
#include "gpipe/testing/processes/rank_processes.h"
#include "gpipe/testing/processes/world_ranks.h"
#include "gpipe/testing/seed.h"
#include "gpipe/zero_optimizer.h"

namespace gpipe::distributed {
namespace {

namespace nn = torch::nn;
using testing::number_from;
using Say = WorldRanks::Say;
using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr int64_t kSteps = 4;
constexpr int64_t kChunks = 4;
constexpr int64_t kRows = 8;
constexpr milliseconds kSilence{1000};     // in runs in which a rank is stopped
constexpr milliseconds kRendezvous{4000};  // in runs in which a rank may never connect
// How long a process may take to end after its last line. Processes that waited for Gloo used to
// take 20 s.
milliseconds most_ending() { return milliseconds(testing::for_gpus() ? 10'000 : 5000); }

enum class Phase { kConnecting, kForward, kLoss, kBackward, kReduction, kSaving, kBetween };
enum class Kind { kThrow, kNoMemory, kKill, kStop, kExit, kLeave, kLate };

const char* name_of(Phase phase) {
  constexpr const char* kNames[] = {"connecting", "forward", "loss",   "backward",
                                    "reduction",  "saving",  "between"};
  return kNames[static_cast<int>(phase)];
}
const char* name_of(Kind kind) {
  constexpr const char* kNames[] = {"throws", "has no memory", "is killed", "is stopped",
                                    "exits",  "leaves",        "is late"};
  return kNames[static_cast<int>(kind)];
}
bool is_exception(Kind kind) { return kind == Kind::kThrow || kind == Kind::kNoMemory; }

struct Planned {
  int64_t rank = 0;
  Phase phase = Phase::kForward;
  Kind kind = Kind::kThrow;
  int64_t step = 0;
  int64_t call = 0;  // the number of the phase's call in that step
  microseconds delay{0};
};

struct Plan {
  int64_t size = 3;
  bool has_replicas = false;  // true: 2 replicas of 2 processes; false: one pipeline over all
  bool is_zero = false;       // whether the optimizer is a ZeroOptimizer
  // After an exception, all ranks read the last checkpoint (true) or go on with what they have.
  bool reads = false;
  std::vector<Planned> faults;

  bool stops() const { return any(Kind::kStop); }
  bool any(Kind kind) const {
    return std::any_of(faults.begin(), faults.end(),
                       [&](const Planned& fault) { return fault.kind == kind; });
  }
  bool any(Phase phase) const {
    return std::any_of(faults.begin(), faults.end(),
                       [&](const Planned& fault) { return fault.phase == phase; });
  }
};

std::string to_text(const Plan& plan) {
  std::ostringstream text;
  text << plan.size << " ranks" << (plan.has_replicas ? ", 2 replicas" : "")
       << (plan.is_zero ? ", ZeroOptimizer" : "") << (plan.reads ? ", reads" : "");
  for (const Planned& fault : plan.faults) {
    text << "; rank " << fault.rank << " " << name_of(fault.kind) << " in " << name_of(fault.phase)
         << ", step " << fault.step << ", call " << fault.call << ", after " << fault.delay.count()
         << " us";
  }
  return text.str();
}

Planned draw_fault(std::mt19937_64& random, const Plan& plan, int64_t rank) {
  const auto below = [&](int64_t end) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(end));
  };
  Planned fault;
  fault.rank = rank;
  fault.phase = static_cast<Phase>(below(7));
  fault.kind = static_cast<Kind>(below(7));
  fault.step = below(kSteps);
  const int64_t longest = fault.phase == Phase::kConnecting ? 150'000
                          : fault.phase == Phase::kSaving   ? 8'000
                                                            : 3'000;
  fault.delay = microseconds(below(longest));
  if (fault.kind == Kind::kLate) fault.delay = microseconds(below(300'000));
  // A rank that leaves returns from main, which it can do only outside of calls.
  if (fault.kind == Kind::kLeave && fault.phase != Phase::kConnecting &&
      fault.phase != Phase::kSaving) {
    fault.phase = Phase::kBetween;
  }
  // Other ranks do not learn what a program throws and catches between calls. So no exception is
  // drawn for that phase.
  if (is_exception(fault.kind) && fault.phase == Phase::kBetween) fault.phase = Phase::kBackward;
  // An exception in the reduction needs a ZeroOptimizer: only that calls the program's code while
  // replicas exchange values.
  if (is_exception(fault.kind) && fault.phase == Phase::kReduction && !plan.is_zero) {
    fault.phase = Phase::kForward;
  }
  switch (fault.phase) {
    case Phase::kForward:
    case Phase::kBackward:
      fault.call = below(4);
      break;
    case Phase::kLoss:
    case Phase::kBetween:
      fault.call = below(2);
      break;
    case Phase::kSaving:
      fault.step = fault.step / 2 * 2 + 1;
      break;
    case Phase::kConnecting:
    case Phase::kReduction:
      break;
  }
  if (fault.phase == Phase::kLoss) {
    fault.rank = plan.has_replicas ? (rank < 2 ? 1 : 3) : plan.size - 1;
  }
  return fault;
}

Plan draw(uint64_t number) {
  std::mt19937_64 random = testing::test_random(number + 1);
  Plan plan;
  plan.size = 3 + static_cast<int64_t>(random() % 2);
  plan.has_replicas = plan.size == 4 && random() % 2 == 0;
  plan.is_zero = plan.has_replicas && random() % 2 == 0;
  const auto first = static_cast<int64_t>(random() % static_cast<uint64_t>(plan.size));
  plan.faults.push_back(draw_fault(random, plan, first));
  if (random() % 3 == 0) {
    const int64_t other = (first + 1 + static_cast<int64_t>(random() % 2)) % plan.size;
    const Planned second = draw_fault(random, plan, other);
    if (second.rank != plan.faults[0].rank) plan.faults.push_back(second);
  }
  plan.reads = random() % 2 == 0;
  for (const Planned& fault : plan.faults) {
    // After an optimizer has thrown, it is unknown which parameters it has changed. So a checkpoint
    // must be read.
    plan.reads = plan.reads || (is_exception(fault.kind) && fault.phase == Phase::kReduction);
  }
  return plan;
}

// --- The program that each process runs.

struct Leaves {};  // thrown to return from main: no handler of std::exception catches it

// The faults of this rank, each of which strikes once.
class Striker {
 public:
  Striker(const Plan& plan, int64_t rank, Say say) : say_(std::move(say)) {
    for (const Planned& fault : plan.faults) {
      if (fault.rank == rank) faults_.push_back(fault);
    }
  }

  // Strikes if a fault is due at this call of the phase. Layers call this on worker threads, one at
  // a time in a process.
  void at(Phase phase, int64_t step) {
    const int64_t call = calls_[{static_cast<int>(phase), step}]++;
    for (Planned& fault : faults_) {
      if (fault.rank < 0 || fault.phase != phase || fault.step != step || fault.call != call) {
        continue;
      }
      fault.rank = -1;
      strike(fault);
    }
  }
  // Counts the calls of this step anew. Also called when the step is repeated, because the first
  // attempt may have been interrupted in any phase.
  void new_step(int64_t step) {
    for (auto& [key, calls] : calls_) {
      if (key.second == step) calls = 0;
    }
  }
  // Whether an exception is due in this phase, which the caller then throws.
  bool throws_at(Phase phase, int64_t step) {
    for (Planned& fault : faults_) {
      if (fault.rank < 0 || fault.phase != phase || !is_exception(fault.kind)) continue;
      if (phase != Phase::kConnecting && fault.step != step) continue;
      fault.rank = -1;
      return true;
    }
    return false;
  }
  void connecting() {
    for (Planned& fault : faults_) {
      if (fault.rank < 0 || fault.phase != Phase::kConnecting || is_exception(fault.kind)) continue;
      fault.rank = -1;
      strike(fault);
    }
  }
  // Whether exit() runs. It removes LibTorch's operators, so any line of this process may throw
  // then.
  bool is_exiting() const { return is_exiting_; }
  void say_now(const char* what) const {
    say_(std::string(what) + " " + std::to_string(microseconds_now()));
  }

 private:
  void strike(const Planned& fault) {
    const auto later = [&](std::function<void()> end) {
      std::thread([this, delay = fault.delay, end = std::move(end)] {
        std::this_thread::sleep_for(delay);
        say_now("F");
        end();
      }).detach();
    };
    switch (fault.kind) {
      case Kind::kThrow:
        say_now("F");
        throw std::runtime_error("a fault of the test");
      case Kind::kNoMemory:
        say_now("F");
        throw std::bad_alloc();
      case Kind::kKill:
        return later([] { kill(getpid(), SIGKILL); });
      case Kind::kStop:
        return later([] { kill(getpid(), SIGSTOP); });
      case Kind::kExit:  // main goes on meanwhile and may crash, which is also an end
        return later([this] {
          is_exiting_ = true;
          std::exit(3);
        });
      case Kind::kLeave:
        say_now("F");
        throw Leaves();
      case Kind::kLate:
        say_now("late");
        std::this_thread::sleep_for(fault.delay);
        return say_now("L");
    }
  }

  Say say_;
  std::vector<Planned> faults_;
  std::map<std::pair<int, int64_t>, int64_t> calls_;
  std::atomic<bool> is_exiting_{false};
};

// A layer that calls the striker in its forward and backward.
struct WatchedImpl : nn::Module {
  WatchedImpl(Striker& striker, const int64_t& step) : striker(striker), step(step) {
    linear = register_module("linear", nn::Linear(6, 6));
  }
  torch::Tensor forward(torch::Tensor x) {
    striker.at(Phase::kForward, step);
    x = linear(x).tanh();
    if (x.requires_grad()) {
      x.register_hook([this](torch::Tensor gradient) {
        striker.at(Phase::kBackward, step);
        return gradient;
      });
    }
    return x;
  }
  void to(torch::Device device, bool non_blocking) override {
    if (striker.throws_at(Phase::kConnecting, 0)) {
      striker.say_now("F");
      throw std::runtime_error("a fault of the test while it is made");
    }
    nn::Module::to(device, non_blocking);
  }
  Striker& striker;
  const int64_t& step;
  nn::Linear linear{nullptr};
};
TORCH_MODULE(Watched);

nn::Sequential make_model(Striker& striker, const int64_t& step) {
  torch::manual_seed(1);
  return nn::Sequential(Watched(striker, step), nn::Dropout(0.3), Watched(striker, step),
                        Watched(striker, step), Watched(striker, step));
}

std::vector<int64_t> balance_of(const World& world) {
  switch (world.processes_each()) {
    case 2:
      return {3, 2};
    case 3:
      return {2, 1, 2};
    case 4:
      return {2, 1, 1, 1};
    default:
      return {5};
  }
}

struct WatchedAdam : torch::optim::Adam {
  WatchedAdam(std::vector<at::Tensor> parameters, Striker& striker, const int64_t& step)
      : Adam(std::move(parameters), torch::optim::AdamOptions(0.01)),
        striker(striker),
        number(step) {}
  torch::Tensor step(LossClosure closure) override {
    striker.at(Phase::kReduction, number);
    return Adam::step(std::move(closure));
  }
  Striker& striker;
  const int64_t& number;
};

// The training run, with the same code for ZeroOptimizer and for a plain optimizer in each process.
class Training {
 public:
  Training(World world, const Plan& plan, Striker& striker, std::string path, Say say)
      : world_(std::move(world)),
        plan_(plan),
        striker_(striker),
        path_(std::move(path)),
        say_(std::move(say)) {}

  void run() {
    if (!until_done([&] { make(); })) return;
    if (plan_.reads && !until_done([&] { save(); })) return;
    bool must_read = false;
    const bool is_done = until_done([&] {
      if (std::exchange(must_read, plan_.reads)) read();
      while (step_ < kSteps) {
        one_step();
        if (step_ % 2 == 0) save();
      }
      // If one of the remaining calls throws, it can be made again without reading.
      must_read = false;
      say_("H " + pipe_->parameter_hash());
    });
    if (is_done || !pipe_) return;
    // A rank was lost. The next call must throw the same failure again (Judge compares them).
    attempt("A", [&] { (void)pipe_->parameter_hash(); });
  }
  void tell_each_step() {
    make();
    say_(pipe_->parameter_hash());
    while (step_ < kSteps) {
      one_step();
      say_(pipe_->parameter_hash());
    }
  }
  void tell_checkpoint() {
    make();
    read();
    say_(std::to_string(step_) + " " + pipe_->parameter_hash());
  }

 private:
  enum class End { kWell, kException, kLoss };
  End attempt(const char* what, const std::function<void()>& call) {
    try {
      call();
      return End::kWell;
    } catch (const DistributedFailure& failure) {
      tell(what, failure.what());
      const auto& faults = failure.faults();
      const bool is_lost = std::any_of(faults.begin(), faults.end(), [](const Fault& fault) {
        return fault.kind != FaultKind::kException;
      });
      return is_lost ? End::kLoss : End::kException;
    } catch (const std::exception& error) {
      tell("E", error.what());
      return End::kException;
    }
  }
  // Repeats a call after each exception, as all ranks do, unless a rank is lost.
  bool until_done(const std::function<void()>& call) {
    for (size_t tries = 0; tries <= plan_.faults.size() + 1; ++tries) {
      const End end = attempt("X", call);
      if (end != End::kException) return end == End::kWell;
      if (striker_.is_exiting()) return false;
    }
    say_("gives up");
    return false;
  }
  void tell(const char* what, std::string text) {
    say_(std::string(what) + " " + std::to_string(microseconds_now()) + " " +
         text.substr(0, std::min<size_t>(text.find("\nException raised"), 600)));
  }

  void make() {
    GPipeOptions options(balance_of(world_));
    options.chunks(kChunks).groups(2).cpu_threads_per_stage(1).world(world_);
    pipe_ = GPipe(make_model(striker_, step_), options.devices({device()}));
    if (plan_.is_zero) {
      zero_ = std::make_unique<ZeroOptimizer>(pipe_, [&](std::vector<at::Tensor> parameters) {
        return std::make_unique<WatchedAdam>(std::move(parameters), striker_, step_);
      });
    } else {
      adam_ = std::make_unique<WatchedAdam>(pipe_->local_parameters(), striker_, step_);
    }
  }

  c10::Device device() const { return testing::device(world_.rank()); }

  void one_step() {
    striker_.new_step(step_);
    striker_.at(Phase::kBetween, step_);
    const RowRange here = world_.rows(kRows, kChunks);
    const auto rows = [&](double from, double to) {
      const at::Tensor all = at::linspace(from, to, kRows * 6).view({kRows, 6});
      return testing::copy_on(device(), all.slice(0, here.begin, here.end));
    };
    const at::Tensor input = rows(-1, 1 + 0.1 * static_cast<double>(step_));
    const at::Tensor target = rows(0, 1);
    torch::manual_seed(10 + step_);
    pipe_->zero_grad();
    pipe_->step({input}, {target}, [&](const Tensors& outputs, const Tensors& targets) {
      striker_.at(Phase::kLoss, step_);
      return nn::functional::mse_loss(outputs[0], targets[0]);
    });
    if (!plan_.is_zero) striker_.at(Phase::kReduction, step_);
    pipe_->clip_grad_norm_(0.5);
    striker_.at(Phase::kBetween, step_);
    if (zero_) {
      zero_->step();
    } else {
      static_cast<torch::optim::Adam&>(*adam_).torch::optim::Adam::step();
    }
    ++step_;
  }

  void save() {
    const Progress progress{step_, kRows * step_, {}};
    if (striker_.throws_at(Phase::kSaving, step_ - 1)) {
      striker_.say_now("F");
      // Must be refused: it has the parameters of other processes, too.
      torch::optim::Adam of_all(pipe_->parameters());
      save_checkpoint(pipe_, of_all, progress, path_);
    }
    striker_.at(Phase::kSaving, step_ - 1);
    say_("S " + std::to_string(step_));
    if (zero_) {
      save_checkpoint(pipe_, *zero_, progress, path_);
    } else {
      save_checkpoint(pipe_, *adam_, progress, path_);
    }
    say_("D " + std::to_string(step_));
  }

  void read() {
    const Progress progress =
        zero_ ? load_checkpoint(pipe_, *zero_, path_) : load_checkpoint(pipe_, *adam_, path_);
    step_ = progress.step;
  }

  World world_;
  const Plan& plan_;
  Striker& striker_;
  std::string path_;
  Say say_;
  GPipe pipe_{nullptr};
  std::unique_ptr<ZeroOptimizer> zero_;
  std::unique_ptr<WatchedAdam> adam_;
  int64_t step_ = 0;
};

// The main function of a rank.
void be_a_rank(const Plan& plan, int64_t rank, int64_t port, const std::string& path,
               const Say& say) {
  WorldRanks::become(rank, plan.size, port);
  if (testing::for_gpus()) setenv("GPIPE_DEVICE_LINKS", "sockets", 1);
  // The striker is never destroyed, because threads may call it later.
  auto& striker = *new Striker(plan, rank, say);
  try {
    WorldOptions options = WorldRanks::quick();
    if (plan.stops()) options.silence_limit = kSilence;
    if (plan.any(Phase::kConnecting)) options.rendezvous_limit = kRendezvous;
    striker.connecting();
    World world;
    try {
      world = World::from_environment(options);
    } catch (const DistributedFailure& failure) {
      return say("X " + std::to_string(microseconds_now()) + " " + failure.what());
    } catch (const std::exception& error) {
      return say("C " + std::to_string(microseconds_now()) + " " + error.what());
    }
    if (plan.has_replicas) world = world.grid(2, 2);
    Training(world, plan, striker, path, say).run();
  } catch (const Leaves&) {
  }
}

// --- Checks of what all ranks have said.

struct Line {
  char what = 0;
  int64_t when = 0;
  std::string text;

  // Whether the line names a fault of this rank, as DistributedFailure writes it.
  bool names(int64_t rank) const {
    return text.find("rank " + std::to_string(rank) + " (") != std::string::npos;
  }
};

struct Said {
  std::vector<Line> lines;
  bool is_done = false;  // false: the process hangs
  std::string badly;     // how the process ended if it did not return from main; otherwise empty
  int64_t done = 0;

  std::vector<Line> of(const std::string& whats) const {
    std::vector<Line> some;
    for (const Line& line : lines) {
      if (whats.find(line.what) != std::string::npos) some.push_back(line);
    }
    return some;
  }
};

Said listen(RankProcesses& ranks, int64_t rank) {
  Said said;
  while (true) {
    const std::string text = ranks.next(rank);
    if (text == "nothing") return said;
    if (text == "ended") break;
    Line line;
    std::istringstream words(text);
    std::string what;
    words >> what;
    line.what = what.size() == 1 ? what[0] : '?';
    if (std::string("FLXECA").find(line.what) != std::string::npos) words >> line.when;
    words >> std::ws;
    std::getline(words, line.text);
    if (line.what == '?') line.text = text;
    said.lines.push_back(line);
  }
  said.is_done = true;
  said.done = microseconds_now();
  said.badly = ranks.how_it_ends(rank);
  return said;
}

std::vector<Said> run(const Plan& plan, const std::string& path) {
  MasterPort port;
  RankProcesses ranks(plan.size, [&](int64_t rank, const Say& say) {
    be_a_rank(plan, rank, port.number(), path, say);
  });
  std::vector<Said> said(static_cast<size_t>(plan.size));
  std::vector<std::thread> threads;
  std::atomic<int64_t> left{plan.size};
  std::atomic<int64_t> stopped{0};
  for (int64_t rank = 0; rank < plan.size; ++rank) {
    const bool stops = std::any_of(
        plan.faults.begin(), plan.faults.end(),
        [&](const Planned& fault) { return fault.rank == rank && fault.kind == Kind::kStop; });
    stopped += stops;
    threads.emplace_back([&, rank] {
      said[static_cast<size_t>(rank)] = listen(ranks, rank);
      --left;
    });
  }
  // Processes that a fault has stopped are woken when all others are done.
  while (left > 0) {
    std::this_thread::sleep_for(milliseconds(5));
    if (left > stopped) continue;
    for (const Planned& fault : plan.faults) {
      if (fault.kind == Kind::kStop) ranks.send(fault.rank, SIGCONT);
    }
  }
  for (std::thread& thread : threads) thread.join();
  return said;
}

struct Told {  // how long it took until a rank knew, in milliseconds
  std::vector<double> exceptions;
  std::vector<double> ends;
  std::vector<double> silences;  // counted from the end of the silence limit
  std::vector<double> endings;   // from a process's last line to its end
};

class Judge {
 public:
  Judge(const Plan& plan, const std::vector<Said>& said, int64_t begin,
        const std::vector<std::string>& hashes, Told& told)
      : plan_(plan), said_(said), begin_(begin), hashes_(hashes), told_(told) {
    for (const Planned& fault : plan.faults) {
      if (fault.kind == Kind::kLate || is_exception(fault.kind)) continue;
      if (!of(fault.rank).of("F").empty()) lost_.push_back(fault);
    }
  }

  // The mistakes that were found; empty if there are none.
  std::string verdict() {
    for (int64_t rank = 0; rank < plan_.size; ++rank) judge_alone(rank);
    if (wrong_.str().empty()) compare();
    return wrong_.str();
  }

 private:
  const Said& of(int64_t rank) const { return said_[static_cast<size_t>(rank)]; }
  const Planned* loss_of(int64_t rank) const {
    for (const Planned& fault : lost_) {
      if (fault.rank == rank) return &fault;
    }
    return nullptr;
  }
  std::ostream& wrong(int64_t rank) { return wrong_ << "\n  rank " << rank << ": "; }

  void judge_alone(int64_t rank) {
    const Said& said = of(rank);
    if (!said.is_done) {
      wrong(rank) << "hangs";
      return;
    }
    const Planned* loss = loss_of(rank);
    for (const Line& line : said.lines) {
      if (line.what == '?' && line.text.rfind("late ", 0) != 0) wrong(rank) << line.text;
    }
    if (loss == nullptr || loss->kind == Kind::kStop || loss->kind == Kind::kLeave) {
      if (!said.badly.empty()) wrong(rank) << "ended " << said.badly;
    }
    if (loss != nullptr && loss->kind != Kind::kStop) return;  // a lost rank says no more
    if (loss != nullptr) return judge_woken(rank);
    const int64_t last = last_of(said);
    const double ending = static_cast<double>(said.done - last) / 1000;
    if (last > 0) {
      told_.endings.push_back(ending);
      if (ending > static_cast<double>(most_ending().count())) {
        wrong(rank) << "took " << ending << " ms to end";
      }
    }
    for (const Line& line : said.of("X")) judge_time(rank, line);
    for (const Line& line : said.of("E")) {
      const bool own = std::any_of(
          plan_.faults.begin(), plan_.faults.end(),
          [&](const auto& fault) { return fault.rank == rank && is_exception(fault.kind); });
      if (!own) wrong(rank) << "threw an exception of its own: " << line.text;
    }
    for (const Line& line : said.of("C")) {
      const bool names = std::any_of(lost_.begin(), lost_.end(), [&](const Planned& fault) {
        return fault.phase == Phase::kConnecting &&
               (line.text.find("rank " + std::to_string(fault.rank)) != std::string::npos ||
                line.text.find("ranks") != std::string::npos ||
                (fault.rank == 0 && line.text.find("store") != std::string::npos) ||
                came_too_late(rank, line));
      });
      if (!names) wrong(rank) << "could not connect: " << line.text;
      const int64_t took = (line.when - begin_) / 1000;
      // If the process with the store is stopped, ranks wait up to one second longer than the limit
      // for the store's answer.
      if (took > kRendezvous.count() + 1000 + limit()) {
        wrong(rank) << "found after " << took << " ms only: " << line.text;
      }
    }
    if (said.of("HXC").empty()) wrong(rank) << "ended without a word";
    const auto again = said.of("A");
    const auto before = said.of("X");
    if (!again.empty() && (before.empty() || again[0].text != before.back().text)) {
      wrong(rank) << "was told otherwise at the next call: " << again[0].text;
    }
  }
  // Judges a rank that was stopped and woken. If the others have lost it, it must not complete the
  // run.
  void judge_woken(int64_t rank) {
    const Said& said = of(rank);
    // Only failures that name this rank count: the others may also have been told of a fault from
    // which all had recovered before this rank was stopped.
    const bool others_lost_it = std::any_of(said_.begin(), said_.end(), [&](const Said& other) {
      const auto told = other.of("X");
      return &other != &said && std::any_of(told.begin(), told.end(),
                                            [&](const Line& line) { return line.names(rank); });
    });
    if (others_lost_it && !said.of("H").empty()) wrong(rank) << "went on after it was given up";
  }

  static int64_t last_of(const Said& said) {
    int64_t last = 0;
    for (const Line& line : said.lines) last = std::max(last, line.when);
    return last;
  }

  // Whether rank 0 had been told of a fault and had ended, and its store with it, before this rank
  // came. It is late by a fault of its own, or because the machine is busy while another rank dies
  // early. A rank that never found the store can say only that; one that is late by its fault may
  // have found it, and then says that it cannot connect to the others.
  bool came_too_late(int64_t rank, const Line& line) const {
    const auto has = [&](const char* text) { return line.text.find(text) != std::string::npos; };
    const bool too_late =
        std::any_of(plan_.faults.begin(), plan_.faults.end(), [&](const Planned& fault) {
          if (fault.phase != Phase::kConnecting) return false;
          if (fault.kind != Kind::kLate) {
            return loss_of(fault.rank) != nullptr && has("found no store");
          }
          return fault.rank == rank && (has("found no store") || has("cannot connect"));
        });
    return too_late && of(0).is_done && of(0).done < line.when;
  }

  void judge_time(int64_t rank, const Line& line) {
    int64_t base = 0;
    bool is_silence = false;
    bool is_exception_only = true;
    for (const Planned& fault : plan_.faults) {
      if (!line.names(fault.rank)) continue;
      for (const Line& struck : of(fault.rank).of("F")) {
        if (struck.when > line.when) continue;
        base = std::max(base, struck.when);
        // A process that calls exit() exists until exit() has finished, so the time counts from its
        // end.
        if (fault.kind == Kind::kExit) base = std::max(base, of(fault.rank).done);
      }
      is_silence = is_silence || (loss_of(fault.rank) != nullptr && fault.kind == Kind::kStop);
      is_exception_only = is_exception_only && is_exception(fault.kind);
    }
    // If a rank never connected, another rank may reach its limit first and leave. The others are
    // then told that this one is gone, although it had no fault.
    const bool not_all_came = std::any_of(lost_.begin(), lost_.end(), [](const Planned& fault) {
      return fault.phase == Phase::kConnecting;
    });
    if (base == 0 && not_all_came && line.when - begin_ > kRendezvous.count() * 900) return;
    if (came_too_late(rank, line)) return;
    if (base == 0) {
      wrong(rank) << "was told of a fault that no rank had: " << line.text;
      return;
    }
    for (const Line& late : of(rank).of("L")) {
      if (late.when <= line.when) base = std::max(base, late.when);
    }
    double took = static_cast<double>(line.when - base) / 1000;
    if (is_silence) took -= static_cast<double>(kSilence.count());
    (is_silence          ? told_.silences
     : is_exception_only ? told_.exceptions
                         : told_.ends)
        .push_back(std::max(took, 0.0));
    if (took > static_cast<double>(limit())) {
      wrong(rank) << "was told " << took << " ms after it could be: " << line.text;
    }
  }

  // Compares the lines of all remaining ranks.
  void compare() {
    const std::vector<Line>* rounds_of_first = nullptr;
    std::vector<std::vector<Line>> rounds(said_.size());
    for (int64_t rank = 0; rank < plan_.size; ++rank) {
      if (loss_of(rank) != nullptr || !of(rank).of("C").empty()) continue;
      auto& own = rounds[static_cast<size_t>(rank)];
      own = of(rank).of("XE");
      if (!own.empty() && came_too_late(rank, own[0])) {
        own.clear();
        continue;
      }
      // A rank that threw an exception of its own ("E") throws the record of that failure ("X") at
      // its next call, if the record also names a loss. The two count as one failure.
      for (size_t k = 1; k < own.size(); ++k) {
        if (own[k - 1].what == 'E' && own[k].names(rank)) {
          own.erase(own.begin() + static_cast<std::ptrdiff_t>(k - 1));
        }
      }
      if (rounds_of_first == nullptr) {
        rounds_of_first = &own;
      } else if (own.size() != rounds_of_first->size()) {
        wrong(rank) << "had " << own.size() << " failures, another one " << rounds_of_first->size();
        return;
      }
      const auto hash = of(rank).of("H");
      if (!hash.empty() && hash[0].text != hashes_.back()) wrong(rank) << "has other parameters";
      if (lost_.empty() && hash.empty()) wrong(rank) << "did not go on";
    }
    for (size_t round = 0; rounds_of_first != nullptr && round < rounds_of_first->size(); ++round) {
      const std::string* text = nullptr;
      for (const auto& own : rounds) {
        if (own.empty() || own[round].what != 'X') continue;
        if (text != nullptr && *text != own[round].text) {
          wrong_ << "\n  in failure " << round << " one was told: " << *text
                 << "\n  and another one: " << own[round].text;
        }
        text = &own[round].text;
      }
    }
  }

  static int64_t limit() {
    return static_cast<int64_t>(
        number_from("GPIPE_FAULTS_LIMIT_MS", testing::for_gpus() ? 7000 : 1000));
  }

  const Plan& plan_;
  const std::vector<Said>& said_;
  const int64_t begin_;
  const std::vector<std::string>& hashes_;
  Told& told_;
  std::vector<Planned> lost_;  // faults that have struck and by which a rank was lost
  std::ostringstream wrong_;
};

std::string everything(const std::vector<Said>& said, int64_t begin) {
  std::ostringstream text;
  for (size_t rank = 0; rank < said.size(); ++rank) {
    for (const Line& line : said[rank].lines) {
      text << "\n    [" << rank << "] " << line.what << " ";
      if (line.when > 0) text << static_cast<double>(line.when - begin) / 1000 << " ms ";
      text << line.text;
    }
    text << "\n    [" << rank << "] ";
    if (said[rank].is_done) {
      text << "ended after " << static_cast<double>(said[rank].done - begin) / 1000 << " ms";
    } else {
      text << "hangs";
    }
  }
  return text.str();
}

// Runs `main` with a Training in a single process.
std::vector<std::string> alone(size_t count, const std::string& path,
                               const std::function<void(Training&)>& main) {
  RankProcesses process(1, [&](int64_t, const Say& say) {
    at::set_num_threads(1);
    const Plan plan;
    Striker striker(plan, 0, say);
    Training training(World(), plan, striker, path, say);
    main(training);
  });
  std::vector<std::string> lines;
  for (size_t k = 0; k < count; ++k) lines.push_back(process.next(0));
  return lines;
}

// Removes a folder with all that is in it. This does not use std::filesystem, because LibTorch
// exports a part of it, and the rest crashes.
void remove_all(const std::string& path) {
  const auto remove_one = [](const char* name, const struct stat*, int, struct FTW*) {
    return std::remove(name);
  };
  nftw(path.c_str(), remove_one, /*descriptors=*/8, FTW_DEPTH | FTW_PHYS);
}
bool exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

// Returns what is wrong with the checkpoint: it must be the old one or the new one, and complete.
std::string judge_checkpoint(const std::vector<Said>& said, const std::string& path,
                             const std::vector<std::string>& hashes) {
  int64_t begun = -1;
  int64_t done = -1;
  for (const Said& rank : said) {
    for (const Line& line : rank.of("S")) begun = std::max<int64_t>(begun, std::stoll(line.text));
    for (const Line& line : rank.of("D")) done = std::max<int64_t>(done, std::stoll(line.text));
  }
  if (begun < 0 || (done < 0 && !exists(path))) return "";
  const std::string read =
      alone(1, path, [](Training& training) { training.tell_checkpoint(); })[0];
  for (int64_t step = std::max<int64_t>(done, 0); step <= begun; ++step) {
    if (read == std::to_string(step) + " " + hashes[static_cast<size_t>(step)]) return "";
  }
  return "\n  the checkpoint: saved for " + std::to_string(done) + ", begun for " +
         std::to_string(begun) + ", read: " + read;
}

std::string figures(std::vector<double> times) {
  if (times.empty()) return "none";
  std::sort(times.begin(), times.end());
  std::ostringstream text;
  text << times.size() << ", median " << times[times.size() / 2] << " ms, 99 in 100 within "
       << times[times.size() * 99 / 100] << ", at most " << times.back();
  return text.str();
}

TEST(WorldFaults, AllAreToldTheSameAtOnceAndNothingHangs) {
  const std::string folder = ::testing::TempDir() + "/faults" + std::to_string(getpid());
  const std::string path = folder + "/checkpoint";
  const std::vector<std::string> hashes =
      alone(kSteps + 1, path, [](Training& training) { training.tell_each_step(); });
  ASSERT_THAT(hashes, ::testing::Each(::testing::SizeIs(16)));
  const char* chosen = std::getenv("GPIPE_FAULT");
  const uint64_t first = chosen == nullptr ? 0 : number_from("GPIPE_FAULT", 0);
  const uint64_t end =
      chosen == nullptr ? number_from("GPIPE_FAULTS", testing::for_gpus() ? 15 : 50) : first + 1;
  Told told;
  std::map<std::string, int64_t> struck;
  for (uint64_t number = first; number < end; ++number) {
    const Plan plan = draw(number);
    remove_all(folder);
    mkdir(folder.c_str(), 0700);
    const int64_t begin = microseconds_now();
    const std::vector<Said> said = run(plan, path);
    std::string wrong = Judge(plan, said, begin, hashes, told).verdict();
    if (plan.any(Phase::kSaving) || plan.reads) wrong += judge_checkpoint(said, path, hashes);
    for (const Planned& fault : plan.faults) {
      const bool is_late = fault.kind == Kind::kLate;
      if (!said[static_cast<size_t>(fault.rank)].of(is_late ? "L" : "F").empty()) {
        ++struck[std::string(name_of(fault.kind)) + " in " + name_of(fault.phase)];
      }
    }
    EXPECT_EQ(wrong, "") << "GPIPE_FAULT=" << number << ": " << to_text(plan)
                         << everything(said, begin);
    if (chosen != nullptr) std::cout << to_text(plan) << everything(said, begin) << std::endl;
  }
  remove_all(folder);
  std::cout << "told of exceptions: " << figures(told.exceptions)
            << "\ntold of ends: " << figures(told.ends)
            << "\ntold of silences, after the limit: " << figures(told.silences)
            << "\nprocesses that have said all end: " << figures(told.endings) << "\n";
  int64_t all = 0;
  for (const auto& [what, count] : struck) {
    std::cout << what << ": " << count << "\n";
    all += count;
  }
  std::cout << all << " faults in " << end - first << " runs" << std::endl;
  // Not every fault strikes, because some are drawn for moments that never come. But there must be
  // enough.
  EXPECT_GE(all, static_cast<int64_t>(end - first) / 2);
}

}  // namespace
}  // namespace gpipe::distributed
