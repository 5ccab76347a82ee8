#include "gpipe/distributed/launcher/meeting_rules.h"

#include <algorithm>
#include <utility>

namespace gpipe::distributed {
namespace {

// How much longer than the limit of silence the processes of a planned world may connect.
constexpr std::chrono::seconds kConnecting{5};
// The least time that the others wait for a process that has just been started.
constexpr std::chrono::seconds kStarting{20};
// The time that the others wait for a process that was silent or cut off. They have waited for it
// before. If it was only kept from running, it learns of that at once, and asks.
constexpr std::chrono::seconds kSilent{2};
// If answers() is called so much later than next_time() asks for, the launcher was kept from
// running, and most likely the processes, too (Ctrl-Z, a machine that sleeps).
constexpr std::chrono::seconds kPaused{1};
// After so many planned worlds in a row to which no process has connected, those that ask first
// meet without the others.
constexpr int kMostInVain = 3;

}  // namespace

bool MeetingRules::is_planned(int64_t number) const {
  return planned_ && std::count(planned_->members.begin(), planned_->members.end(), number) != 0;
}

bool MeetingRules::is_survivor(int64_t number) const {
  const auto found = asking_.find(number);
  return found != asking_.end() && found->second.former != 0 && is_member(number);
}

void MeetingRules::started(int64_t number) { living_.insert(number); }

void MeetingRules::ended(int64_t number) {
  living_.erase(number);
  not_waited_for_.erase(number);
  members_left_.erase(number);
  given_up_.erase(number);
  left_over_.erase(number);
  gave_up(number);
}

void MeetingRules::gave_up(int64_t number) {
  asking_.erase(number);
  if (is_planned(number)) give_up_plan();
}

void MeetingRules::was_cut_off(int64_t number) {
  if (agreed_ != 0) given_up_.insert(number);  // the first world needs all
  gave_up(number);
}

void MeetingRules::does_not_come(int64_t number) {
  if (agreed_ == 0 || asking_.count(number) != 0) return;
  if (is_planned(number)) {
    if (planned_->missing.count(number) == 0) return;
    give_up_plan();
  }
  not_waited_for_.insert(number);
}

void MeetingRules::ask(int64_t number, int64_t former, const Question& question, Time) {
  if (left_over_.count(number) != 0) former = 0;
  if (former != 0 && former < agreed_) {
    answers_.push_back({number,
                        kOver,
                        former,
                        "the run goes on without this process: its world, generation " +
                            std::to_string(former) + ", is over, and generation " +
                            std::to_string(agreed_) +
                            " exists. It did not come in time, as a process that was stopped, was "
                            "cut off or computes for longer than silence_limit",
                        0,
                        {}});
    return;
  }
  if (is_planned(number)) give_up_plan();
  not_waited_for_.erase(number);
  given_up_.erase(number);
  asking_[number] = {former, question};
  if (!is_survivor(number)) return;
  // The members that this one has lost because of their silence.
  for (const int64_t rank : question.silent) {
    if (rank < 0 || rank >= static_cast<int64_t>(members_.size())) continue;
    const int64_t silent = members_[static_cast<std::size_t>(rank)];
    if (is_member(silent) && asking_.count(silent) == 0) given_up_.insert(silent);
  }
}

void MeetingRules::arrived(int64_t number, int64_t generation) {
  if (!planned_ || planned_->generation != generation) return;
  planned_->missing.erase(number);
  if (!planned_->missing.empty()) return;
  agreed_ = generation;
  in_vain_ = 0;
  members_ = planned_->members;
  members_left_ = {members_.begin(), members_.end()};
  given_up_.clear();
  local_ranks_ = planned_->local_ranks;
  // A survivor that is left over becomes a newcomer, which waits for the next world. It may have to
  // ask for that one again, and always tells the world in which it was last.
  for (const int64_t member : members_) left_over_.erase(member);
  for (const int64_t other : planned_->left_over) {
    if (living_.count(other) != 0) left_over_.insert(other);
  }
  planned_.reset();
  for (const int64_t member : members_) answers_.push_back({member, kGo, generation, "", 0, {}});
  // Processes that asked while the others connected came too late for this world. Their questions
  // are taken anew, for the next one.
  std::map<int64_t, Asking> late;
  late.swap(asking_);
  for (const auto& [other, asking] : late) ask(other, asking.former, asking.question, {});
}

// Tells all processes of the planned world that have not ended that this world does not come to
// exist, so that they ask again.
void MeetingRules::give_up_plan() {
  for (const int64_t member : planned_->members) {
    if (living_.count(member) != 0) {
      answers_.push_back({member, kVoid, planned_->generation, "", 0, {}});
    }
  }
  planned_.reset();
}

// Whether a meeting for the next world begins. As long as the existing world has living members,
// one of them must ask: newcomers alone do not end that world.
bool MeetingRules::begins() const {
  if (asking_.empty()) return false;
  if (members_left_.empty()) return true;
  return std::any_of(asking_.begin(), asking_.end(),
                     [&](const auto& each) { return is_survivor(each.first); });
}

std::chrono::milliseconds MeetingRules::patience_with(int64_t number,
                                                      const Question& question) const {
  if (agreed_ == 0) return question.first_limit;
  if (is_member(number)) return question.limit;
  return std::max<std::chrono::milliseconds>(question.limit, kStarting);
}

std::vector<MeetingRules::Answer> MeetingRules::answers(Time now) {
  if (const std::optional<Time> asked = next_time(); asked && now > *asked + kPaused) {
    // The wait begins anew.
    if (meeting_began_) meeting_began_ = now;
    if (planned_) planned_->end = now + planned_->patience;
  }
  if (planned_ && now >= planned_->end) {
    // If nobody has arrived, the network may be slow, so all are waited for again, a few times. The
    // first world is for all that live in any case.
    const bool is_known_who_hangs =
        planned_->missing.size() < planned_->members.size() || ++in_vain_ >= kMostInVain;
    if (agreed_ != 0 && is_known_who_hangs) {
      not_waited_for_.insert(planned_->missing.begin(), planned_->missing.end());
    }
    give_up_plan();
  }
  if (!planned_ && begins()) {
    const Question& first = asking_.begin()->second.question;
    if (!meeting_began_) meeting_began_ = now;
    Time next = Time::max();
    std::vector<int64_t> late;
    std::vector<int64_t> too_late;
    for (const int64_t number : living_) {
      if (asking_.count(number) != 0 || not_waited_for_.count(number) != 0) continue;
      const bool is_needed = static_cast<int64_t>(asking_.size()) < most_;
      if (!is_needed && !is_member(number) && agreed_ != 0) continue;
      late.push_back(number);
      std::chrono::milliseconds patience = patience_with(number, first);
      if (is_given_up(number)) {
        patience = std::min<std::chrono::milliseconds>(patience, kSilent);
      }
      const Time end = *meeting_began_ + patience;
      if (now >= end) {
        too_late.push_back(number);
      } else {
        next = std::min(next, end);
      }
    }
    meeting_ends_ = next;
    if (agreed_ == 0 && !too_late.empty()) {
      std::string text = "not all processes came within WorldOptions::rendezvous_limit: missing ";
      for (const int64_t number : too_late) {
        text += (number == too_late.front() ? "rank " : ", ") + std::to_string(number);
      }
      for (const auto& [number, asking] : asking_) {
        answers_.push_back({number, kRefused, 0, text, 0, {}});
      }
      asking_.clear();
    } else {
      not_waited_for_.insert(too_late.begin(), too_late.end());
      if (late.size() == too_late.size()) plan(now);
    }
  }
  if (planned_ || !begins()) {
    meeting_began_.reset();
    meeting_ends_.reset();
  }
  return std::exchange(answers_, {});
}

void MeetingRules::plan(Time now) {
  Planned next;
  std::vector<int64_t> came_from;
  // If a process was lost since the last world, nobody is left over: one of those that are here may
  // hold what only the lost one had, beside it.
  int64_t multiple = 1;
  if (std::all_of(members_.begin(), members_.end(),
                  [&](int64_t member) { return is_survivor(member); })) {
    for (const int64_t member : members_) {
      multiple = std::max(multiple, asking_.at(member).question.multiple_of);
    }
  }
  int64_t size = std::min(static_cast<int64_t>(asking_.size()), most_);
  if (size > multiple) size -= size % multiple;
  for (std::size_t rank = 0; rank < members_.size(); ++rank) {
    if (!is_survivor(members_[rank])) continue;
    if (static_cast<int64_t>(next.members.size()) >= size) {
      next.left_over.insert(members_[rank]);
      continue;
    }
    next.members.push_back(members_[rank]);
    came_from.push_back(static_cast<int64_t>(rank));
  }
  std::chrono::milliseconds limit{0};
  for (const auto& [number, asking] : asking_) {
    limit = std::max(limit, agreed_ == 0 ? asking.question.first_limit : asking.question.limit);
    if (is_survivor(number) || static_cast<int64_t>(next.members.size()) >= size) continue;
    next.members.push_back(number);
    came_from.push_back(-1);
  }
  next.generation = ++last_generation_;
  next.local_ranks = local_ranks_of(next.members);
  next.missing = {next.members.begin(), next.members.end()};
  next.patience = limit + kConnecting;
  next.end = now + next.patience;
  for (std::size_t rank = 0; rank < next.members.size(); ++rank) {
    const int64_t number = next.members[rank];
    asking_.erase(number);
    answers_.push_back({number, kWorld, next.generation, "", static_cast<int64_t>(rank), came_from,
                        next.local_ranks.at(number)});
  }
  planned_ = std::move(next);
}

// Processes choose their devices by their local ranks. So survivors keep theirs, a process that was
// started again has its number, as before, and a spare has one of a process that is gone.
std::map<int64_t, int64_t> MeetingRules::local_ranks_of(const std::vector<int64_t>& members) const {
  std::set<int64_t> free;
  for (int64_t local_rank = 0; local_rank < most_; ++local_rank) free.insert(local_rank);
  std::map<int64_t, int64_t> local_ranks;
  const auto give = [&](int64_t number, int64_t local_rank) {
    if (local_ranks.count(number) != 0 || free.erase(local_rank) == 0) return;
    local_ranks[number] = local_rank;
  };
  for (const int64_t number : members) {
    if (is_survivor(number)) give(number, local_ranks_.at(number));
  }
  for (const int64_t number : members) give(number, number);
  for (const int64_t number : members) {
    if (local_ranks.count(number) == 0) give(number, *free.begin());
  }
  return local_ranks;
}

std::optional<MeetingRules::Time> MeetingRules::next_time() const {
  if (planned_) return planned_->end;
  return meeting_ends_;
}

}  // namespace gpipe::distributed
