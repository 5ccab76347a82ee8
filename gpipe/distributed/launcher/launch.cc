#include "gpipe/distributed/launcher/launch.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "gpipe/distributed/launcher/child_process.h"
#include "gpipe/distributed/launcher/core_shares.h"
#include "gpipe/distributed/launcher/guardian.h"
#include "gpipe/distributed/launcher/meeting_place.h"
#include "gpipe/distributed/launcher/own_state.h"
#include "gpipe/distributed/launcher/rank_outputs.h"
#include "gpipe/distributed/meet/addresses.h"
#include "gpipe/distributed/meet/meeting_messages.h"
#include "gpipe/distributed/sockets/master_port.h"
#include "machine/cores.h"

namespace gpipe::distributed {
namespace {

// The exit code by which programs say that they were called wrongly (bash, Python's argparse,
// command/).
constexpr int kUsageExitCode = 2;

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

std::string seconds(milliseconds time) {
  std::string text = std::to_string(time.count() / 1000);
  if (time.count() % 1000 != 0) {
    std::string digits = std::to_string(1000 + time.count() % 1000).substr(1);
    text += "." + digits.substr(0, digits.find_last_not_of('0') + 1);
  }
  return text + " s";
}

// The ranks as text, like "ranks 0, 2-5".
std::string name_ranks(const std::vector<int64_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t end = i;
    while (end + 1 < ranks.size() && ranks[end + 1] == ranks[end] + 1) ++end;
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
    if (end > i) text += (end == i + 1 ? ", " : "-") + std::to_string(ranks[end]);
    i = end + 1;
  }
  return text;
}

struct Rank {
  Rank(int64_t number, const ChildProcess& process, RankOutputs& outputs, int output_log,
       int error_log)
      : number(number),
        pid(process.pid),
        output(number, process.output, outputs.to_output(), output_log),
        error(number, process.error, outputs.to_error(), error_log) {}

  int64_t number;
  pid_t pid;
  RankStream output;
  RankStream error;
  std::optional<int> status;  // set when the process has ended
  bool has_group = true;      // whether its process group may have members
  bool was_restarted = false;
};

class Run {
 public:
  explicit Run(const LaunchOptions& options) : options_(options) {}

  int run() {
    try {
      start();
    } catch (...) {
      signal_all(SIGKILL);
      for (const Rank& rank : ranks_) waitpid(rank.pid, nullptr, 0);
      throw;
    }
    while (has_ranks() || clean_up()) wait_and_serve();
    for (Rank& rank : ranks_) {
      for (RankStream* stream : {&rank.output, &rank.error}) outputs_.drain(*stream);
    }
    report();
    const bool lost = outputs_.finish(state_.signals());
    if (first_failure_ != nullptr) return exit_code_of(*first_failure_->status);
    return lost_at_end_ != 0 ? lost_at_end_ : lost ? 1 : 0;
  }

 private:
  void start() {
    const char* path = std::getenv("PATH");
    child_.program = find_program(options_.command.at(0), path == nullptr ? "/usr/bin:/bin" : path,
                                  options_.directory);
    child_.arguments = options_.command;
    child_.directory = options_.directory;
    child_.parent = state_.parent();
    if (options_.bind_cores) shares_ = share_cores(machine::usable_core_numbers(), all_processes_);
    for (int64_t rank = 0; rank < all_processes_; ++rank) {
      const int output_log = outputs_.open_log(rank, ".out");
      const int error_log = outputs_.open_log(rank, ".err");
      const ChildProcess process = start_process(rank);
      ranks_.emplace_back(rank, process, outputs_, output_log, error_log);
    }
  }

  ChildProcess start_process(int64_t rank) {
    child_.environment = environment_of(rank);
    child_.input = options_.input && rank == 0 ? ChildInput::kParents : ChildInput::kNothing;
    child_.cores = shares_[static_cast<std::size_t>(rank)];
    const ChildProcess process = start_child(child_);
    guardian_.watch(process.pid);
    meeting_.started(rank);
    return process;
  }

  std::vector<std::string> environment_of(int64_t rank) const {
    const std::string size = std::to_string(all_processes_);
    const std::pair<std::string_view, std::string> ours[] = {
        {"RANK", std::to_string(rank)},
        {"WORLD_SIZE", size},
        {"LOCAL_RANK", std::to_string(rank)},
        {"LOCAL_WORLD_SIZE", size},
        {"MASTER_ADDR", loopback_},
        {"MASTER_PORT", std::to_string(port_.number())},
        {kMeetingPlaceVariable, meeting_.variable()},
        {"GPIPE_LAUNCHER", "1"}};
    std::vector<std::string> result;
    for (char** variable = environ; *variable != nullptr; ++variable) {
      const std::string_view text = *variable;
      const std::string_view name = text.substr(0, text.find('='));
      // If torchrun has started this launcher, the processes do not get torchrun's variables, which
      // are for the launcher alone.
      const bool replaced = name.rfind("TORCHELASTIC_", 0) == 0 ||
                            std::any_of(std::begin(ours), std::end(ours),
                                        [&](const auto& each) { return each.first == name; });
      if (!replaced) result.emplace_back(text);
    }
    for (const auto& [name, value] : ours) result.push_back(std::string(name) + "=" + value);
    if (std::getenv("OMP_NUM_THREADS") == nullptr) {
      result.push_back("OMP_NUM_THREADS=" + std::to_string(threads_of_each()));
    }
    // 32 is the greatest number of queues. Streams of a GPU that share a queue wait for each other,
    // which the streams of links between processes must not do (docs/design/device_links.md).
    if (std::getenv("CUDA_DEVICE_MAX_CONNECTIONS") == nullptr) {
      result.push_back("CUDA_DEVICE_MAX_CONNECTIONS=32");
    }
    return result;
  }

  // The number of threads of each process. If each process used as many threads as there are cores,
  // the processes would slow each other down. Sums depend on the number of threads, so it is the
  // same number as in a single process whose stages share the cores.
  int64_t threads_of_each() const {
    return std::max<int64_t>(machine::usable_cores() / options_.processes, 1);
  }

  bool has_ranks() const {
    return std::any_of(ranks_.begin(), ranks_.end(),
                       [](const Rank& rank) { return !rank.status.has_value(); });
  }

  // Waits until there is output or a signal, a process ends, or it is time to terminate or kill.
  void wait_and_serve() {
    std::vector<pollfd> waits = {{state_.signals(), POLLIN, 0}};
    std::vector<RankStream*> streams;
    for (Rank& rank : ranks_) {
      for (RankStream* stream : {&rank.output, &rank.error}) {
        if (stream->from < 0 || stream->to->is_full()) continue;
        waits.push_back({stream->from, POLLIN, 0});
        streams.push_back(stream);
      }
    }
    outputs_.add_waits(waits);
    const std::optional<Clock::time_point> meeting_waits = meeting_.add_waits(waits);
    poll(waits.data(), waits.size(), time_to_wait(meeting_waits));
    for (std::size_t i = 0; i < streams.size(); ++i) {
      if (waits[i + 1].revents != 0) outputs_.read_some(*streams[i]);
    }
    outputs_.write_some();
    take_signals();
    take_ends();
    meeting_.serve();
    look_for_stopped();
    take_measures();
  }

  // How long poll() may wait, in milliseconds; -1: without a limit.
  int time_to_wait(std::optional<Clock::time_point> next) const {
    for (const auto& other : {terminate_at_, kill_at_, look_for_stopped_at_}) {
      if (other && (!next || *other < *next)) next = other;
    }
    // The pause between two looks, in milliseconds, at groups whose leaders have ended: the system
    // does not report the end of such a group.
    constexpr int kLook = 20;
    const int most = has_ranks() ? -1 : kLook;
    if (!next) return most;
    const auto left = std::chrono::ceil<milliseconds>(*next - Clock::now()).count();
    const int wait = static_cast<int>(std::clamp<int64_t>(left, 0, 1'000'000));
    return most < 0 ? wait : std::min(most, wait);
  }

  void take_signals() {
    signalfd_siginfo info;
    while (read(state_.signals(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
      const int signal = static_cast<int>(info.ssi_signo);
      if (signal == SIGCHLD) continue;
      if (signal == SIGTSTP) {
        stop();
      } else if (signal == SIGUSR1 || signal == SIGUSR2) {
        say(describe_signal(signal) + " is passed on to all processes");
        passed_on_.insert(signal);
        signal_all(signal);
      } else if (!interrupted_) {
        interrupted_ = true;
        say(describe_signal(signal) +
            " is passed on to all processes (send it again to kill them)");
        signal_all(signal);
      } else if (signal != SIGHUP) {
        // A second SIGHUP does not count, because shell and system both send it when a terminal
        // closes.
        say(describe_signal(signal) + " again: all processes are killed");
        kill_all();
      }
    }
  }

  // Handles Ctrl-Z: stops all processes, and continues them when a shell continues this one.
  void stop() {
    signal_all(SIGSTOP);
    raise(SIGSTOP);
    signal_all(SIGCONT);
  }

  void take_ends() {
    std::vector<std::pair<Rank*, int>> ends;
    int status = 0;
    pid_t pid = 0;
    // This reaps any child, also the processes that this one has adopted.
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
      for (Rank& rank : ranks_) {
        if (rank.pid == pid && !rank.status) ends.emplace_back(&rank, status);
      }
    }
    // The system reports the ends since the last call in no particular order. If a signal ended a
    // rank, the others ended because of that, and not the reverse, so that rank comes first.
    std::stable_sort(ends.begin(), ends.end(), [this](const auto& a, const auto& b) {
      return is_cause(a.second) && !is_cause(b.second);
    });
    for (const auto& [rank, its_status] : ends) take_end(*rank, its_status);
  }

  // Whether a rank with this status cannot have ended because of another rank's failure: a signal
  // that this launcher has not sent ended it. SIGABRT does not count, because it also ends a rank
  // that does not catch the exception for another rank's failure.
  bool is_cause(int status) const {
    return WIFSIGNALED(status) && WTERMSIG(status) != SIGABRT && !ends_all();
  }

  // Whether the rank was ended by a signal that this launcher has received and passed on.
  bool is_passed_on(int status) const {
    return WIFSIGNALED(status) && passed_on_.count(WTERMSIG(status)) != 0;
  }

  // Whether ranks end because this launcher ends them, or was told to end them.
  bool ends_all() const { return interrupted_ || terminated_ || killed_; }

  // A rank that is stopped for a second does not come to a meeting: the others need not wait for it
  // as long as for one that computes.
  void look_for_stopped() {
    constexpr milliseconds kPatience{1000};
    if (!meeting_.waits()) {
      stopped_since_.clear();
      look_for_stopped_at_.reset();
      return;
    }
    const Clock::time_point now = Clock::now();
    if (look_for_stopped_at_ && now < *look_for_stopped_at_) return;
    look_for_stopped_at_ = now + kPatience / 4;
    for (const Rank& rank : ranks_) {
      if (rank.status || !is_stopped(rank.pid)) {
        stopped_since_.erase(rank.number);
      } else if (now - stopped_since_.try_emplace(rank.number, now).first->second >= kPatience) {
        meeting_.does_not_come(rank.number);
      }
    }
    meeting_.serve();
  }

  // Whether the others can go on after `rank` has ended with `status`.
  bool is_survivable(const Rank& rank, int status) const {
    if (first_failure_ != nullptr || ends_all() || exit_code_of(status) == 0) return false;
    if (!meeting_.was_asked()) return is_early_death(status) && restarts_ < options_.restarts;
    if (meeting_.was_left_out(rank.number) || meeting_.is_outside(rank.number)) return true;
    if (rank.was_restarted && !meeting_.has_asked(rank.number)) return true;
    // It was cut off from the others, which meet without it.
    if (meeting_.is_given_up(rank.number)) return true;
    return is_cause(status) && !is_passed_on(status);
  }

  // Whether a signal ended a rank before any rank asked the meeting place. It is not known yet
  // whether the program will ask, so the others cannot go on without that rank, but it may be
  // started again. If a rank has ended with 0, the program does not ask.
  bool is_early_death(int status) const {
    return !meeting_.was_asked() && ended_well_before_.empty() && is_cause(status) &&
           !is_passed_on(status);
  }

  // Whether a rank of the world that exists has ended with 0. Others of it may have met again.
  bool has_ended_well() const { return ended_well_in_ == meeting_.generation(); }

  // Starts the rank again, or lets the others go on without it. `text` describes the rank's end.
  // Returns false if no rank is left to go on.
  bool go_on_without(Rank& rank, const std::string& text) {
    const bool ends = has_ended_well();  // other ranks have done the run's work
    if (!ends && restarts_ < options_.restarts) {
      try {
        restart(rank);
        say(text + "; it is started again, restart " + std::to_string(++restarts_) + " of " +
            std::to_string(options_.restarts));
        return true;
      } catch (const std::exception& error) {
        say(text + "; it cannot be started again: " + error.what());
      }
    }
    const std::vector<int64_t> left = running();
    if ((left.empty() && !ends) || !meeting_.was_asked()) return false;
    if (left.empty()) {
      say(text);
    } else {
      say(text + "; " + name_ranks(left) + (left.size() == 1 ? " goes" : " go") + " on without it" +
          (ends || options_.restarts == 0 ? "" : ": no restart is left"));
    }
    return true;
  }

  void restart(Rank& rank) {
    look_at_group(rank);
    // The processes that it has left behind may hold, say, a port that its successor needs.
    if (rank.has_group) {
      kill(-rank.pid, SIGKILL);
      guardian_.forget(rank.pid);
    }
    const ChildProcess process = start_process(rank.number);
    rank.pid = process.pid;
    rank.output.go_on(process.output);
    rank.error.go_on(process.error);
    rank.status.reset();
    rank.has_group = true;
    rank.was_restarted = true;
  }

  // If some ranks have ended with 0, they have done the run's work. If no rank that still runs is a
  // member of their world, ends those that run: they were left out, or wait for a next world.
  void end_left_over() {
    if (!has_ended_well() || ends_all() || first_failure_ != nullptr) return;
    const std::vector<int64_t> left = running();
    const auto works = [&](int64_t rank) { return meeting_.is_member(rank); };
    if (left.empty() || std::any_of(left.begin(), left.end(), works)) return;
    say("the run has ended without " + name_ranks(left) + ": SIGTERM");
    ends_left_over_ = true;
    terminate();
  }

  void take_end(Rank& rank, int status) {
    rank.status = status;
    look_at_group(rank);
    // The rank's last output is forwarded before its end is reported.
    for (RankStream* stream : {&rank.output, &rank.error}) outputs_.read_rest(*stream);
    const bool failed = exit_code_of(status) != 0;
    const bool survivable = is_survivable(rank, status);
    const bool is_member = meeting_.is_member(rank.number);
    if (!failed && is_member) ended_well_in_ = meeting_.generation();
    meeting_.ended(rank.number);
    if (!failed && first_failure_ == nullptr) {
      ended_well_before_.push_back(rank.number);
      return end_left_over();
    }
    if (ends_left_over_) return;
    std::string text = name_ranks({rank.number}) + " (process " + std::to_string(rank.pid) + ") " +
                       describe_end(status);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && !killed_) {
      text += "; not by this launcher: by somebody else, or by the system because memory ran out";
    }
    if (survivable && go_on_without(rank, text)) {
      // Others of its world are done, so nobody does again what it has not done.
      if (is_member && has_ended_well() && lost_at_end_ == 0) lost_at_end_ = exit_code_of(status);
      return end_left_over();
    }
    if (first_failure_ == nullptr) {
      if (is_early_death(status)) {
        text +=
            "; no rank has called gpipe::meet() yet, as gpipe::ResilientRun does, so the run ends";
        text += restarts_ > 0 ? ": no restart is left"
                              : " (if the program calls it, --restarts=1 starts such a rank again)";
      } else if (restarts_ > 0 && !meeting_.was_asked()) {
        text += "; no rank has called gpipe::meet(), and --restarts is for programs that do";
      }
      meeting_.end(name_ranks({rank.number}) + " " + describe_end(status) +
                   ", and that ends the whole run");
      first_failure_ = &rank;
      stopped_before_failure_ = interrupted_;
      began_with_first_ = is_cause(status);
      if (has_ranks() && !killed_) {
        const milliseconds grace = exit_code_of(status) == kUsageExitCode
                                       ? std::min(options_.grace, options_.usage_grace)
                                       : options_.grace;
        text += "; the others have " + seconds(grace) + " to end by themselves";
        if (!kill_at_) terminate_at_ = Clock::now() + grace;
      }
    }
    if (failed && !ends_all()) failed_.push_back(&rank);
    say(text);
  }

  void look_at_group(Rank& rank) {
    if (!rank.has_group || !rank.status || kill(-rank.pid, 0) == 0 || errno != ESRCH) return;
    rank.has_group = false;
    guardian_.forget(rank.pid);
  }

  void take_measures() {
    const Clock::time_point now = Clock::now();
    if (terminate_at_ && now >= *terminate_at_) {
      terminate_at_.reset();
      if (has_ranks()) {
        say(name_ranks(running()) + " did not end by " +
            (running().size() == 1 ? "itself" : "themselves") + ": SIGTERM");
        terminate();
      }
    }
    if (kill_at_ && now >= *kill_at_) {
      kill_at_.reset();
      if (has_ranks()) {
        say(name_ranks(running()) + " did not end within " + seconds(options_.kill_after) +
            " of SIGTERM: SIGKILL");
      }
      kill_all();
    }
  }

  void terminate() {
    terminated_ = true;
    kill_at_ = Clock::now() + options_.kill_after;
    signal_all(SIGTERM);
    signal_all(SIGCONT);  // a stopped process could not act on SIGTERM
  }

  void kill_all() {
    killed_ = true;
    terminate_at_.reset();
    kill_at_.reset();
    signal_all(SIGKILL);
  }

  std::vector<int64_t> running() const {
    std::vector<int64_t> ranks;
    for (const Rank& rank : ranks_) {
      if (!rank.status) ranks.push_back(rank.number);
    }
    return ranks;
  }

  void signal_all(int signal) {
    for (Rank& rank : ranks_) {
      look_at_group(rank);
      if (rank.has_group) kill(-rank.pid, signal);
    }
  }

  // Called when all ranks have ended: ends the processes that they have left behind. Returns
  // whether it must be called again, because some of these processes still live.
  bool clean_up() {
    std::vector<int64_t> left;
    for (Rank& rank : ranks_) {
      look_at_group(rank);
      if (rank.has_group) left.push_back(rank.number);
    }
    if (left.empty()) return false;
    const Clock::time_point now = Clock::now();
    if (!clean_at_) {
      clean_at_ = now + kMoment;
      give_up_at_ = now + kMoment + options_.kill_after + kAfterKill;
    }
    if (now >= *clean_at_ && !terminated_ && !killed_) {
      say(name_ranks(left) + " left processes behind: SIGTERM");
      terminate();
    }
    // After a while the launcher gives up waiting, because a killed process that waits for a broken
    // disk may end much later.
    return now < give_up_at_;
  }

  // Says which rank the failure began with, as far as that is known. An exit code does not tell
  // whether a rank failed by itself or only reports another rank's failure, and which of the two
  // ends first is chance.
  void report() {
    if (first_failure_ == nullptr || ranks_.size() == 1) return;
    if (stopped_before_failure_) return say("no rank had failed before all were told to stop");
    const std::string number = std::to_string(first_failure_->number);
    const std::string end = number + ", which " + describe_end(*first_failure_->status);
    if (is_passed_on(*first_failure_->status)) {
      return say("the first that ended was rank " + end +
                 ": it was passed on, and ends a process that does not handle it");
    }
    if (began_with_first_) return say("the failure began with rank " + end);
    const Rank* const says = who_says_why();
    std::string why = "; no rank that failed wrote why";
    if (says == first_failure_) {
      why = "; its output, [" + number + "], says why, or which rank failed";
    } else if (says != nullptr) {
      const std::string other = std::to_string(says->number);
      why = " and wrote nothing to stderr; the output of rank " + other + ", [" + other +
            "], says why, or which rank failed";
    }
    if (ended_well_before_.empty()) return say("the first that ended was rank " + end + why);
    std::sort(ended_well_before_.begin(), ended_well_before_.end());
    say("the first that failed was rank " + end + why + "; before it " +
        name_ranks(ended_well_before_) +
        " ended with exit code 0, and a rank whose others are gone fails");
  }

  // The failed rank whose output explains the failure. That need not be the first one, because
  // ranks that have found the same error may let one of them report it. Null if no failed rank has
  // written anything.
  const Rank* who_says_why() const {
    for (const auto stream : {&Rank::error, &Rank::output}) {
      for (const Rank* rank : failed_) {
        if ((rank->*stream).has_written) return rank;
      }
    }
    return nullptr;
  }

  void say(const std::string& text) { outputs_.say(text); }

  static constexpr milliseconds kMoment{100};  // how long processes that are just ending may take
  static constexpr milliseconds kAfterKill{1000};

  const LaunchOptions& options_;
  OwnState state_;
  Guardian guardian_;
  MasterPort port_;
  const std::string loopback_ = loopback_address(interfaces_of_this_machine());
  MeetingPlace meeting_{loopback_, options_.processes};
  ChildOptions child_;
  const int64_t all_processes_ = options_.processes + options_.spares;
  // The cores of each process.
  std::vector<std::vector<int>> shares_ =
      std::vector<std::vector<int>>(static_cast<std::size_t>(all_processes_));
  RankOutputs outputs_{options_.log_directory};
  std::deque<Rank> ranks_;  // a deque, so that streams do not move

  Rank* first_failure_ = nullptr;           // the first rank that ended with a failure
  std::vector<int64_t> ended_well_before_;  // ranks that ended with 0 before the first failure
  std::set<int> passed_on_;                 // SIGUSR1 and SIGUSR2, as far as they were passed on
  std::vector<const Rank*> failed_;  // ranks that failed by themselves, in order of their ends
  bool began_with_first_ = false;    // first_failure_ is known not to follow from another's
  bool interrupted_ = false;
  bool stopped_before_failure_ = false;
  bool terminated_ = false;      // this launcher has sent SIGTERM to all
  bool killed_ = false;          // this launcher has sent SIGKILL to all
  int64_t restarts_ = 0;         // how many processes were started again
  int64_t ended_well_in_ = -1;   // the last generation of which a rank ended with 0; -1: none
  bool ends_left_over_ = false;  // SIGTERM was sent by end_left_over()
  int lost_at_end_ = 0;          // the exit code of a rank of that world that was lost after those
  std::optional<Clock::time_point> terminate_at_;
  std::optional<Clock::time_point> kill_at_;
  std::optional<Clock::time_point> look_for_stopped_at_;
  // Since when ranks are stopped for which others wait.
  std::map<int64_t, Clock::time_point> stopped_since_;
  std::optional<Clock::time_point> clean_at_;  // set when all ranks have ended
  Clock::time_point give_up_at_;
};

}  // namespace

int launch(const LaunchOptions& options) {
  if (options.command.empty() || options.processes < 1) {
    throw std::invalid_argument("launch() needs a command and at least one process");
  }
  return std::make_unique<Run>(options)->run();
}

}  // namespace gpipe::distributed
