#include "gpipe/resilient/resilient_run.h"

#include <c10/util/Exception.h>
#include <torch/optim/lbfgs.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <set>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gpipe/distributed/control/failure.h"
#include "gpipe/internal/operators/carried_generators.h"
#include "gpipe/internal/processes/processes.h"
#include "gpipe/saving/checkpoint_files.h"
#include "gpipe/saving/checkpoint_run.h"
#include "gpipe/saving/saving.h"
#include "text/shown.h"

namespace gpipe {
namespace {

using distributed::DistributedFailure;
using distributed::FaultKind;
using nlohmann::json;

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Whether a failure names only lost processes and no exception. After such a failure the remaining
// processes can go on.
bool is_loss(const DistributedFailure& failure) {
  bool has_lost = false;
  for (const distributed::Fault& fault : failure.faults()) {
    if (fault.kind == FaultKind::kException) return false;
    has_lost = has_lost || fault.kind == FaultKind::kDeath || fault.kind == FaultKind::kSilence;
  }
  return has_lost;
}

// A snapshot of which processes hold files: its step, and the files that no process holds.
struct Holding {
  int64_t step = 0;
  std::set<std::string> missing;
};

// The snapshots that the processes hold together, by their fingerprints.
std::map<std::string, Holding> holdings(const std::vector<json>& ranks) {
  std::map<std::string, Holding> found;
  std::map<std::string, std::set<std::string>> files;
  for (const json& rank : ranks) {
    for (const json& snapshot : rank.at("held")) {
      const std::string fingerprint = snapshot.at("of");
      Holding& holding = found[fingerprint];
      holding.step = snapshot.at("step");
      holding.missing = snapshot.at("all_files").get<std::set<std::string>>();
      for (const std::string name : snapshot.at("files")) files[fingerprint].insert(name);
    }
  }
  for (auto& [fingerprint, holding] : found) {
    for (const std::string& name : files[fingerprint]) holding.missing.erase(name);
  }
  return found;
}

// The fingerprint of the newest snapshot of which all files are held; empty if there is none.
std::string best_of(const std::map<std::string, Holding>& found) {
  std::string best;
  for (const auto& [fingerprint, holding] : found) {
    if (!holding.missing.empty()) continue;
    if (best.empty() || holding.step > found.at(best).step) best = fingerprint;
  }
  return best;
}

// A text about the files that no process holds.
std::string loss_of(const std::map<std::string, Holding>& found) {
  std::set<std::string> missing;
  for (const auto& [fingerprint, holding] : found) {
    missing.insert(holding.missing.begin(), holding.missing.end());
  }
  return absl::StrCat("no process holds ", absl::StrJoin(missing, ", "), " of the last snapshot");
}

// What a process tells of the snapshots that it holds, for holdings().
json told_of(const std::vector<Snapshot>& held) {
  json told = json::array();
  for (const Snapshot& snapshot : held) {
    told.push_back({{"of", snapshot.fingerprint()},
                    {"step", snapshot.progress().step},
                    {"files", snapshot.files()},
                    {"all_files", snapshot.all_files()}});
  }
  return told;
}

// All files that are held of a snapshot; empty if there are none. The snapshot that follows a
// recovery has the fingerprint of the one that was restored, and other files of it may be here.
Snapshot with(const std::vector<Snapshot>& held, const std::string& fingerprint) {
  internal::CheckpointImages files;
  for (const Snapshot& snapshot : held) {
    if (snapshot.fingerprint() != fingerprint) continue;
    files.insert(snapshot.images().begin(), snapshot.images().end());
  }
  return Snapshot(std::move(files));
}

// What all processes tell each other, by rank.
std::vector<json> exchange(const World& world, const std::string& what, const json& own) {
  internal::Processes* const processes = world.processes().get();
  if (processes == nullptr) return {own};
  return internal::in_call(processes, [&] {
    std::vector<json> ranks;
    for (const std::string& text : internal::exchange_long(*processes, "ResilientRun: " + what,
                                                           own.dump(), /*is_patient=*/true)) {
      ranks.push_back(json::parse(text));
    }
    return ranks;
  });
}

// The learning rates of the groups; empty if the options of one have none.
std::vector<double> rates_of(const torch::optim::Optimizer& optimizer) try {
  std::vector<double> rates;
  for (const auto& group : optimizer.param_groups()) rates.push_back(group.options().get_lr());
  return rates;
} catch (const c10::Error&) {
  return {};
}

// Throws c10::ValueError unless all processes make the same run of their program.
void check_runs(const std::vector<json>& ranks) {
  for (size_t rank = 1; rank < ranks.size(); ++rank) {
    const int64_t first = ranks.front().at("former_runs");
    const int64_t other = ranks[rank].at("former_runs");
    TORCH_CHECK_VALUE(first == other, "ResilientRun: rank 0 is in run ", first + 1,
                      " of its process, and rank ", rank, " in run ", other + 1,
                      ": a process that is started again begins with its first run, so make one "
                      "ResilientRun in a program");
  }
}

// Why the processes cannot read the checkpoint together; empty if they can.
std::string damage_of(const std::string& path, const World& world) {
  std::string own;
  try {
    (void)internal::open_checkpoint(path, world.rank(), world.size());
  } catch (const std::exception& error) {
    own = text::in_quotes(error.what());
  }
  for (const json& rank : exchange(world, "whether the checkpoint is whole", own)) {
    const std::string damage = rank;
    if (!damage.empty()) return damage;
  }
  return "";
}

uint32_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : static_cast<uint32_t>(tensor._version());
}

ResilientOptions checked(ResilientOptions options) {
  TORCH_CHECK_VALUE(options.steps >= 0, "ResilientOptions::steps is ", options.steps,
                    ": give 0 or more");
  TORCH_CHECK_VALUE(options.snapshot_every >= 1, "ResilientOptions::snapshot_every is ",
                    options.snapshot_every, ": give 1 or more");
  TORCH_CHECK_VALUE(options.save_every >= 1, "ResilientOptions::save_every is ", options.save_every,
                    ": give 1 or more");
  TORCH_CHECK_VALUE(options.max_recoveries >= 0, "ResilientOptions::max_recoveries is ",
                    options.max_recoveries, ": give 0 or more");
  TORCH_CHECK_VALUE(options.multiple_of >= 1, "ResilientOptions::multiple_of is ",
                    options.multiple_of, ": give 1 or more");
  if (!options.path.empty()) {
    (void)check_checkpoint_path(options.path);
    internal::check_replaceable(options.path);
  }
  return options;
}

}  // namespace

World as_replicas(const World& world, int64_t most) {
  if (most < 1) {
    throw std::invalid_argument(
        absl::StrCat("gpipe::as_replicas was given ", most, " replicas at most; give 1 or more"));
  }
  const int64_t replicas = std::gcd(world.size(), most);
  return world.grid(replicas, world.size() / replicas);
}

namespace internal {

std::atomic<int64_t>& runs_of_process() {
  static std::atomic<int64_t> runs{0};
  return runs;
}

}  // namespace internal

ResilientRun::ResilientRun(ResilientOptions options)
    : ResilientRun(
          std::move(options),
          [](const WorldOptions& world, const MeetAgainOptions& again) {
            return meet(world, again);
          },
          can_meet_again()) {}

ResilientRun::ResilientRun(ResilientOptions options, Meet meet, bool is_resilient)
    : options_(checked(std::move(options))), meet_(std::move(meet)), is_resilient_(is_resilient) {}

bool ResilientRun::takes_snapshots() const {
  return is_resilient_ && world_.processes() != nullptr;
}

void ResilientRun::run(const Make& make, const Body& body, const Body& end) {
  TORCH_CHECK_VALUE(make != nullptr && body != nullptr,
                    "ResilientRun::run was given an empty function");
  if (std::exchange(has_run_, true)) {
    throw std::logic_error(
        "ResilientRun::run was called again, and an object makes one run; give all steps to "
        "ResilientOptions::steps");
  }
  former_runs_ = internal::runs_of_process()++;
  generator_ = internal::generator_state();
  std::optional<Clock::time_point> failed;
  const auto recovered = [&] {
    if (failed) counts_.recovery_seconds += seconds_since(*failed);
    failed.reset();
  };
  while (true) {
    try {
      meet_others();
      run_in_world(
          make,
          [&](ResilientParts& parts, int64_t step) {
            recovered();
            body(parts, step);
          },
          end);
      parts_ = {};
      return;
    } catch (const DistributedFailure& failure) {
      if (!is_resilient_ || !is_loss(failure)) throw;
      if (++recoveries_in_a_row_ > options_.max_recoveries) {
        say(absl::StrCat("the run ends: ", recoveries_in_a_row_,
                         " losses in a row without a finished step between them"));
        throw;
      }
      lost_ = failure.what();
      faults_ = failure.faults();
      for_each_kept([](Former& former, const at::Tensor& tensor) {
        former.is_changed = version_of(tensor) != former.version;
      });
      ++counts_.recoveries;
      if (!failed) failed = Clock::now();
    } catch (...) {
      parts_ = {};
      throw;
    }
    parts_ = {};
    world_ = World();
  }
}

void ResilientRun::meet_others() {
  MeetAgainOptions again;
  again.faults = faults_;
  while (true) {
    enter("meet");
    const Meeting meeting = meet_(options_.world, again);
    world_ = meeting.world;
    if (again.multiple_of == 1) generation_ = meeting.generation;
    const auto rank = static_cast<std::size_t>(world_.rank());
    // A process that was left over has missed what was printed since. It may hold the only copy of
    // a state.
    if (rank < meeting.came_from.size() && meeting.came_from[rank] < 0) {
      printed_ = Place();
      was_rank_0_ = false;
    }
    const int64_t left_over =
        world_.size() > options_.multiple_of ? world_.size() % options_.multiple_of : 0;
    if (left_over == 0 || !is_resilient_) return;
    say(absl::StrCat(left_over, left_over == 1 ? " process is" : " processes are",
                     " left over: a world has a multiple of ", options_.multiple_of,
                     " processes, so the last ones wait as spares"));
    hand_over(world_.size() - left_over);
    again.faults.clear();
    again.multiple_of = options_.multiple_of;
    world_ = World();
  }
}

void ResilientRun::hand_over(int64_t staying) {
  const std::string best =
      best_of(holdings(exchange(world_, "what each may hand over", {{"held", told_of(held_)}})));
  if (best.empty()) return;
  Snapshot held = internal::hand_over(world_, with(held_, best), staying);
  held_.clear();
  if (!held.empty()) held_.push_back(std::move(held));
}

void ResilientRun::run_in_world(const Make& make, const Body& body, const Body& end) {
  enter("make");
  // A process that was started again begins like this one, so all make the same.
  internal::set_generator_state(generator_);
  try {
    parts_ = make(world_);
  } catch (const c10::Error&) {
    // A pipeline over replicas refuses a model that some of them have trained.
    bool is_kept = false;
    for_each_kept([&](const Former&, const at::Tensor&) { is_kept = true; });
    if (is_kept) say("tensors of the world before are still kept: make the model anew in make()");
    throw;
  }
  check_parts();
  if (!kept_at_first_) kept_at_first_ = kept();
  enter("restore");
  const int64_t first = restore();
  for_each_kept(
      [](Former& former, const at::Tensor& tensor) { former.version = version_of(tensor); });
  counts_.repeated_steps += std::max<int64_t>(furthest_ - first, 0);
  // A snapshot is taken after a recovery, too, because new processes hold nothing yet.
  if (takes_snapshots()) snapshot(first);
  if (takes_snapshots()) check_memory();
  if (!is_resilient_ && world_.processes() != nullptr && options_.world.announce) {
    say("no snapshots are taken, and a death ends the run: no launcher keeps a meeting place; "
        "start the processes with //gpipe/distributed:launch");
  }
  // The first checkpoint is written now, because memory may lose the state at any time.
  if (!options_.path.empty() && !is_saved_) save(first);
  for (step_ = first; step_ < options_.steps; ++step_) {
    if (step_ != first && takes_snapshots() && step_ % options_.snapshot_every == 0) {
      snapshot(step_);
    }
    if (!options_.path.empty() && step_ % options_.save_every == 0 && step_ != saved_) save(step_);
    line_ = 0;
    enter("step");
    const internal::CarriedGenerators carried;
    body(parts_, step_);
    check_generators(carried.layer());
    recoveries_in_a_row_ = 0;
    furthest_ = std::max(furthest_, step_ + 1);
  }
  if (!options_.path.empty() && first < options_.steps) save(options_.steps);
  line_ = 0;
  enter("end");
  if (end != nullptr) end(parts_, options_.steps);
  internal::Processes* const processes = world_.processes().get();
  if (processes == nullptr) return;
  // This exchange ends when all ranks have come to it, so no process leaves while another one may
  // still need it.
  internal::in_call(processes, [&] {
    (void)processes->exchange("ResilientRun: the end", "", /*is_patient=*/true);
    return true;
  });
}

void ResilientRun::check_generators(std::optional<int64_t> layer) const {
  if (!layer || (!takes_snapshots() && options_.path.empty())) return;
  const bool draws_in_loss = *layer >= static_cast<int64_t>(parts_.pipe->size());
  const std::string who = draws_in_loss ? "the loss function"
                          : *layer < 0  ? "a layer"
                                        : absl::StrCat("layer ", *layer);
  // Within a call, so that the others, which know nothing of it, are told why this rank ends.
  internal::in_call(world_.processes().get(), [&]() -> bool {
    TORCH_CHECK_NOT_IMPLEMENTED(
        false, "ResilientRun: ", who,
        " gives its operators a generator whose state goes on from step to step. Such a state is "
        "in no snapshot or checkpoint, so a recovery would draw other numbers. Give the operators "
        "no generator, so that they draw from the pipeline's, or seed that generator in `body` "
        "from the step's number, before each step");
  });
}

template <typename Function>
void ResilientRun::for_each_kept(Function function) {
  for (Former& former : former_) {
    if (auto tensor = former.tensor.lock()) function(former, at::Tensor(std::move(tensor)));
  }
}

void ResilientRun::check_parts() {
  TORCH_CHECK_VALUE(parts_.pipe && parts_.optimizer != nullptr, "ResilientRun: make() returned no ",
                    parts_.pipe ? "optimizer" : "pipeline",
                    "; fill in ResilientParts::pipe and optimizer");
  TORCH_CHECK_VALUE((parts_.keep == nullptr) == (parts_.put_back == nullptr),
                    "ResilientRun: make() returned only one of ResilientParts::keep and put_back; "
                    "give both, or none");
  // No other tensor gets the address of one to which a weak pointer is kept.
  std::unordered_map<const c10::TensorImpl*, bool> is_changed;
  for (const Former& former : former_) {
    is_changed[former.tensor._unsafe_get_target()] = former.is_changed;
  }
  former_.clear();
  const auto check = [&](const char* what, const std::string& name, const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    const auto found = is_changed.find(tensor.unsafeGetTensorImpl());
    // A frozen table that the program keeps has the values that it had.
    TORCH_CHECK_VALUE(
        found == is_changed.end() || !(found->second || tensor.requires_grad() || tensor.is_meta()),
        "ResilientRun: make() returned a pipeline with a ", what, " of the world before, ",
        text::in_quotes(name),
        ", which has been trained or changed, or has no values in this process; make the model "
        "anew in make()");
    former_.push_back({WeakTensor(tensor.getIntrusivePtr())});
  };
  for (const auto& each : parts_.pipe->named_parameters()) {
    check("parameter", each.key(), each.value());
  }
  for (const auto& each : parts_.pipe->named_buffers()) check("buffer", each.key(), each.value());
  const bool is_saved = is_resilient_ || !options_.path.empty();
  if (is_saved || dynamic_cast<torch::optim::LBFGS*>(parts_.optimizer.get()) != nullptr) {
    internal::check_can_be_saved(parts_.pipe, *parts_.optimizer);
  }
}

int64_t ResilientRun::restore() {
  const Place printed = surely_printed();
  const std::vector<json> ranks =
      exchange(world_, "what each holds",
               {{"former_runs", former_runs_},
                {"held", told_of(held_)},
                {"was_rank_0", was_rank_0_},
                {"printed", {printed.step, printed.line}},
                {"saved", saved_},
                {"has_printed", printed_.step >= 0},
                {"has_checkpoint", !options_.path.empty() && has_checkpoint(options_.path)}});
  check_runs(ranks);
  is_saved_ = ranks.front().at("has_checkpoint");
  // A process whose call failed does not know whether the checkpoint was written.
  for (const json& rank : ranks) saved_ = std::max(saved_, rank.at("saved").get<int64_t>());
  if (!is_saved_) saved_ = -1;
  // The last line that the former rank 0 has printed for sure.
  Place sure = {options_.steps + 1, 0};
  for (const json& rank : ranks) {
    if (!rank.at("has_printed")) continue;
    const Place place = {rank.at("printed").at(0), rank.at("printed").at(1)};
    if (rank.at("was_rank_0")) {
      sure = place;
      break;
    }
    sure = std::min(sure, place);  // the former rank 0 is gone
  }
  printed_ = sure.step > options_.steps ? Place() : sure;
  was_rank_0_ = world_.rank() == 0;
  const std::map<std::string, Holding> found = holdings(ranks);
  const std::string best = best_of(found);
  // Where snapshots are rarer than checkpoints, the last one may be older.
  bool is_older = is_saved_ && !best.empty() && found.at(best).step < saved_;
  const std::string damage = is_older ? damage_of(options_.path, world_) : "";
  if (!damage.empty()) {
    say("the newer checkpoint cannot be read: " + damage);
    is_older = false;
    saved_ = -1;
  }
  if (!best.empty() && !is_older) {
    const Progress progress = load_snapshot(parts_.pipe, *parts_.optimizer, with(held_, best));
    // All processes have this state now. A second snapshot would be one too many while the next one
    // is taken.
    held_.erase(
        std::remove_if(held_.begin(), held_.end(),
                       [&](const Snapshot& snapshot) { return snapshot.fingerprint() != best; }),
        held_.end());
    take(progress);
    say(absl::StrCat("goes on with ", world_.size(), " processes from step ", progress.step,
                     lost_.empty() ? "" : ": ", lost_));
    return progress.step;
  }
  held_.clear();
  const std::string lost = loss_of(found);
  if (is_saved_) {
    const Progress progress = load_checkpoint(parts_.pipe, *parts_.optimizer, options_.path);
    take(progress);
    saved_ = progress.step;
    say(absl::StrCat(found.empty() || is_older ? "" : lost + ": ", "goes on from step ",
                     progress.step, " of ", text::in_quotes(options_.path)));
    return progress.step;
  }
  // A snapshot of step 0 has what make() has just made.
  if (std::any_of(found.begin(), found.end(),
                  [](const auto& each) { return each.second.step != 0; })) {
    throw std::runtime_error(absl::StrCat(
        "ResilientRun: ", lost, ": all processes that held it are lost, and there is no checkpoint",
        options_.path.empty() ? "; give ResilientOptions::path to have one"
                              : " yet in " + text::in_quotes(options_.path)));
  }
  if (parts_.put_back && counts_.recoveries > 0) parts_.put_back(*kept_at_first_);
  std::string why = found.empty() ? lost_ : lost;
  if (why.empty() && generation_ > 1) {
    why = absl::StrCat("generation ", generation_, ", no process has a state, and there is no ",
                       "checkpoint");
    if (options_.path.empty()) why += "; give ResilientOptions::path to have one";
  }
  if (!why.empty()) say(absl::StrCat("begins anew: ", why));
  return 0;
}

void ResilientRun::snapshot(int64_t step) {
  enter("snapshot");
  const auto begin = Clock::now();
  internal::take_snapshot(parts_.pipe, *parts_.optimizer, progress(step),
                          [&](Snapshot taken, int64_t planned) {
                            counts_.snapshot_bytes = taken.bytes();
                            counts_.planned_bytes = 2 * planned;
                            held_.push_back(std::move(taken));
                          });
  // All processes have their part of the new snapshot, so the snapshots before it are not needed
  // any more.
  held_.erase(held_.begin(), held_.end() - 1);
  ++counts_.snapshots;
  counts_.snapshot_seconds += seconds_since(begin);
}

void ResilientRun::save(int64_t step) {
  enter("save");
  save_checkpoint(parts_.pipe, *parts_.optimizer, progress(step), options_.path);
  is_saved_ = true;
  saved_ = step;
}

Progress ResilientRun::progress(int64_t step) const {
  Progress progress;
  progress.step = step;
  progress.settings = json{{"form", form()}, {"kept", kept()}}.dump();
  return progress;
}

std::string ResilientRun::kept() const {
  std::string state = parts_.keep ? parts_.keep() : "";
  const size_t valid = text::utf8_bytes(state);
  TORCH_CHECK_VALUE(valid == state.size(),
                    "ResilientRun: ResilientParts::keep returned bytes that are not UTF-8, behind ",
                    valid, " that are; encode them (base64, hex)");
  return state;
}

void ResilientRun::take(const Progress& progress) {
  const json settings = json::parse(progress.settings, nullptr, /*allow_exceptions=*/false);
  if (!settings.is_object() || !settings.contains("form") || !settings.contains("kept")) {
    throw std::runtime_error(
        text::in_quotes(options_.path) +
        " was not written by a ResilientRun; load it in make(), and give another path here");
  }
  const std::string then = settings.at("form");
  if (then != form()) {
    throw std::runtime_error(
        "ResilientRun: the run had " + then + ", and make() gave " + form() +
        ": the bits would be others. Give GPipeOptions the same in each world, groups, too: by "
        "default their number is that of the replicas");
  }
  if (!parts_.put_back) return;
  const std::vector<double> rates = rates_of(*parts_.optimizer);
  parts_.put_back(settings.at("kept"));
  // A scheduler that put_back() makes anew, and steps to where it was, has changed them.
  for (size_t group = 0; group < rates.size(); ++group) {
    parts_.optimizer->param_groups().at(group).options().set_lr(rates[group]);
  }
}

std::string ResilientRun::form() const {
  return absl::StrCat(parts_.pipe->chunks(), " chunks, ", parts_.pipe->groups(), " groups, ",
                      parts_.pipe->cpu_threads_per_stage(), " threads per stage");
}

void ResilientRun::log(const std::string& text) {
  ++line_;
  const bool is_new = step_ > printed_.step || (step_ == printed_.step && line_ > printed_.line);
  if (!is_new) return;
  printed_ = {step_, line_};
  if (world_.rank() == 0) std::cout << text << std::endl;
}

ResilientRun::Place ResilientRun::surely_printed() const {
  // Lines that are behind the step are those of a former world.
  if (was_rank_0_ || step_ < printed_.step) return printed_;
  // All processes have come to the last call of the step before this one. Rank 0 may have died
  // between two lines behind that call.
  return std::min(printed_, Place{step_ - 1, 0});
}

void ResilientRun::enter(const char* phase) const {
  if (options_.on_phase != nullptr) options_.on_phase(phase);
}

void ResilientRun::say(const std::string& text) const {
  if (world_.rank() == 0) std::cerr << "ResilientRun: " << text << std::endl;
}

}  // namespace gpipe
