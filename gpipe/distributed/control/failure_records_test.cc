// Plays all ranks of a run in one thread, with a random clock and random delays of messages.
#include "gpipe/distributed/control/failure_records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>

#include "gpipe/testing/seed.h"

namespace gpipe::distributed {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Faults = std::vector<Fault>;
using Time = FailureRecords::Time;
using std::chrono::milliseconds;

Fault fault(FaultKind kind, int64_t rank, const std::string& text = "t") {
  Fault result;
  result.kind = kind;
  result.rank = rank;
  result.text = text;
  return result;
}
Fault exception(int64_t rank, const std::string& text = "t") {
  return fault(FaultKind::kException, rank, text);
}
Fault death(int64_t rank) { return fault(FaultKind::kDeath, rank); }

Time at(int ms) { return Time() + std::chrono::hours(1) + milliseconds(ms); }

TEST(FailureRecords, ARecordOfExceptionsIsNotTheLast) {
  FailureRecords records(0, 3);
  const auto round = records.round();
  EXPECT_FALSE(records.has_failed());
  records.listen(at(0));
  records.report(exception(0), at(0), at(0));
  EXPECT_TRUE(records.has_failed());
  EXPECT_TRUE(records.take_must_cancel());
  EXPECT_FALSE(records.take_must_cancel());
  EXPECT_EQ(records.take_untold().size(), 1);
  EXPECT_FALSE(records.may_go_on());
  EXPECT_EQ(records.time_to_decide(at(0), 0, 3), at(40));
  records.decide(at(40));
  EXPECT_THAT(*records.take_record(), ElementsAre(exception(0)));
  EXPECT_THAT(records.last(), IsEmpty());
  records.report(exception(0, "later"), at(50), at(50));
  EXPECT_THAT(records.take_untold(), IsEmpty());

  records.hear_ready(1, 1);
  EXPECT_TRUE(records.is_ready(1, 1));
  EXPECT_FALSE(records.is_ready(2, 1));
  ASSERT_TRUE(records.may_go_on());
  records.begin_next_epoch(at(60));
  EXPECT_EQ(records.epoch(), 1);
  EXPECT_FALSE(records.has_failed());
  // A thread that waits for the record of the earlier epoch still finds it in that epoch's round.
  EXPECT_TRUE(round->is_decided());
  EXPECT_THAT(round->record, ElementsAre(exception(0)));
}

TEST(FailureRecords, ALossBehindARecordIsDecidedAsThatWas) {
  FailureRecords records(0, 3);
  records.listen(at(0));
  records.hear_record(0, {exception(1)}, at(0));
  EXPECT_THAT(*records.take_record(), ElementsAre(exception(1)));  // the record is passed on
  records.listen(at(100));
  records.listen(at(101));
  records.lose(death(2), at(101), at(101));
  EXPECT_FALSE(records.may_go_on());
  EXPECT_EQ(records.take_untold().size(), 1);
  EXPECT_EQ(records.time_to_decide(at(101), 0, 2), at(141));
  records.listen(at(110));
  records.hear(0, death(1), at(102), at(110));
  records.decide(at(141));
  // The epoch's own record is unchanged.
  EXPECT_THAT(records.round()->record, ElementsAre(exception(1)));
  EXPECT_THAT(records.last(), ElementsAre(death(2), death(1)));
  EXPECT_THAT(*records.take_record(), ElementsAre(death(2), death(1)));
  // After the last record a rank ignores what it hears or loses.
  records.lose(death(1), at(150), at(150));
  records.hear_record(0, {death(1)}, at(150));
  EXPECT_FALSE(records.is_open());
  EXPECT_THAT(records.last(), ElementsAre(death(2), death(1)));
}

// This rank notices that rank 2 is lost while another rank decides a record without that loss. The
// loss must then be named by the last record.
TEST(FailureRecords, ALossThatTheRecordDoesNotNameIsNotForgotten) {
  FailureRecords records(0, 3);
  records.lose(death(2), at(0), at(0));
  records.hear_record(0, {exception(1)}, at(1));
  EXPECT_TRUE(records.is_open());
  EXPECT_FALSE(records.may_go_on());
  records.decide(at(41));
  EXPECT_THAT(records.last(), ElementsAre(death(2)));

  // Rank 2 threw before it ended, so the record names its exception and not its end.
  FailureRecords thrower(0, 3);
  thrower.hear(0, exception(2), at(0), at(0));
  thrower.lose(death(2), at(1), at(1));
  thrower.decide(at(40));
  EXPECT_THAT(thrower.round()->record, ElementsAre(exception(2)));
  EXPECT_TRUE(thrower.is_open());
  thrower.decide(at(80));
  EXPECT_THAT(thrower.last(), ElementsAre(death(2)));
}

TEST(FailureRecords, TheLastRecordIsThatOfAnyEpoch) {
  FailureRecords running(0, 3);
  running.hear_record(7, {death(1)}, at(0));
  EXPECT_THAT(running.round()->record, ElementsAre(death(1)));
  EXPECT_THAT(running.last(), ElementsAre(death(1)));
  EXPECT_TRUE(running.is_lost(1));
  EXPECT_TRUE(running.take_must_cancel());
  // Exceptions of another epoch are ignored.
  FailureRecords other(0, 3);
  other.hear(1, exception(1), at(0), at(0));
  other.hear_record(1, {exception(1)}, at(0));
  EXPECT_FALSE(other.has_failed());
}

TEST(FailureRecords, WhatTheNextEpochBeginsWith) {
  FailureRecords records(0, 3);
  records.hear_record(0, {exception(1)}, at(0));
  records.take_must_cancel();
  records.hear_ready(1, 1);
  records.hear_ready(2, 1);
  // The other ranks have begun the next epoch, and rank 2 has thrown in it and ended. This rank has
  // not noticed yet that all are ready.
  records.hear(1, exception(2, "boom"), at(10), at(11));
  records.lose(death(2), at(12), at(12));
  ASSERT_TRUE(records.may_go_on());
  records.begin_next_epoch(at(13));
  EXPECT_TRUE(records.has_failed());
  EXPECT_TRUE(records.take_must_cancel());
  records.decide(at(60));
  EXPECT_THAT(records.round()->record, ElementsAre(exception(2, "boom")));
  EXPECT_TRUE(records.is_open());  // the end of rank 2 is decided next
}

// A loss after a record is decided at once, even if some ranks (here rank 1) have not come to the
// next epoch yet.
TEST(FailureRecords, ARankThatWasReadyAndIsLostIsReportedAtOnce) {
  FailureRecords records(0, 3);
  records.hear_record(0, {exception(1)}, at(0));
  records.hear_ready(2, 1);
  records.lose(death(2), at(10), at(10));
  EXPECT_TRUE(records.is_open());
  records.decide(at(50));
  EXPECT_THAT(records.last(), ElementsAre(death(2)));
}

TEST(FailureRecords, ARankThatMissesItsTurnWaitsForTheNext) {
  FailureRecords records(1, 3);
  records.listen(at(0));
  records.report(exception(1), at(0), at(0));
  EXPECT_EQ(records.time_to_decide(at(0), 1, 3), at(240));
  EXPECT_EQ(records.time_to_decide(at(339), 1, 3), at(240));
  EXPECT_EQ(records.time_to_decide(at(340), 1, 3), at(840));
  EXPECT_EQ(records.time_to_decide(at(939), 1, 3), at(840));
  EXPECT_EQ(records.time_to_decide(at(940), 1, 3), at(1440));
  // If no other rank is left, a rank needs no turn.
  EXPECT_EQ(records.time_to_decide(at(340), 0, 1), at(40));

  // After a loss this rank waits for another 40 ms before it decides, because a record that the
  // lost rank has decided may be in transit.
  FailureRecords left(1, 3);
  left.report(exception(1), at(0), at(0));
  left.lose(death(0), at(45), at(45));
  EXPECT_EQ(left.time_to_decide(at(45), 0, 2), at(85));
  left.hear(0, death(0), at(45), at(50));
  EXPECT_EQ(left.time_to_decide(at(50), 0, 2), at(85));

  // A rank that did not listen for 190 ms does not know when the messages that it reads arrived. So
  // it counts its turn as over and waits for the next one.
  FailureRecords stopped(0, 2);
  stopped.listen(at(0));
  stopped.listen(at(190));
  stopped.hear(0, exception(1), at(190), at(190));
  EXPECT_EQ(stopped.time_to_decide(at(190), 0, 2), at(440));
  FailureRecords idle(0, 2);
  idle.listen(at(0));
  idle.listen(at(50));
  idle.hear(0, exception(1), at(50), at(50));
  EXPECT_EQ(idle.time_to_decide(at(50), 0, 2), at(90));
}

// --- Tests of all ranks together.

struct Word {
  enum Kind { kFault, kRecord, kReady, kBye, kClosed } kind;
  uint32_t epoch = 0;
  Faults faults;
  Time when{};
  Time arrival{};
};

struct Plan {
  bool stalls = false;
  bool leaves = false;
};

class Run {
 public:
  Run(unsigned seed, Plan plan) : random_(seed), plan_(plan), size_(2 + draw(4)) {
    for (int rank = 0; rank < size_; ++rank) {
      ranks_.emplace_back();
      ranks_.back().records = std::make_unique<FailureRecords>(rank, size_);
      ranks_.back().from.resize(static_cast<size_t>(size_));
      ranks_.back().is_connected.resize(static_cast<size_t>(size_), true);
      ranks_.back().has_left.resize(static_cast<size_t>(size_), false);
      ranks_.back().user = draw(100);
    }
    const int kills = draw(3);
    for (int i = 0; i < kills; ++i) kills_.insert({draw(kLastKill), draw(size_)});
  }

  void run() {
    for (ms_ = 0; ms_ < kEnd && !is_over(); ++ms_) {
      for (const auto& [time, victim] : kills_) {
        if (time == ms_) kill(victim);
      }
      // The order is random, so a rank may or may not hear in this millisecond what another rank
      // says in it.
      for (int i = 0; i < size_; ++i) turn(draw(size_));
      for (int i = 0; i < size_; ++i) turn(i);
    }
  }

  // Checks what the remaining ranks have been told.
  void expect_one_run() {
    std::map<uint32_t, std::set<std::string>> records;
    std::set<std::string> last;
    for (int i = 0; i < size_; ++i) {
      Rank& process = rank(i);
      if (!process.is_alive || process.is_gone) continue;
      process.keep();
      for (const auto& [epoch, text] : process.told) records[epoch].insert(text);
      last.insert(text_of(process.records->last()));
      EXPECT_FALSE(process.records->is_open()) << "rank " << i << " waits for a decision";
      // No rank waits for an epoch that does not come.
      EXPECT_FALSE(process.is_ready) << "rank " << i << " waits for the next epoch";
    }
    if (last.empty()) return;  // no rank is left
    EXPECT_EQ(last.size(), 1) << *last.begin() << " and " << *last.rbegin();
    for (auto& [epoch, texts] : records) {
      // If ranks may stall, some of them may get the last record in place of the epoch's record.
      if (plan_.stalls) texts.erase(*last.begin());
      EXPECT_LE(texts.size(), 1) << "epoch " << epoch << ": " << *texts.begin() << " and "
                                 << *texts.rbegin();
    }
  }
  bool has_last() const {
    return std::any_of(ranks_.begin(), ranks_.end(),
                       [](const Rank& process) { return !process.records->last().empty(); });
  }

 private:
  // Times are in milliseconds. All ranks are done long before kEnd.
  static constexpr int kEnd = 3000;
  static constexpr int kLastKill = 400;
  static constexpr uint32_t kEpochs = 3;

  struct Rank {
    std::unique_ptr<FailureRecords> records;
    std::vector<std::deque<Word>> from;
    std::vector<bool> is_connected;
    std::vector<bool> has_left;
    bool is_alive = true;
    bool is_gone = false;   // it has left
    bool is_ready = false;  // in next_epoch()
    int user = 0;           // when its user does something next
    int listens = 0;        // when it listens again, at the earliest
    int heard = -1000;      // when it last listened
    std::map<uint32_t, std::string> told;

    void keep() {
      const auto round = records->round();
      if (!round->is_decided() || told.count(round->epoch) != 0) return;
      told[round->epoch] = text_of(round->record);
    }
  };

  // No rank says or does anything any more.
  bool is_over() const {
    if (ms_ <= kLastKill || ms_ % 16 != 0) return false;
    return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& process) {
      if (!process.is_alive || process.is_gone) return true;
      const FailureRecords& records = *process.records;
      const bool is_last =
          !records.last().empty() || (records.epoch() == kEpochs && !records.has_failed());
      const bool is_quiet = std::all_of(process.from.begin(), process.from.end(),
                                        [](const auto& channel) { return channel.empty(); });
      return is_last && is_quiet && !records.is_open() && !process.is_ready;
    });
  }

  static std::string text_of(const Faults& faults) {
    std::string text;
    for (const Fault& fault : faults) text += to_text(fault) + "; ";
    return text;
  }
  int draw(int count) { return static_cast<int>(random_() % static_cast<unsigned>(count)); }
  Rank& rank(int i) { return ranks_[static_cast<size_t>(i)]; }
  Time now() const { return at(ms_); }

  void tell(int from, Word word) {
    for (int to = 0; to < size_; ++to) {
      if (to == from || !rank(from).is_connected[static_cast<size_t>(to)]) continue;
      auto& channel = rank(to).from[static_cast<size_t>(from)];
      word.arrival = now() + milliseconds(draw(4));
      if (!channel.empty()) word.arrival = std::max(word.arrival, channel.back().arrival);
      channel.push_back(word);
    }
  }
  void close(int from) {
    for (int to = 0; to < size_; ++to) {
      if (to == from) continue;
      auto& channel = rank(to).from[static_cast<size_t>(from)];
      Word word{Word::kClosed, 0, {}, {}, now() + milliseconds(draw(4))};
      if (!channel.empty()) word.arrival = std::max(word.arrival, channel.back().arrival);
      channel.push_back(word);
    }
  }
  // Kills a rank while it sends: some ranks get its last messages, some do not.
  void kill(int victim) {
    if (!rank(victim).is_alive || rank(victim).is_gone) return;
    rank(victim).is_alive = false;
    for (int to = 0; to < size_; ++to) {
      auto& channel = rank(to).from[static_cast<size_t>(victim)];
      while (!channel.empty() && channel.back().arrival >= now() && draw(2) == 0) {
        channel.pop_back();
      }
    }
    close(victim);
  }

  void turn(int i) {
    Rank& process = rank(i);
    if (!process.is_alive || process.is_gone || ms_ < process.listens) return;
    bool any = ms_ - process.heard >= FailureRecords::kListen.count();
    for (const auto& channel : process.from) {
      any = any || (!channel.empty() && channel.front().arrival <= now());
    }
    FailureRecords& records = *process.records;
    if (any) {
      process.heard = ms_;
      records.listen(now());
      for (int from = 0; from < size_; ++from) {
        auto& channel = process.from[static_cast<size_t>(from)];
        while (!channel.empty() && channel.front().arrival <= now()) {
          const Word word = channel.front();
          channel.pop_front();
          hear(process, from, word);
          say(i);
        }
      }
    }
    if (records.is_open() && records.time_to_decide(now(), lower(i), all(i)) <= now()) {
      records.decide(now());
    }
    say(i);
    act(i);
    say(i);
  }

  // May keep a rank from listening for about as long as it takes to miss its turn.
  void may_stall(Rank& process) {
    if (plan_.stalls && ms_ < 1000 && draw(6) == 0) process.listens = ms_ + 150 + draw(100);
  }

  void hear(Rank& process, int from, const Word& word) {
    FailureRecords& records = *process.records;
    may_stall(process);
    switch (word.kind) {
      case Word::kFault:
        return records.hear(word.epoch, word.faults.front(), word.when, now());
      case Word::kRecord:
        return records.hear_record(word.epoch, word.faults, now());
      case Word::kReady:
        return records.hear_ready(from, word.epoch);
      case Word::kBye:
        process.has_left[static_cast<size_t>(from)] = true;
        if (records.round()->is_decided()) miss(process, from);
        return;
      case Word::kClosed:
        process.is_connected[static_cast<size_t>(from)] = false;
        if (!process.has_left[static_cast<size_t>(from)]) records.lose(death(from), now(), now());
        return;
    }
  }
  void miss(Rank& process, int from) {
    if (process.records->is_ready(from, process.records->epoch() + 1)) return;
    process.records->lose(fault(FaultKind::kLeft, from), now(), now());
  }

  int lower(int i) { return count(i, i); }
  int all(int i) { return 1 + count(i, size_); }
  int count(int i, int end) {
    Rank& process = rank(i);
    int found = 0;
    for (int other = 0; other < end; ++other) {
      const auto k = static_cast<size_t>(other);
      if (other != i && process.is_connected[k] && !process.has_left[k] &&
          !process.records->may_be_lost(other)) {
        ++found;
      }
    }
    return found;
  }

  void say(int i) {
    Rank& process = rank(i);
    process.keep();
    if (const auto record = process.records->take_record()) {
      tell(i, {Word::kRecord, process.records->epoch(), *record, {}, {}});
    }
    for (const auto& told : process.records->take_untold()) {
      tell(i, {Word::kFault, process.records->epoch(), {told.fault}, told.when, {}});
    }
  }

  // Acts as the rank's user.
  void act(int i) {
    Rank& process = rank(i);
    FailureRecords& records = *process.records;
    if (process.is_ready) {
      bool all_ready = true;
      for (int other = 0; other < size_; ++other) {
        all_ready = all_ready && (other == i || records.is_ready(other, records.epoch() + 1));
      }
      if (!records.last().empty()) {
        process.is_ready = false;
      } else if (all_ready && records.may_go_on()) {
        process.is_ready = false;
        records.begin_next_epoch(now());
        process.user = ms_ + draw(60);
      }
      return;
    }
    if (ms_ < process.user) return;
    if (!records.last().empty()) return;
    if (records.round()->is_decided()) {
      if (plan_.leaves && draw(20) == 0) {
        tell(i, {Word::kBye, records.epoch(), {}, {}, {}});
        close(i);
        process.is_gone = true;
        return;
      }
      for (int other = 0; other < size_; ++other) {
        if (process.has_left[static_cast<size_t>(other)]) miss(process, other);
      }
      tell(i, {Word::kReady, records.epoch() + 1, {}, {}, {}});
      process.is_ready = true;
    } else if (records.epoch() < kEpochs && draw(3) == 0) {
      // A rank may throw several times until the epoch is decided.
      const std::string text = "boom " + std::to_string(ms_);
      for (Rank& other : ranks_) may_stall(other);
      records.report(exception(i, text), now(), now());
    }
    process.user = ms_ + draw(records.has_failed() ? 30 : 100);
  }

  std::mt19937 random_;
  Plan plan_;
  int size_;
  int ms_ = 0;
  std::vector<Rank> ranks_;
  std::set<std::pair<int, int>> kills_;
};

void expect_all_runs_agree(const Plan& plan) {
  auto random = testing::test_random();
  int with_last = 0;
  for (int round = 0; round < 300; ++round) {
    const auto seed = static_cast<unsigned>(random());
    SCOPED_TRACE("run " + std::to_string(seed));
    Run run(seed, plan);
    run.run();
    run.expect_one_run();
    if (::testing::Test::HasFailure()) return;
    if (run.has_last()) ++with_last;
  }
  // Most runs must lose a rank and so end with a last record. Otherwise the test would say little.
  EXPECT_GT(with_last, 150);
}

TEST(FailureRecords, AllRanksAgree) { expect_all_runs_agree({}); }
TEST(FailureRecords, AllRanksAgreeOnWhoLeaves) { expect_all_runs_agree({false, true}); }
TEST(FailureRecords, AllRanksAgreeThoughSomeAreStopped) { expect_all_runs_agree({true, false}); }

}  // namespace
}  // namespace gpipe::distributed
