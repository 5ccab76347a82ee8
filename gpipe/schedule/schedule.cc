#include "gpipe/schedule/schedule.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <ostream>
#include <stdexcept>
#include <utility>

#include "text/quoted.h"

namespace gpipe {
namespace {

void check_counts(const char* who, int64_t stages, int64_t micro_batches) {
  if (stages < 1 || micro_batches < 1) {
    throw std::invalid_argument(
        std::string(who) + ": stages and micro_batches must be at least 1, got " +
        std::to_string(stages) + " stages and " + std::to_string(micro_batches) + " micro-batches");
  }
  if (stages > Schedule::kMostCells / micro_batches) {
    throw std::invalid_argument(std::string(who) +
                                ": at most 2^24 cells (stages x micro_batches), got " +
                                std::to_string(stages) + " x " + std::to_string(micro_batches));
  }
}

bool in_range(const Action& action, int64_t stages, int64_t micro_batches) {
  return action.stage >= 0 && action.stage < stages && action.micro_batch >= 0 &&
         action.micro_batch < micro_batches;
}

std::string ranges(int64_t stages, int64_t micro_batches) {
  return "stages 0.." + std::to_string(stages - 1) + " and micro-batches 0.." +
         std::to_string(micro_batches - 1);
}

// Reads the lines of a schedule's text with their numbers; drops empty lines and comments.
class Lines {
 public:
  explicit Lines(std::string_view text) : rest_(text) { next(); }

  bool done() const { return done_; }
  std::string_view line() const { return line_; }
  int64_t number() const { return number_; }

  void next() {
    while (!rest_.empty()) {
      const size_t end = std::min(rest_.find('\n'), rest_.size());
      line_ = trim(without_comment(rest_.substr(0, end)));
      rest_.remove_prefix(std::min(end + 1, rest_.size()));
      ++number_;
      if (!line_.empty()) return;
    }
    line_ = {};
    done_ = true;
    ++number_;
  }

  [[noreturn]] void fail(const std::string& expected) const {
    throw std::invalid_argument("Schedule::from_text: line " + std::to_string(number_) +
                                ": expected " + expected + ", found " +
                                (done_ ? "the end" : internal::quoted(line_)));
  }

 private:
  static std::string_view without_comment(std::string_view line) {
    return line.substr(0, line.find('#'));
  }

  static std::string_view trim(std::string_view line) {
    const size_t first = line.find_first_not_of(" \t\r");
    if (first == std::string_view::npos) return {};
    return line.substr(first, line.find_last_not_of(" \t\r") - first + 1);
  }

  std::string_view rest_;
  std::string_view line_;
  int64_t number_ = 0;
  bool done_ = false;
};

// Takes a line "<key> <number>" and returns the number.
int64_t take_count(Lines* lines, std::string_view key) {
  const std::string expected = "'" + std::string(key) + " <number, at least 1>'";
  std::string_view line = lines->line();
  if (line.substr(0, key.size()) != key) lines->fail(expected);
  line.remove_prefix(key.size());
  const size_t digits = line.find_first_not_of(' ');
  if (digits == 0 || digits == std::string_view::npos) lines->fail(expected);
  line.remove_prefix(digits);
  int64_t count = 0;
  const auto result = std::from_chars(line.data(), line.data() + line.size(), count);
  if (result.ec != std::errc() || result.ptr != line.data() + line.size() || count < 1)
    lines->fail(expected);
  lines->next();
  return count;
}

}  // namespace

Schedule Schedule::create(int64_t stages, int64_t micro_batches,
                          std::vector<std::vector<Action>> workers) {
  check_counts("Schedule::create", stages, micro_batches);
  auto rep = std::make_shared<Rep>();
  rep->stages = stages;
  rep->micro_batches = micro_batches;
  rep->worker_of.assign(static_cast<size_t>(stages), -1);
  for (size_t worker = 0; worker < workers.size(); ++worker) {
    for (const Action& action : workers[worker]) {
      if (!in_range(action, stages, micro_batches) ||
          static_cast<int>(action.kind) >= kActionKinds) {
        throw std::invalid_argument("Schedule::create: worker " + std::to_string(worker) + " has " +
                                    action.to_text() + ", but there are only " +
                                    ranges(stages, micro_batches));
      }
      int32_t& owner = rep->worker_of[static_cast<size_t>(action.stage)];
      if (owner < 0) owner = static_cast<int32_t>(worker);
    }
  }
  rep->workers = std::move(workers);
  return Schedule(std::move(rep));
}

Schedule Schedule::gpipe(int64_t stages, int64_t micro_batches) {
  check_counts("Schedule::gpipe", stages, micro_batches);
  std::vector<std::vector<Action>> workers(static_cast<size_t>(stages));
  const auto m = static_cast<int32_t>(micro_batches);
  for (int32_t stage = 0; stage < stages; ++stage) {
    std::vector<Action>& actions = workers[static_cast<size_t>(stage)];
    for (int32_t i = 0; i < m; ++i) actions.push_back({ActionKind::kForward, stage, i});
    for (int32_t i = m; i-- > 0;) actions.push_back({ActionKind::kBackward, stage, i});
  }
  return create(stages, micro_batches, std::move(workers));
}

Schedule Schedule::one_f_one_b(int64_t stages, int64_t micro_batches) {
  check_counts("Schedule::one_f_one_b", stages, micro_batches);
  std::vector<std::vector<Action>> workers(static_cast<size_t>(stages));
  const auto m = static_cast<int32_t>(micro_batches);
  for (int32_t stage = 0; stage < stages; ++stage) {
    std::vector<Action>& actions = workers[static_cast<size_t>(stage)];
    const int32_t warm_up = std::min(m, static_cast<int32_t>(stages) - 1 - stage);
    int32_t forward = 0;
    int32_t backward = 0;
    while (forward < warm_up) actions.push_back({ActionKind::kForward, stage, forward++});
    while (forward < m) {
      actions.push_back({ActionKind::kForward, stage, forward++});
      actions.push_back({ActionKind::kBackward, stage, backward++});
    }
    while (backward < m) actions.push_back({ActionKind::kBackward, stage, backward++});
  }
  return create(stages, micro_batches, std::move(workers));
}

const std::vector<Action>& Schedule::actions(int64_t worker) const {
  if (worker < 0 || worker >= workers()) {
    throw std::out_of_range("Schedule::actions: there is no worker " + std::to_string(worker) +
                            ", the schedule has " + std::to_string(workers()) + ", counted from 0");
  }
  return rep_->workers[static_cast<size_t>(worker)];
}

int64_t Schedule::worker_of(int64_t stage) const {
  if (stage < 0 || stage >= stages() || rep_->worker_of[static_cast<size_t>(stage)] < 0) {
    throw std::invalid_argument("Schedule::worker_of: no worker runs stage " +
                                std::to_string(stage) + " (there are " +
                                ranges(stages(), micro_batches()) + ")");
  }
  return rep_->worker_of[static_cast<size_t>(stage)];
}

Placement Schedule::placement() const {
  std::vector<int64_t> worker_of_stage;
  for (int64_t stage = 0; stage < stages(); ++stage) worker_of_stage.push_back(worker_of(stage));
  for (int64_t worker = 0; worker < workers(); ++worker) {
    if (!actions(worker).empty()) continue;
    throw std::invalid_argument("Schedule::placement: worker " + std::to_string(worker) +
                                " has no actions, so it has no stage");
  }
  return Placement::of(std::move(worker_of_stage));
}

void Schedule::check(const Placement& placement) const {
  if (placement.stages() != stages() || placement.workers() != workers()) {
    throw std::invalid_argument(
        "Schedule::check: the schedule has " + std::to_string(stages()) + " stages on " +
        std::to_string(workers()) + " workers, but the placement has " +
        std::to_string(placement.stages()) + " on " + std::to_string(placement.workers()));
  }
  std::string wrong;
  int64_t count = 0;
  for (int64_t stage = 0; stage < stages(); ++stage) {
    const int64_t worker = rep_->worker_of[static_cast<size_t>(stage)];
    if (worker == placement.worker_of(stage)) continue;
    if (++count > 10) continue;
    wrong += "\n  - stage " + std::to_string(stage) + " is " +
             (worker < 0 ? "nowhere" : "on worker " + std::to_string(worker)) +
             ", the placement has it on worker " + std::to_string(placement.worker_of(stage));
  }
  if (count == 0) return;
  if (count > 10) wrong += "\n  - and " + std::to_string(count - 10) + " more";
  throw std::invalid_argument("Schedule::check: the schedule does not match the placement:" +
                              wrong);
}

ScheduleFacts Schedule::verify(Sends sends) const {
  return verify(Routes::create(stages()), sends);
}

ScheduleFacts Schedule::verify(const Routes& routes, Sends sends) const {
  return internal::verify(stages(), micro_batches(), rep_->workers, routes, sends);
}

Schedule Schedule::only(std::initializer_list<ActionKind> kinds) const {
  for (ActionKind kind : kinds) (void)letter(kind);  // throws for a number that is not a kind
  std::vector<std::vector<Action>> workers;
  for (const std::vector<Action>& all : rep_->workers) {
    std::vector<Action>& kept = workers.emplace_back();
    std::copy_if(all.begin(), all.end(), std::back_inserter(kept), [&](const Action& action) {
      return std::find(kinds.begin(), kinds.end(), action.kind) != kinds.end();
    });
  }
  return create(stages(), micro_batches(), std::move(workers));
}

std::string Schedule::to_text() const {
  std::string text = "stages " + std::to_string(stages()) + "\nmicro_batches " +
                     std::to_string(micro_batches()) + "\n";
  for (size_t worker = 0; worker < rep_->workers.size(); ++worker) {
    text += "worker " + std::to_string(worker) + ":";
    for (const Action& action : rep_->workers[worker]) text += " " + action.to_text();
    text += "\n";
  }
  return text;
}

std::ostream& operator<<(std::ostream& out, const Schedule& schedule) {
  return out << schedule.to_text();
}

Schedule Schedule::from_text(std::string_view text) {
  Lines lines(text);
  if (!lines.done() &&
      std::string_view("(,0123456789").find(lines.line().front()) != std::string_view::npos) {
    lines.fail(
        "'stages <number, at least 1>' (a CSV table of torch.distributed.pipelining is read by "
        "schedule_from_csv, and from a file whose name ends in .csv by the command print)");
  }
  const int64_t stages = take_count(&lines, "stages");
  const int64_t micro_batches = take_count(&lines, "micro_batches");
  std::vector<std::vector<Action>> workers;
  for (; !lines.done(); lines.next()) {
    const std::string head = "worker " + std::to_string(workers.size()) + ":";
    std::string_view rest = lines.line();
    if (rest.substr(0, head.size()) != head) lines.fail("'" + head + " <actions>'");
    rest.remove_prefix(head.size());
    std::vector<Action>& actions = workers.emplace_back();
    while (true) {
      const size_t start = rest.find_first_not_of(" \t");
      if (start == std::string_view::npos) break;
      rest.remove_prefix(start);
      const std::string_view word = rest.substr(0, rest.find_first_of(" \t"));
      rest.remove_prefix(word.size());
      const std::string where =
          "Schedule::from_text: line " + std::to_string(lines.number()) + ": ";
      try {
        actions.push_back(Action::from_text(word));
      } catch (const std::invalid_argument& error) {
        throw std::invalid_argument(where + error.what());
      }
      if (!in_range(actions.back(), stages, micro_batches)) {
        throw std::invalid_argument(where + std::string(word) + " is out of range: expected " +
                                    ranges(stages, micro_batches));
      }
    }
  }
  return create(stages, micro_batches, std::move(workers));
}

}  // namespace gpipe
