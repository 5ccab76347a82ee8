#include "gpipe/distributed/launcher/meeting_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>

#include "gpipe/testing/seed.h"

namespace gpipe::distributed {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

Question question(int64_t number) {
  Question result;
  result.number = number;
  result.first_limit = milliseconds(10'000);
  result.limit = milliseconds(1000);
  return result;
}

// MeetingRules with processes that do as they are told, and with a clock that the test moves.
class Played {
 public:
  explicit Played(int64_t size, int64_t spares = 0) : rules(size) {
    for (int64_t number = 0; number < size + spares; ++number) rules.started(number);
  }
  // `silent`: ranks of the world `former` that this process has lost because of their silence.
  void ask(int64_t number, int64_t former, const std::vector<int64_t>& silent = {},
           int64_t multiple_of = 1) {
    Question asked = question(number);
    asked.limit = limit;
    asked.multiple_of = multiple_of;
    asked.silent = silent;
    rules.ask(number, former, asked, now);
  }
  // What the rules tell now, as texts like "1: world 2 as 0 from -1 2": process 1 has rank 0 in
  // world 2.
  std::vector<std::string> told() {
    std::vector<std::string> texts;
    for (const MeetingRules::Answer& each : rules.answers(now)) {
      std::string text = std::to_string(each.number) + ": ";
      switch (each.message) {
        case kWorld:
          text += "world " + std::to_string(each.generation) + " as " + std::to_string(each.rank) +
                  " from";
          for (const int64_t rank : each.came_from) text += " " + std::to_string(rank);
          local_ranks[each.number] = each.local_rank;
          break;
        case kGo:
          text += "go " + std::to_string(each.generation);
          break;
        case kVoid:
          text += "void " + std::to_string(each.generation);
          break;
        default:
          text += each.text;
      }
      texts.push_back(text);
    }
    return texts;
  }
  // All these processes ask and arrive, so their world comes to exist.
  void meet(const std::vector<int64_t>& numbers, int64_t former, int64_t generation) {
    for (const int64_t number : numbers) ask(number, former);
    EXPECT_THAT(told(), SizeIs(numbers.size()));
    for (const int64_t number : numbers) rules.arrived(number, generation);
    EXPECT_THAT(told(), SizeIs(numbers.size()));
    EXPECT_EQ(rules.generation(), generation);
  }

  MeetingRules rules;
  std::map<int64_t, int64_t> local_ranks;  // that the rules have told last, by process
  MeetingRules::Time now{};
  milliseconds limit{1000};
};

TEST(MeetingRules, TheFirstWorldHasTheOrderOfTheLauncher) {
  Played run(3);
  run.ask(2, 0);
  run.ask(0, 0);
  EXPECT_THAT(run.told(), IsEmpty());
  run.ask(1, 0);
  EXPECT_THAT(run.told(),
              ElementsAre("0: world 1 as 0 from -1 -1 -1", "1: world 1 as 1 from -1 -1 -1",
                          "2: world 1 as 2 from -1 -1 -1"));
  run.rules.arrived(0, 1);
  run.rules.arrived(1, 1);
  EXPECT_THAT(run.told(), IsEmpty());
  EXPECT_EQ(run.rules.generation(), 0);
  run.rules.arrived(2, 1);
  EXPECT_THAT(run.told(), ElementsAre("0: go 1", "1: go 1", "2: go 1"));
  EXPECT_EQ(run.rules.generation(), 1);
}

// Ctrl-Z stops the launcher, too. What happens to the processes in that time does not count.
TEST(MeetingRules, APauseOfTheLauncherDoesNotCount) {
  Played run(2);
  run.meet({0, 1}, 0, 1);
  run.ask(0, 1);
  EXPECT_THAT(run.told(), IsEmpty());
  run.now = *run.rules.next_time() + milliseconds(3000);
  EXPECT_THAT(run.told(), IsEmpty());
  run.ask(1, 1);
  EXPECT_THAT(run.told(), ElementsAre("0: world 2 as 0 from 0 1", "1: world 2 as 1 from 0 1"));
  run.rules.arrived(0, 2);
  run.now = *run.rules.next_time() + milliseconds(3000);
  EXPECT_THAT(run.told(), IsEmpty());
  run.rules.arrived(1, 2);
  EXPECT_THAT(run.told(), ElementsAre("0: go 2", "1: go 2"));
  run.ask(0, 2);
  EXPECT_THAT(run.told(), IsEmpty());
  run.now = *run.rules.next_time() + milliseconds(3000);
  EXPECT_THAT(run.told(), IsEmpty());
  run.now = *run.rules.next_time();  // process 1 does not come after the pause, either
  EXPECT_THAT(run.told(), ElementsAre("0: world 3 as 0 from 0"));
}

TEST(MeetingRules, SurvivorsKeepTheirOrderAndNewcomersComeBehind) {
  Played run(4);
  run.meet({0, 1, 2, 3}, 0, 1);
  run.rules.ended(0);
  run.rules.started(0);
  for (const int64_t number : {3, 1, 2}) run.ask(number, 1);
  EXPECT_THAT(run.told(), IsEmpty());  // process 0 lives again, so the others wait for it
  run.ask(0, 0);
  EXPECT_THAT(run.told(),
              ElementsAre("1: world 2 as 0 from 1 2 3 -1", "2: world 2 as 1 from 1 2 3 -1",
                          "3: world 2 as 2 from 1 2 3 -1", "0: world 2 as 3 from 1 2 3 -1"));
  for (const int64_t number : {0, 1, 2, 3}) run.rules.arrived(number, 2);
  run.told();
  run.rules.ended(2);  // rank 1 of generation 2
  for (const int64_t number : {0, 1, 3}) run.ask(number, 2);
  EXPECT_THAT(run.told(), ElementsAre("1: world 3 as 0 from 0 2 3", "3: world 3 as 1 from 0 2 3",
                                      "0: world 3 as 2 from 0 2 3"));
}

TEST(MeetingRules, ADeathWhileTheyConnectMakesTheWorldVoidForAll) {
  Played run(3);
  run.meet({0, 1, 2}, 0, 1);
  run.rules.ended(2);
  run.ask(0, 1);
  run.ask(1, 1);
  EXPECT_THAT(run.told(), ElementsAre("0: world 2 as 0 from 0 1", "1: world 2 as 1 from 0 1"));
  run.rules.arrived(1, 2);
  run.rules.ended(0);
  EXPECT_THAT(run.told(), ElementsAre("1: void 2"));
  EXPECT_EQ(run.rules.generation(), 1);
  run.rules.arrived(1, 2);  // sent before process 1 knew that world 2 is void; ignored
  EXPECT_THAT(run.told(), IsEmpty());
  run.ask(1, 1);
  EXPECT_THAT(run.told(), ElementsAre("1: world 3 as 0 from 1"));
}

TEST(MeetingRules, AProcessThatDoesNotComeInTimeIsLeftOutAndToldSo) {
  Played run(3);
  run.meet({0, 1, 2}, 0, 1);
  run.ask(0, 1);
  run.ask(1, 1);
  EXPECT_THAT(run.told(), IsEmpty());
  ASSERT_TRUE(run.rules.next_time().has_value());
  run.now = *run.rules.next_time() - milliseconds(1);
  EXPECT_THAT(run.told(), IsEmpty());
  run.now += milliseconds(1);
  EXPECT_THAT(run.told(), SizeIs(2));
  run.ask(2, 1);  // process 2 does not know yet whether world 2 comes to exist
  EXPECT_THAT(run.told(), IsEmpty());
  run.rules.arrived(0, 2);
  run.rules.arrived(1, 2);
  const auto told = run.told();
  ASSERT_THAT(told, SizeIs(3));
  EXPECT_THAT(told[2], HasSubstr("2: the run goes on without this process"));
  run.rules.ended(2);
  run.rules.started(2);
  run.ask(2, 0);  // process 2 waits for the next world
  EXPECT_THAT(run.told(), IsEmpty());
  run.ask(0, 2);
  run.ask(1, 2);
  EXPECT_THAT(run.told(), SizeIs(3));
}

// The survivors have waited for silent ranks already, until they gave up their world.
TEST(MeetingRules, RanksThatWereSilentAreNotWaitedForAgain) {
  Played run(4);
  run.limit = milliseconds(30'000);
  run.meet({0, 1, 2, 3}, 0, 1);
  run.rules.ended(0);  // from here on numbers and ranks differ
  for (const int64_t number : {1, 2, 3}) run.ask(number, 1);
  run.told();
  for (const int64_t number : {1, 2, 3}) run.rules.arrived(number, 2);
  run.told();
  run.ask(1, 2, {1, 2, 7});  // processes 2 and 3; there is no rank 7
  EXPECT_THAT(run.told(), IsEmpty());
  ASSERT_TRUE(run.rules.next_time().has_value());
  EXPECT_LE(*run.rules.next_time() - run.now, milliseconds(3000));
  run.ask(2, 2, {2});  // process 2 was not silent for long
  run.now = *run.rules.next_time();
  EXPECT_THAT(run.told(), ElementsAre("1: world 3 as 0 from 0 1", "2: world 3 as 1 from 0 1"));
}

TEST(MeetingRules, ARankThatSomebodyElseWaitsForHasTheWholeLimit) {
  Played run(3);
  run.limit = milliseconds(30'000);
  run.meet({0, 1, 2}, 0, 1);
  run.ask(0, 1, {2});
  run.told();
  run.now = *run.rules.next_time();
  EXPECT_THAT(run.told(), IsEmpty());  // process 1 was not silent, so it may come later
  EXPECT_GE(*run.rules.next_time() - run.now, milliseconds(20'000));
  run.ask(1, 1, {2});
  EXPECT_THAT(run.told(), ElementsAre("0: world 2 as 0 from 0 1", "1: world 2 as 1 from 0 1"));
}

// The place has waited for an answer of that process for its limit already.
TEST(MeetingRules, ARankWhoseLineWasCutIsNotWaitedForAgain) {
  Played run(3);
  run.limit = milliseconds(30'000);
  run.meet({0, 1, 2}, 0, 1);
  for (const int64_t number : {0, 1, 2}) run.ask(number, 1);
  EXPECT_THAT(run.told(), SizeIs(3));
  run.rules.was_cut_off(2);
  EXPECT_TRUE(run.rules.is_given_up(2));
  EXPECT_THAT(run.told(), ElementsAre("0: void 2", "1: void 2", "2: void 2"));
  run.ask(0, 1);
  run.ask(1, 1);
  EXPECT_THAT(run.told(), IsEmpty());
  ASSERT_TRUE(run.rules.next_time().has_value());
  EXPECT_LE(*run.rules.next_time() - run.now, milliseconds(3000));
  run.now = *run.rules.next_time();
  EXPECT_THAT(run.told(), ElementsAre("0: world 3 as 0 from 0 1", "1: world 3 as 1 from 0 1"));
}

TEST(MeetingRules, ANewcomerWhoseLineWasCutIsNotWaitedForAgain) {
  Played run(2);
  run.meet({0, 1}, 0, 1);
  run.rules.ended(1);
  run.rules.started(1);
  run.ask(0, 1);
  run.ask(1, 0);
  EXPECT_THAT(run.told(), SizeIs(2));
  run.rules.was_cut_off(1);
  EXPECT_THAT(run.told(), SizeIs(2));  // void
  run.ask(0, 1);
  EXPECT_THAT(run.told(), IsEmpty());
  ASSERT_TRUE(run.rules.next_time().has_value());
  EXPECT_LE(*run.rules.next_time() - run.now, milliseconds(3000));
}

TEST(MeetingRules, TheFirstWorldWaitsForARankWhoseLineWasCut) {
  Played run(2);
  run.ask(0, 0);
  run.ask(1, 0);
  EXPECT_THAT(run.told(), SizeIs(2));
  run.rules.was_cut_off(1);
  EXPECT_FALSE(run.rules.is_given_up(1));
  EXPECT_THAT(run.told(), SizeIs(2));  // void
  run.ask(0, 0);
  EXPECT_THAT(run.told(), IsEmpty());
  EXPECT_GE(*run.rules.next_time() - run.now, milliseconds(10'000));
}

TEST(MeetingRules, ARankThatWasGivenUpAndComesIsNotGivenUp) {
  Played run(2);
  run.meet({0, 1}, 0, 1);
  run.ask(0, 1, {1});
  EXPECT_TRUE(run.rules.is_given_up(1));
  EXPECT_FALSE(run.rules.is_given_up(0));
  run.ask(1, 1, {0});  // it has asked already
  EXPECT_FALSE(run.rules.is_given_up(1));
  EXPECT_FALSE(run.rules.is_given_up(0));
  EXPECT_THAT(run.told(), ElementsAre("0: world 2 as 0 from 0 1", "1: world 2 as 1 from 0 1"));
}

TEST(MeetingRules, ANewcomerHasTimeToStart) {
  Played run(3);
  run.meet({0, 1, 2}, 0, 1);
  run.rules.ended(2);
  run.rules.started(2);
  run.ask(0, 1);
  EXPECT_THAT(run.told(), IsEmpty());
  run.now = *run.rules.next_time();  // the end of the wait for process 1, which does not come
  EXPECT_THAT(run.told(), IsEmpty());
  EXPECT_GE(*run.rules.next_time() - run.now, std::chrono::seconds(10));
  run.ask(2, 0);
  EXPECT_THAT(run.told(), ElementsAre("0: world 2 as 0 from 0 -1", "2: world 2 as 1 from 0 -1"));
}

TEST(MeetingRules, SparesTakeThePlacesOfTheDead) {
  Played run(2, 2);
  for (const int64_t number : {3, 2, 1, 0}) run.ask(number, 0);
  EXPECT_THAT(run.told(), ElementsAre("0: world 1 as 0 from -1 -1", "1: world 1 as 1 from -1 -1"));
  run.rules.arrived(0, 1);
  run.rules.arrived(1, 1);
  EXPECT_THAT(run.told(), ElementsAre("0: go 1", "1: go 1"));
  run.rules.ended(0);
  run.rules.started(0);  // nobody waits for process 0, because a spare is there
  EXPECT_THAT(run.told(), IsEmpty());
  run.ask(1, 1);
  EXPECT_THAT(run.told(), ElementsAre("1: world 2 as 0 from 1 -1", "2: world 2 as 1 from 1 -1"));
}

TEST(MeetingRules, ASpareHasTheLocalRankOfAProcessThatIsGone) {
  Played run(3, 1);
  run.ask(3, 0);
  run.meet({0, 1, 2}, 0, 1);
  EXPECT_THAT(run.local_ranks, ElementsAre(Pair(0, 0), Pair(1, 1), Pair(2, 2)));
  run.rules.ended(1);
  run.rules.started(1);
  run.ask(0, 1);
  run.ask(2, 1);
  EXPECT_THAT(run.told(), SizeIs(3));
  EXPECT_THAT(run.local_ranks, ElementsAre(Pair(0, 0), Pair(1, 1), Pair(2, 2), Pair(3, 1)));
  for (const int64_t number : {0, 2, 3}) run.rules.arrived(number, 2);
  run.told();
  // Process 1 is a spare now, and its local rank is taken.
  run.ask(1, 0);
  run.rules.ended(2);
  run.ask(0, 2);
  run.ask(3, 2);
  EXPECT_THAT(run.told(), ElementsAre("0: world 3 as 0 from 0 2 -1", "3: world 3 as 1 from 0 2 -1",
                                      "1: world 3 as 2 from 0 2 -1"));
  EXPECT_THAT(run.local_ranks, ElementsAre(Pair(0, 0), Pair(1, 2), Pair(2, 2), Pair(3, 1)));
}

TEST(MeetingRules, SurvivorsThatAreLeftOverWaitAsSpares) {
  Played run(3);
  run.meet({0, 1, 2}, 0, 1);
  for (const int64_t number : {0, 1, 2}) run.ask(number, 1, {}, 2);
  EXPECT_THAT(run.told(), ElementsAre("0: world 2 as 0 from 0 1", "1: world 2 as 1 from 0 1"));
  run.rules.arrived(0, 2);
  run.rules.arrived(1, 2);
  EXPECT_THAT(run.told(), ElementsAre("0: go 2", "1: go 2"));
  EXPECT_FALSE(run.rules.is_member(2));
  // Process 2 has asked already. It is a newcomer, and its multiple does not count any more.
  run.rules.ended(0);
  run.rules.started(0);
  run.ask(1, 2);
  run.ask(0, 0);
  EXPECT_THAT(run.told(),
              ElementsAre("1: world 3 as 0 from 1 -1 -1", "0: world 3 as 1 from 1 -1 -1",
                          "2: world 3 as 2 from 1 -1 -1"));
}

// Process 2 always tells the world in which it was last.
TEST(MeetingRules, OneThatWasLeftOverMayAskAgain) {
  Played run(3);
  run.meet({0, 1, 2}, 0, 1);
  for (const int64_t number : {0, 1, 2}) run.ask(number, 1, {}, 2);
  EXPECT_THAT(run.told(), SizeIs(2));
  run.rules.arrived(0, 2);
  run.rules.arrived(1, 2);
  (void)run.told();
  run.rules.ended(0);
  run.ask(1, 2);
  EXPECT_THAT(run.told(), ElementsAre("1: world 3 as 0 from 1 -1", "2: world 3 as 1 from 1 -1"));
  run.rules.ended(1);
  EXPECT_THAT(run.told(), ElementsAre("2: void 3"));
  run.ask(2, 1);
  EXPECT_THAT(run.told(), ElementsAre("2: world 4 as 0 from -1"));
}

TEST(MeetingRules, IfTheWorldIsVoidOneThatIsLeftOverMayStillBeInTheNext) {
  Played run(3);
  run.meet({0, 1, 2}, 0, 1);
  for (const int64_t number : {0, 1, 2}) run.ask(number, 1, {}, 2);
  EXPECT_THAT(run.told(), ElementsAre("0: world 2 as 0 from 0 1", "1: world 2 as 1 from 0 1"));
  run.rules.ended(0);
  EXPECT_THAT(run.told(), ElementsAre("1: void 2"));
  run.ask(1, 1, {}, 2);
  EXPECT_THAT(run.told(), ElementsAre("1: world 3 as 0 from 1 2", "2: world 3 as 1 from 1 2"));
}

// What the lost process has given to another one may be there only, so all of them meet once more.
TEST(MeetingRules, AfterALossNobodyIsLeftOver) {
  Played run(4);
  run.meet({0, 1, 2, 3}, 0, 1);
  run.rules.ended(0);
  for (const int64_t number : {1, 2, 3}) run.ask(number, 1, {}, 2);
  EXPECT_THAT(run.told(), SizeIs(3));
}

TEST(MeetingRules, FewerThanTheMultipleAllGoOn) {
  Played run(3);
  run.meet({0, 1, 2}, 0, 1);
  for (const int64_t number : {0, 1, 2}) run.ask(number, 1, {}, 4);
  EXPECT_THAT(run.told(), SizeIs(3));
}

TEST(MeetingRules, TheOthersNeedNotWaitForOneThatDoesNotCome) {
  Played run(3);
  run.meet({0, 1, 2}, 0, 1);
  run.ask(0, 1);
  run.ask(1, 1);
  EXPECT_THAT(run.told(), IsEmpty());
  EXPECT_TRUE(run.rules.waits());
  run.rules.does_not_come(0);  // has no effect: process 0 has come
  EXPECT_THAT(run.told(), IsEmpty());
  run.rules.does_not_come(2);
  EXPECT_THAT(run.told(), ElementsAre("0: world 2 as 0 from 0 1", "1: world 2 as 1 from 0 1"));
  for (const int64_t number : {0, 1}) run.rules.arrived(number, 2);
  EXPECT_FALSE(run.rules.waits());
}

TEST(MeetingRules, OneThatDoesNotConnectIsNotWaitedFor) {
  Played run(3);
  run.meet({0, 1, 2}, 0, 1);
  for (const int64_t number : {0, 1, 2}) run.ask(number, 1);
  EXPECT_THAT(run.told(), SizeIs(3));
  run.rules.arrived(0, 2);
  EXPECT_TRUE(run.rules.waits());
  run.rules.does_not_come(0);  // has no effect: process 0 has arrived
  EXPECT_THAT(run.told(), IsEmpty());
  run.rules.does_not_come(2);
  EXPECT_THAT(run.told(), ElementsAre("0: void 2", "1: void 2", "2: void 2"));
  run.ask(0, 1);
  run.ask(1, 1);
  EXPECT_THAT(run.told(), ElementsAre("0: world 3 as 0 from 0 1", "1: world 3 as 1 from 0 1"));
}

TEST(MeetingRules, AProcessThatStopsWhileTheyConnectHoldsThemUpForALimitedTime) {
  Played run(3);
  run.meet({0, 1, 2}, 0, 1);
  for (const int64_t number : {0, 1, 2}) run.ask(number, 1);
  run.told();
  run.rules.arrived(0, 2);
  run.rules.arrived(1, 2);
  run.now = *run.rules.next_time();
  EXPECT_THAT(run.told(), ElementsAre("0: void 2", "1: void 2", "2: void 2"));
  run.ask(0, 1);
  run.ask(1, 1);
  EXPECT_THAT(run.told(), ElementsAre("0: world 3 as 0 from 0 1", "1: world 3 as 1 from 0 1"));
}

TEST(MeetingRules, TheFirstWorldDoesNotBeginWithFewerThanLive) {
  Played run(2);
  run.ask(0, 0);
  EXPECT_THAT(run.told(), IsEmpty());
  run.now = *run.rules.next_time();
  EXPECT_THAT(run.told(), ElementsAre(HasSubstr("missing rank 1")));
}

// A network may be so slow that nobody has arrived at the end of the limit. Then it is not known
// who hangs, and nobody begins without the others.
TEST(MeetingRules, IfNobodyArrivesAllAreWaitedForAgain) {
  Played run(3);
  run.meet({0, 1, 2}, 0, 1);
  for (const int64_t number : {0, 1, 2}) run.ask(number, 1);
  EXPECT_THAT(run.told(), SizeIs(3));
  for (int64_t generation = 2; generation < 4; ++generation) {
    run.now = *run.rules.next_time();
    EXPECT_THAT(run.told(), SizeIs(3));  // void
    run.ask(0, 1);
    EXPECT_THAT(run.told(), IsEmpty());
    run.ask(2, 1);
    EXPECT_THAT(run.told(), IsEmpty());
    run.ask(1, 1);
    EXPECT_THAT(run.told(), SizeIs(3));
  }
  // After the third time the first that asks goes on.
  run.now = *run.rules.next_time();
  EXPECT_THAT(run.told(), ElementsAre("0: void 4", "1: void 4", "2: void 4"));
  run.ask(0, 1);
  EXPECT_THAT(run.told(), ElementsAre("0: world 5 as 0 from 0"));
}

TEST(MeetingRules, TheFirstWorldIsForAllHoweverLongTheyConnect) {
  Played run(2);
  for (const int64_t number : {0, 1}) run.ask(number, 0);
  EXPECT_THAT(run.told(), SizeIs(2));
  // rendezvous_limit counts, and not silence_limit.
  EXPECT_GE(*run.rules.next_time() - run.now, milliseconds(10'000));
  run.rules.arrived(0, 1);
  run.now = *run.rules.next_time();
  EXPECT_THAT(run.told(), ElementsAre("0: void 1", "1: void 1"));
  run.ask(0, 0);
  EXPECT_THAT(run.told(), IsEmpty());
  run.ask(1, 0);
  EXPECT_THAT(run.told(), SizeIs(2));
}

TEST(MeetingRules, IfAllOfAWorldHaveDiedNewcomersMeetAlone) {
  Played run(2);
  run.meet({0, 1}, 0, 1);
  for (const int64_t number : {0, 1}) {
    run.rules.ended(number);
    run.rules.started(number);
  }
  run.ask(1, 0);
  run.ask(0, 0);
  EXPECT_THAT(run.told(), ElementsAre("0: world 2 as 0 from -1 -1", "1: world 2 as 1 from -1 -1"));
}

// Processes ask, arrive, die and are started again at random moments. Worlds that come to exist
// rise, and each process that has not been left out is in the last one when all is quiet.
TEST(MeetingRules, RandomDeathsEndInOneWorld) {
  std::mt19937_64 random = gpipe::testing::test_random();
  for (int trial = 0; trial < 2000; ++trial) {
    const auto draw = [&](int64_t below) {
      return static_cast<int64_t>(random() % static_cast<uint64_t>(below));
    };
    const int64_t size = 1 + draw(5);
    Played run(size);
    struct Process {
      bool lives = true;
      int64_t former = 0;   // the world that it was in
      int64_t planned = 0;  // the world that it connects to
      bool asks = false;
    };
    std::vector<Process> all(static_cast<std::size_t>(size));
    const auto take_answers = [&] {
      for (const MeetingRules::Answer& answer : run.rules.answers(run.now)) {
        Process& process = all[static_cast<std::size_t>(answer.number)];
        if (!process.lives) continue;
        if (answer.message == kWorld) {
          ASSERT_TRUE(process.asks);
          process.planned = answer.generation;
        } else if (answer.message == kVoid && answer.generation == process.planned) {
          process = {true, process.former, 0, false};
        } else if (answer.message == kGo) {
          ASSERT_EQ(answer.generation, process.planned);
          ASSERT_GT(answer.generation, process.former);
          process = {true, answer.generation, 0, false};
        } else if (answer.message == kRefused || answer.message == kOver) {
          FAIL() << answer.text;
        }
      }
    };
    for (int event = 0; event < 60; ++event) {
      const int64_t number = draw(size);
      Process& process = all[static_cast<std::size_t>(number)];
      if (!process.lives) {
        process = {};
        run.rules.started(number);
      } else if (draw(6) == 0) {
        process.lives = false;
        run.rules.ended(number);
      } else if (process.planned != 0 && draw(2) == 0) {
        run.rules.arrived(number, process.planned);
      } else if (!process.asks) {
        process.asks = true;
        run.ask(number, process.former);
      }
      take_answers();
      if (HasFatalFailure()) return;
    }
    // From here on no process dies, and all must meet once more in one world.
    for (int round = 0; round < 20; ++round) {
      for (int64_t number = 0; number < size; ++number) {
        Process& process = all[static_cast<std::size_t>(number)];
        if (!process.lives) {
          process = {};
          run.rules.started(number);
        }
        if (process.planned != 0) {
          run.rules.arrived(number, process.planned);
        } else if (!process.asks && (round < 3 || process.former != run.rules.generation())) {
          process.asks = true;
          run.ask(number, process.former);
        }
      }
      take_answers();
      if (HasFatalFailure()) return;
    }
    for (const Process& process : all) EXPECT_EQ(process.former, run.rules.generation()) << trial;
  }
}

}  // namespace
}  // namespace gpipe::distributed
