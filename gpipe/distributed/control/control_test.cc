// Tests of Control with real processes that fail in all ways: what the other processes throw, and
// how soon.
#include "gpipe/distributed/control/control.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <functional>
#include <iostream>
#include <memory>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/distributed/control/control_messages.h"
#include "gpipe/distributed/control/mesh.h"
#include "gpipe/testing/processes/rank_processes.h"
#include "gpipe/testing/seed.h"

namespace gpipe::distributed {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;
using Milliseconds = std::chrono::milliseconds;
using Say = RankProcesses::Say;

constexpr int64_t kSecond = 1'000'000;  // in microseconds
const char* const kGone =
    ": its connections closed: it ended, was killed, or its machine went down";

void sleep(int milliseconds) { std::this_thread::sleep_for(Milliseconds(milliseconds)); }

// Listeners for all ranks. They are made before the ranks are forked, because these tests have no
// store that tells a rank where another one listens.
class Meeting {
 public:
  explicit Meeting(int64_t size, Milliseconds silence = std::chrono::seconds(30),
                   Milliseconds call = std::chrono::seconds(20))
      : silence_(silence), call_(call), endpoints_(static_cast<size_t>(size)) {
    for (Endpoint& endpoint : endpoints_) {
      endpoint.address = "127.0.0.1";
      listeners_.push_back(listen_on(endpoint.address, &endpoint.port));
    }
  }

  int64_t size() const { return static_cast<int64_t>(endpoints_.size()); }
  const Endpoint& endpoint(int64_t rank) const { return endpoints_[static_cast<size_t>(rank)]; }

  // This rank's Control, which begins to connect.
  std::unique_ptr<Control> begin(int64_t rank) {
    ControlOptions options;
    options.rank = rank;
    options.size = size();
    options.host = "host" + std::to_string(rank);
    options.token = "a token";
    options.listener = std::move(listeners_[static_cast<size_t>(rank)]);
    // The listeners of the other ranks are closed here, because a rank's listener must not stay
    // open in another process when the rank ends.
    listeners_.clear();
    options.silence_limit = silence_;
    options.call_limit = call_;
    auto control = std::make_unique<Control>(std::move(options));
    for (int64_t peer = 0; peer < rank; ++peer) control->add_peer(peer, endpoint(peer));
    return control;
  }
  std::unique_ptr<Control> connect(int64_t rank) {
    auto control = begin(rank);
    control->wait_until_connected(std::chrono::steady_clock::now() + std::chrono::seconds(20));
    return control;
  }

 private:
  Milliseconds silence_;
  Milliseconds call_;
  std::vector<Endpoint> endpoints_;
  std::vector<Socket> listeners_;
};

// Waits like a worker for a message that never comes. Says "TIME MESSAGE".
void wait_for_failure(Control& control, const Say& say) {
  while (!control.failed()) sleep(1);
  try {
    control.check();
    say("0 check() did not throw");
  } catch (const DistributedFailure& failure) {
    say(std::to_string(microseconds_now()) + " " + failure.what());
  }
}

struct Heard {
  int64_t time = 0;
  std::string text;
};
Heard hear(RankProcesses& ranks, int64_t rank) {
  const std::string line = ranks.next(rank);
  const size_t space = line.find(' ');
  if (space == std::string::npos || line.find_first_not_of("0123456789") != space) return {0, line};
  return {std::stoll(line.substr(0, space)), line.substr(space + 1)};
}

void expect_all(RankProcesses& ranks, int64_t size, const std::string& line) {
  for (int64_t rank = 0; rank < size; ++rank) EXPECT_EQ(ranks.next(rank), line) << "rank " << rank;
}

// Expects that all ranks except `victims` throw the same text within a second after `since` plus
// `limit`, and not before. Returns that text.
std::string expect_one_failure(RankProcesses& ranks, int64_t size, const std::set<int64_t>& victims,
                               int64_t since, int64_t limit = 0) {
  std::set<std::string> texts;
  for (int64_t rank = 0; rank < size; ++rank) {
    if (victims.count(rank) != 0) continue;
    const Heard heard = hear(ranks, rank);
    texts.insert(heard.text);
    EXPECT_LT(heard.time - since, limit + kSecond) << "rank " << rank << ": " << heard.text;
    EXPECT_GE(heard.time - since, limit) << "rank " << rank << ": " << heard.text;
  }
  EXPECT_THAT(texts, SizeIs(1));
  return texts.empty() ? "" : *texts.begin();
}

TEST(Control, ComparesWhatAllRanksSay) {
  Meeting meeting(4);
  RankProcesses ranks(4, [&](int64_t rank, const Say& say) {
    auto control = meeting.connect(rank);
    const auto agree = [&](const std::string& name, const std::string& value) {
      try {
        control->agree(name, value);
        say("agreed");
      } catch (const Disagreement& error) {
        say(error.what());
      }
    };
    agree("balance", "3,3,2");
    agree("chunks", rank == 2 ? "4" : "8");
    agree(rank == 1 ? "save" : "step", "");
    agree("chunks", "8");
    agree("long", std::string(900000, 'x') + (rank == 3 ? "y" : "z") + std::string(9000, 'x'));
  });
  expect_all(ranks, 4, "agreed");
  // Which two ranks the text names depends on which are compared first. All ranks throw the same.
  std::set<std::string> texts;
  for (int64_t rank = 0; rank < 4; ++rank) texts.insert(ranks.next(rank));
  EXPECT_THAT(texts, SizeIs(1));
  EXPECT_THAT(*texts.begin(), AllOf(StartsWith("chunks must be the same on all ranks: rank "),
                                    HasSubstr("rank 2 has '4'"), HasSubstr(" has '8'")));
  texts.clear();
  for (int64_t rank = 0; rank < 4; ++rank) texts.insert(ranks.next(rank));
  EXPECT_THAT(texts, SizeIs(1));
  EXPECT_THAT(*texts.begin(), AllOf(HasSubstr("rank 1 is at 'save'"), HasSubstr(" is at 'step'")));
  expect_all(ranks, 4, "agreed");
  texts.clear();
  for (int64_t rank = 0; rank < 4; ++rank) texts.insert(ranks.next(rank));
  EXPECT_THAT(texts, SizeIs(1));
  EXPECT_THAT(*texts.begin(), AllOf(HasSubstr("xy"), HasSubstr("xz"), HasSubstr("909001 bytes")));
  for (int64_t rank = 0; rank < 4; ++rank) EXPECT_TRUE(ranks.ends(rank));
}

// The text of the exception that `call` throws; "well" if it throws nothing.
std::string thrown_by(const std::function<void()>& call) {
  try {
    call();
  } catch (const Disagreement& error) {
    return std::string("Disagreement: ") + error.what();
  } catch (const DistributedFailure& failure) {
    return std::string("DistributedFailure: ") + failure.what();
  }
  return "well";
}

// A value of random bytes, also of bytes that no text has. Its size, which may be 0, differs from
// rank to rank and from call to call.
std::string drawn_value(int64_t rank, int call) {
  std::mt19937 random(static_cast<unsigned>(1000 * rank + call));
  std::string value(random() % 40 * (random() % 4), '\0');
  for (char& byte : value) byte = static_cast<char>(random());
  return value;
}

TEST(Control, GivesTheValuesOfAllRanksToAll) {
  Meeting meeting(4);
  RankProcesses ranks(4, [&](int64_t rank, const Say& say) {
    auto control = meeting.connect(rank);
    // The ranks come in another order than their numbers, and the early ones wait for the late
    // ones.
    sleep(static_cast<int>((rank * 3 + 2) % 4) * 50);
    const std::vector<std::string> values = {"zero", "", std::string("\0\xff\n\0", 4), "three"};
    say(control->exchange("values", values[static_cast<size_t>(rank)]) == values ? "all" : "other");
    say(control->exchange("nothing", "") == std::vector<std::string>(4) ? "all" : "other");
    control->agree("between", "two exchanges");
    // The longest value: the values of all four ranks and a name of four bytes fit into a frame.
    const std::string longest((1 << 18) - 9, static_cast<char>('a' + rank));
    const auto much = control->exchange("much", longest);
    bool all = much.size() == 4;
    for (size_t i = 0; i < much.size(); ++i) {
      all = all && much[i] == std::string((1 << 18) - 9, static_cast<char>('a' + i));
    }
    say(all ? "all" : "other");
  });
  for (int call = 0; call < 3; ++call) expect_all(ranks, 4, "all");
  for (int64_t rank = 0; rank < 4; ++rank) EXPECT_TRUE(ranks.ends(rank));
}

TEST(Control, ExchangesAThousandTimes) {
  constexpr int kCalls = 1000;
  Meeting meeting(4);
  RankProcesses ranks(4, [&](int64_t rank, const Say& say) {
    auto control = meeting.connect(rank);
    control->agree("begin", "");
    const int64_t begin = microseconds_now();
    int right = 0;
    for (int call = 0; call < kCalls; ++call) {
      std::vector<std::string> expected;
      for (int64_t peer = 0; peer < 4; ++peer) expected.push_back(drawn_value(peer, call));
      if (control->exchange("call", drawn_value(rank, call)) == expected) ++right;
    }
    const int64_t each = (microseconds_now() - begin) / kCalls;
    say(std::to_string(right));
    say(std::to_string(each));
  });
  expect_all(ranks, 4, std::to_string(kCalls));
  std::cout << "an exchange of 4 processes takes " << ranks.next(0) << " us\n";
  for (int64_t rank = 0; rank < 4; ++rank) EXPECT_TRUE(ranks.ends(rank));
}

TEST(Control, AllMustMakeTheSameExchange) {
  Meeting meeting(3);
  RankProcesses ranks(3, [&](int64_t rank, const Say& say) {
    auto control = meeting.connect(rank);
    say(thrown_by([&] {
      if (rank == 1) return control->agree("times", "7");
      control->exchange("times", "7");
    }));
    say(thrown_by([&] { control->exchange(rank == 2 ? "sizes" : "times", "7"); }));
    // After the Disagreement the ranks go on together: the next exchange succeeds.
    say(control->exchange("end", std::to_string(rank)) == std::vector<std::string>{"0", "1", "2"}
            ? "well"
            : "other");
  });
  for (const auto& [first, second] : {std::pair("rank 1 compares", " exchanges"),
                                      std::pair("rank 2 is at 'sizes'", " is at 'times'")}) {
    std::set<std::string> texts;
    for (int64_t rank = 0; rank < 3; ++rank) texts.insert(ranks.next(rank));
    EXPECT_THAT(texts, SizeIs(1));
    EXPECT_THAT(*texts.begin(),
                AllOf(StartsWith("Disagreement: rank "), HasSubstr(first), HasSubstr(second),
                      HasSubstr(": all ranks must make the same calls in the same order")));
  }
  expect_all(ranks, 3, "well");
}

TEST(Control, NamesWhoDoesNotComeToAnExchange) {
  for (const int64_t late : {0, 1}) {  // rank 0 collects the values
    Meeting meeting(3, std::chrono::seconds(30), Milliseconds(500));
    RankProcesses ranks(3, [&](int64_t rank, const Say& say) {
      auto control = meeting.connect(rank);
      if (rank == late) sleep(1500);
      say(thrown_by([&] { control->exchange("times", "7"); }));
    });
    expect_all(ranks, 3,
               "Disagreement: rank " + std::to_string(late) +
                   " did not come to 'times' within 0.5 s, where ranks " +
                   (late == 0 ? "1, 2" : "0, 2") +
                   " wait: all ranks must make the same calls in the same order");
    for (int64_t rank = 0; rank < 3; ++rank) EXPECT_TRUE(ranks.ends(rank));
  }
}

// If a rank is killed, leaves or throws, the ranks that wait for the values of all ranks learn that
// it does not come.
TEST(Control, AnExchangeEndsWhenARankFails) {
  for (const int64_t victim : {0, 2}) {
    const std::string name = "rank " + std::to_string(victim) + " (host" + std::to_string(victim);
    for (const std::string way : {"killed", "leaves", "throws"}) {
      Meeting meeting(3);
      RankProcesses ranks(3, [&](int64_t rank, const Say& say) {
        auto control = meeting.connect(rank);
        control->exchange("begin", "");
        if (rank == victim) {
          sleep(200);  // the others wait
          say(std::to_string(microseconds_now()) + " fails");
          if (way == "killed") raise(SIGKILL);
          if (way == "leaves") return;
          Fault fault;
          fault.text = "boom";
          control->report(fault);
          sleep(1000);
          return;
        }
        const std::string text = thrown_by([&] { control->exchange("times", "7"); });
        say(std::to_string(microseconds_now()) + " " + text);
      });
      const Heard fails = hear(ranks, victim);
      EXPECT_EQ(fails.text, "fails");
      EXPECT_EQ(expect_one_failure(ranks, 3, {victim}, fails.time),
                "DistributedFailure: " + name +
                    (way == "killed"   ? std::string(") is gone") + kGone
                     : way == "leaves" ? ") left: it ended after 0 calls, but is needed for "
                                         "exchanging 'times'"
                                       : ") threw: boom"));
    }
  }
}

// If rank 0 comes last, it decides and returns at once. The others must get the values even if rank
// 0 is killed right then.
TEST(Control, WhatRankZeroHasReturnedTheOthersGet) {
  Meeting meeting(3);
  RankProcesses ranks(3, [&](int64_t rank, const Say& say) {
    auto control = meeting.connect(rank);
    if (rank == 0) sleep(200);
    const auto values = control->exchange("values", std::to_string(rank));
    if (rank == 0) raise(SIGKILL);
    say(values == std::vector<std::string>{"0", "1", "2"} ? "all" : "other");
  });
  for (const int64_t rank : {1, 2}) EXPECT_EQ(ranks.next(rank), "all");
}

// A rank goes on as soon as it knows that all ranks are ready. Its values may reach ranks that do
// not know that yet. There they must count in the new epoch, and values of the failed epoch must be
// forgotten.
TEST(Control, ExchangesBelongToAnEpoch) {
  constexpr int kEpochs = 30;
  Meeting meeting(4);
  RankProcesses ranks(4, [&](int64_t rank, const Say& say) {
    auto control = meeting.connect(rank);
    const auto value = [](int64_t peer, int epoch) {
      return std::to_string(peer) + " in " + std::to_string(epoch);
    };
    int right = 0;
    for (int epoch = 0; epoch < kEpochs; ++epoch) {
      std::vector<std::string> expected;
      for (int64_t peer = 0; peer < 4; ++peer) expected.push_back(value(peer, epoch));
      if (control->exchange("first", value(rank, epoch)) == expected) ++right;
      if (rank == epoch % 4) {
        Fault fault;
        fault.text = "boom";
        control->report(fault);
        while (!control->failed()) sleep(1);
      } else {
        const std::string text =
            thrown_by([&] { control->exchange("second", value(rank, -epoch)); });
        if (text.find("threw: boom") == std::string::npos) say(text);
      }
      control->next_epoch();
    }
    say(std::to_string(right));
  });
  expect_all(ranks, 4, std::to_string(kEpochs));
  for (int64_t rank = 0; rank < 4; ++rank) EXPECT_TRUE(ranks.ends(rank));
}

// Two ranks that differ suffice for a verdict. So a verdict of the new epoch may reach ranks that
// do not know yet that this epoch has begun. They must throw it, too.
TEST(Control, ADisagreementMayBeTheFirstOfAnEpoch) {
  constexpr int kEpochs = 30;
  Meeting meeting(6);
  RankProcesses ranks(6, [&](int64_t rank, const Say& say) {
    auto control = meeting.connect(rank);
    int right = 0;
    for (int epoch = 0; epoch < kEpochs; ++epoch) {
      const std::string text = thrown_by([&] { control->exchange(rank == 0 ? "a" : "b", ""); });
      if (text.find("Disagreement: rank 0 is at 'a'") == 0) ++right;
      if (control->exchange("all", "") == std::vector<std::string>(6)) ++right;
      Fault fault;
      fault.text = "boom";
      if (rank == 1) control->report(fault);
      while (!control->failed()) sleep(1);
      control->next_epoch();
    }
    say(std::to_string(right));
  });
  expect_all(ranks, 6, std::to_string(2 * kEpochs));
}

TEST(Control, RefusesTooLongAValue) {
  Meeting meeting(2);
  RankProcesses ranks(2, [&](int64_t rank, const Say& say) {
    auto control = meeting.connect(rank);
    // The longest value: 8 bytes of its half of a megabyte are for its size, and 5 bytes of both
    // halves together for the name.
    const std::string longest((1 << 19) - 11, 'x');
    try {
      control->exchange("times", longest + "x");
      say("not refused");
    } catch (const Disagreement& error) {
      say(error.what());
    } catch (const std::invalid_argument& error) {
      say(error.what());
    }
    // The refused exchange does not count as a call.
    say(control->exchange("times", longest) == std::vector<std::string>{longest, longest}
            ? "well"
            : "other");
  });
  expect_all(ranks, 2,
             "exchange('times'): 524278 bytes are too many; each of 2 ranks may give 524277");
  expect_all(ranks, 2, "well");
}

TEST(Control, OneRankExchangesWithItself) {
  Meeting meeting(1);
  auto control = meeting.connect(0);
  EXPECT_THAT(control->exchange("times", "7"), ElementsAre("7"));
  control->agree("between", "");
  EXPECT_THAT(control->exchange("times", ""), ElementsAre(""));
  EXPECT_THROW(control->exchange("times", std::string(1 << 20, 'x')), std::invalid_argument);
}

TEST(Control, NamesWhoDoesNotComeToACall) {
  Meeting meeting(3, std::chrono::seconds(30), Milliseconds(2000));
  RankProcesses ranks(3, [&](int64_t rank, const Say& say) {
    auto control = meeting.connect(rank);
    if (rank == 1) sleep(3000);
    try {
      control->agree("save", "");
      say("agreed");
    } catch (const Disagreement& error) {
      say(error.what());
    }
    control->agree("after it", "");
  });
  expect_all(ranks, 3,
             "rank 1 did not come to 'save' within 2 s, where ranks 0, 2 wait: all ranks must "
             "make the same calls in the same order");
  for (int64_t rank = 0; rank < 3; ++rank) EXPECT_TRUE(ranks.ends(rank));
}

// If a rank does not come to the next epoch, its call is given up on all ranks. Each later call
// succeeds on all ranks, or fails on all.
TEST(Control, ARankThatDoesNotComeToTheNextEpochNoLongerMakesTheCallThatWasGivenUp) {
  Meeting meeting(3, std::chrono::seconds(30), Milliseconds(500));
  RankProcesses ranks(3, [&](int64_t rank, const Say& say) {
    auto control = meeting.connect(rank);
    control->agree("connected", "");
    Fault fault;
    fault.text = "boom";
    if (rank == 0) control->report(fault);
    while (!control->failed()) sleep(1);
    if (rank == 1) sleep(1200);
    for (int call = 1; call <= 4; ++call) {
      control->count_call();
      say(thrown_by([&] {
        control->check_not_given_up();
        if (control->failed()) control->next_epoch();
        control->agree("call", std::to_string(call));
      }));
    }
  });
  for (int call = 1; call <= 4; ++call) {
    std::vector<std::string> lines;
    for (int64_t rank = 0; rank < 3; ++rank) lines.push_back(ranks.next(rank));
    if (call == 1) {
      EXPECT_THAT(lines, ::testing::Each(HasSubstr("rank 1 did not come within 0.5 s")));
    }
    // When rank 1 comes, the other ranks may have given up one call or two. So each later call may
    // end in a Disagreement, but then it does so on all ranks.
    const auto are_well = [](const std::string& line) {
      return line.find("Disagreement") == std::string::npos;
    };
    EXPECT_EQ(are_well(lines[1]), are_well(lines[0])) << lines[0] << "\n" << lines[1];
    EXPECT_EQ(are_well(lines[2]), are_well(lines[0])) << lines[0] << "\n" << lines[2];
    if (call == 4) {
      EXPECT_TRUE(are_well(lines[0])) << lines[0];
    }
  }
  for (int64_t rank = 0; rank < 3; ++rank) EXPECT_TRUE(ranks.ends(rank));
}

TEST(Control, ARankInAnotherCallIsNamedAndThenAllGoOn) {
  Meeting meeting(3);
  RankProcesses ranks(3, [&](int64_t rank, const Say& say) {
    auto control = meeting.connect(rank);
    control->count_call();
    if (rank != 1) control->count_call();
    say(thrown_by([&] { control->exchange("step", ""); }));
    for (int call = rank == 1 ? 2 : 3; call <= 4; ++call) {
      control->count_call();
      say(thrown_by([&] {
        control->check_not_given_up();
        control->agree("step", std::to_string(call));
      }));
    }
  });
  for (int64_t rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(ranks.next(rank),
                AllOf(StartsWith("Disagreement: rank 1 is 1 call behind rank "),
                      HasSubstr("has not begun call 3 throws this, and all go on together")));
  }
  EXPECT_THAT(ranks.next(1), AllOf(StartsWith("Disagreement: call 2 of rank 1 is not made"),
                                   HasSubstr("rank 1 is 1 call behind rank ")));
  for (int call = 3; call <= 4; ++call) expect_all(ranks, 3, "well");
  for (int64_t rank = 0; rank < 3; ++rank) EXPECT_TRUE(ranks.ends(rank));
}

TEST(Control, RefusesToCompareTooMuch) {
  Meeting meeting(1);
  auto control = meeting.connect(0);
  EXPECT_THROW(control->agree("schedule", std::string((1 << 20) + 1, 'x')), std::invalid_argument);
  control->agree("schedule", "small");
  EXPECT_THROW(control->next_epoch(), std::logic_error);
  EXPECT_THROW(control->add_peer(0, {"127.0.0.1", 1}), std::invalid_argument);
}

TEST(Control, TellsAnExceptionToAllAndGoesOn) {
  Meeting meeting(4);
  RankProcesses ranks(4, [&](int64_t rank, const Say& say) {
    auto control = meeting.connect(rank);
    for (int epoch = 0; epoch < 3; ++epoch) {
      control->agree("begin", std::to_string(epoch));
      std::atomic<int> cancelled{0};
      {
        const Control::Watch watch(*control, [&] { ++cancelled; });
        if (cancelled != 0) say("canceled before anything failed");
        control->agree("watched", "");
        if (rank == 2) {
          Fault fault;
          fault.stage = 2;
          fault.micro_batch = 3;
          fault.layer = "layer 5 ('relu')";
          fault.text = "boom " + std::to_string(epoch);
          const int64_t now = microseconds_now();
          control->report(fault);
          say(std::to_string(now) + " reported");
        }
        wait_for_failure(*control, say);
        // When a caller is told of a failure, nothing in this process waits for other ranks any
        // more.
        say("canceled " + std::to_string(cancelled));
        const Control::Watch late(*control, [&] { ++cancelled; });
        say("canceled " + std::to_string(cancelled));
      }
      control->next_epoch();
      say("epoch " + std::to_string(control->epoch()) + (control->failed() ? " failed" : ""));
    }
  });
  for (int epoch = 0; epoch < 3; ++epoch) {
    const Heard reported = hear(ranks, 2);
    EXPECT_EQ(reported.text, "reported");
    EXPECT_EQ(expect_one_failure(ranks, 4, {}, reported.time),
              "rank 2 (host2) threw in stage 2, micro-batch 3, layer 5 ('relu'): boom " +
                  std::to_string(epoch));
    expect_all(ranks, 4, "canceled 1");
    expect_all(ranks, 4, "canceled 2");
    expect_all(ranks, 4, "epoch " + std::to_string(epoch + 1));
  }
  for (int64_t rank = 0; rank < 4; ++rank) EXPECT_TRUE(ranks.ends(rank));
}

// A symptom that is reported late, for an earlier epoch, is thrown to its caller. It is not a
// failure of the present epoch.
TEST(Control, ASymptomOfAnEarlierEpochComesTooLate) {
  Meeting meeting(2);
  RankProcesses ranks(2, [&](int64_t rank, const Say& say) {
    auto control = meeting.connect(rank);
    const int64_t earlier = control->epoch();
    control->agree("begin", "");
    Fault fault;
    fault.text = "boom";
    if (rank == 1) control->report(fault);
    say(thrown_by([&] { control->throw_failure("a symptom", earlier); }));
    control->next_epoch();
    if (rank == 0) {
      try {
        control->throw_failure("a late symptom", earlier);
      } catch (const DistributedFailure& failure) {
        say(failure.what());
      } catch (const std::runtime_error& error) {
        say(error.what());
      }
    }
    control->agree("end", "");
    say(control->failed() ? "failed" : "well");
  });
  for (int64_t rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(ranks.next(rank), ::testing::HasSubstr("rank 1 (host1) threw: boom"));
  }
  EXPECT_EQ(ranks.next(0), "a late symptom");
  expect_all(ranks, 2, "well");
}

// A rank may go on, and leave, before other ranks have noticed that all are ready. They must not
// take it for lost.
TEST(Control, ANextEpochMayBeShort) {
  for (int round = 0; round < 20; ++round) {
    Meeting meeting(4);
    RankProcesses ranks(4, [&](int64_t rank, const Say& say) {
      auto control = meeting.connect(rank);
      control->agree("begin", "");
      Fault fault;
      fault.text = "boom";
      if (rank == 3) control->report(fault);
      wait_for_failure(*control, say);
      control->next_epoch();
      control->check();
      control.reset();
      say("0 left");
    });
    for (int64_t rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(hear(ranks, rank).text, "rank 3 (host3) threw: boom");
      EXPECT_EQ(hear(ranks, rank).text, "left");
    }
  }
}

// If a rank has left, before the failure or because of it, no rank waits for it to begin the next
// epoch.
TEST(Control, ANextEpochIsNotAwaitedFromARankThatHasLeft) {
  for (const bool before : {true, false}) {
    Meeting meeting(3, std::chrono::seconds(30), std::chrono::seconds(60));
    RankProcesses ranks(3, [&](int64_t rank, const Say& say) {
      auto control = meeting.connect(rank);
      control->agree("begin", "");
      Fault fault;
      fault.text = "boom";
      if (rank == 2) {
        if (!before) control->report(fault);
        control.reset();
        return;
      }
      if (before) sleep(200);
      if (before && rank == 1) control->report(fault);
      wait_for_failure(*control, say);
      const int64_t since = microseconds_now();
      try {
        control->next_epoch();
        say("0 the next epoch began");
      } catch (const DistributedFailure& failure) {
        say(std::to_string(microseconds_now() - since) + " " + failure.what());
      }
    });
    for (const int64_t rank : {0, 1}) {
      EXPECT_THAT(hear(ranks, rank).text, HasSubstr("threw: boom"));
      const Heard heard = hear(ranks, rank);
      EXPECT_THAT(heard.text, AllOf(StartsWith("rank 2 ("), HasSubstr("the next epoch"))) << before;
      EXPECT_LT(heard.time, 30 * kSecond);
    }
  }
}

TEST(Control, TellsTheDeathOfAnyRank) {
  for (int64_t victim = 0; victim < 4; ++victim) {
    Meeting meeting(4);
    RankProcesses ranks(4, [&](int64_t rank, const Say& say) {
      auto control = meeting.connect(rank);
      control->agree("begin", "");
      say("ready");
      wait_for_failure(*control, say);
      try {
        control->next_epoch();
      } catch (const DistributedFailure& failure) {
        say(failure.what());
      }
    });
    expect_all(ranks, 4, "ready");
    const int64_t now = microseconds_now();
    ranks.send(victim, SIGKILL);
    const std::string name = "rank " + std::to_string(victim) + " (host" + std::to_string(victim);
    const std::string text = expect_one_failure(ranks, 4, {victim}, now);
    EXPECT_EQ(text, name + ") is gone" + kGone);
    // Without the victim no next epoch begins: next_epoch() throws the same failure again.
    for (int64_t rank = 0; rank < 4; ++rank) {
      if (rank == victim) continue;
      EXPECT_EQ(ranks.next(rank), text);
    }
  }
}

TEST(Control, TellsWhoEndsInsteadOfGoingOn) {
  Meeting meeting(4);
  RankProcesses ranks(4, [&](int64_t rank, const Say& say) {
    auto control = meeting.connect(rank);
    control->agree("begin", "");
    Fault fault;
    fault.text = "boom";
    if (rank == 0) control->report(fault);
    wait_for_failure(*control, say);
    if (rank == 2) {
      sleep(100);
      raise(SIGKILL);
    }
    try {
      control->next_epoch();
    } catch (const DistributedFailure& failure) {
      say(failure.what());
    }
  });
  for (int64_t rank = 0; rank < 4; ++rank)
    EXPECT_EQ(hear(ranks, rank).text, "rank 0 (host0) threw: boom");
  for (int64_t rank : {0, 1, 3}) {
    EXPECT_EQ(ranks.next(rank), std::string("rank 2 (host2) is gone") + kGone);
  }
}

// After a record ranks 2 and 3 die, one after the other. The other ranks call next_epoch() before,
// between and after these losses. All must throw the same loss.
TEST(Control, LossesBehindARecordAreAgreedOn) {
  const auto come_on = [](int signal) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signal);
    int got = 0;
    sigwait(&set, &got);
  };
  sigset_t set;
  sigset_t before;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &set, &before);
  Meeting meeting(5);
  RankProcesses ranks(5, [&](int64_t rank, const Say& say) {
    auto control = meeting.connect(rank);
    control->agree("begin", "");
    Fault fault;
    fault.text = "boom";
    if (rank == 4) control->report(fault);
    wait_for_failure(*control, say);
    if (rank != 0) come_on(SIGUSR1);  // ranks 2 and 3 never get the signal
    try {
      control->next_epoch();
      say("the next epoch began");
    } catch (const DistributedFailure& failure) {
      say(failure.what());
    }
    come_on(SIGUSR1);
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  for (int64_t rank = 0; rank < 5; ++rank) {
    EXPECT_EQ(hear(ranks, rank).text, "rank 4 (host4) threw: boom");
  }
  const std::string text = std::string("rank 2 (host2) is gone") + kGone;
  ranks.send(1, SIGUSR1);
  ranks.send(2, SIGKILL);
  EXPECT_EQ(ranks.next(0), text);
  EXPECT_EQ(ranks.next(1), text);
  ranks.send(3, SIGKILL);
  sleep(200);  // long enough for rank 4 to notice
  ranks.send(4, SIGUSR1);
  EXPECT_EQ(ranks.next(4), text);
  for (const int64_t rank : {0, 1, 4}) ranks.send(rank, SIGUSR1);
}

// A thread that waits for the record may wake when another thread has begun the next epoch. It
// throws the record of the epoch in which it began to wait.
TEST(Control, ARankThatWaitsForARecordGetsThatOfItsEpoch) {
  constexpr int kThreads = 6;
  Meeting meeting(1);
  auto control = meeting.connect(0);
  for (int round = 0; round < 30; ++round) {
    const int64_t epoch = control->epoch();
    std::vector<std::string> texts(kThreads);
    std::vector<std::thread> threads;
    std::atomic<int> waiting{0};
    for (std::string& text : texts) {
      threads.emplace_back([&] {
        ++waiting;
        try {
          control->throw_failure("a symptom");
        } catch (const DistributedFailure& failure) {
          text = failure.what();
        }
      });
    }
    while (waiting < kThreads) std::this_thread::yield();
    Fault fault;
    fault.text = "boom";
    control->report(fault);
    control->next_epoch();
    EXPECT_EQ(control->epoch(), epoch + 1);
    for (std::thread& thread : threads) thread.join();
    for (const std::string& text : texts) {
      // A thread that began to wait in the next epoch must get a fault of that epoch.
      EXPECT_THAT(
          text, ::testing::AnyOf("rank 0 (host0) threw: boom", "rank 0 (host0) threw: a symptom"));
    }
    if (control->failed()) control->next_epoch();
  }
}

// A worker's exception of an epoch that is over is reported, and changes nothing in this epoch.
TEST(Control, AReportThatComesLateChangesNothing) {
  Meeting meeting(1);
  auto control = meeting.connect(0);
  Fault fault;
  fault.text = "boom";
  control->report(fault, 0);
  control->next_epoch();
  EXPECT_EQ(control->epoch(), 1);
  std::atomic<int> cancelled{0};
  const Control::Watch watch(*control, [&] { ++cancelled; });
  control->report(fault, 0);
  EXPECT_FALSE(control->failed());
  EXPECT_EQ(cancelled, 0);
  control->agree("goes on", "");
  control->report(fault, 1);
  EXPECT_TRUE(control->failed());
  EXPECT_EQ(cancelled, 1);
  EXPECT_THROW(control->check(), DistributedFailure);
}

// While another thread begins the next epoch, check() throws the failure of the last epoch or
// nothing.
TEST(Control, ARankThatChecksGetsAFailureOrNone) {
  Meeting meeting(1);
  auto control = meeting.connect(0);
  for (int epoch = 0; epoch < 20; ++epoch) {
    std::atomic<bool> is_over{false};
    std::set<std::string> texts;
    std::thread checking([&] {
      while (!is_over) {
        try {
          control->check();
        } catch (const DistributedFailure& failure) {
          texts.insert(failure.what());
        }
      }
    });
    Fault fault;
    fault.text = "boom";
    control->report(fault);
    control->next_epoch();
    is_over = true;
    checking.join();
    texts.erase("rank 0 (host0) threw: boom");
    EXPECT_THAT(texts, ::testing::IsEmpty());
    ASSERT_EQ(control->epoch(), epoch + 1);
    ASSERT_FALSE(control->failed());
  }
}

// A forked child that calls no exec() has all descriptors of its parent. Nevertheless the other
// ranks must see that the parent is gone while the child lives.
TEST(Control, TheEndOfAProcessIsSeenThoughItsChildLives) {
  Meeting meeting(3);
  int children[2];  // children live as long as a process has the writing end open
  ASSERT_EQ(pipe(children), 0);
  {
    RankProcesses ranks(3, [&](int64_t rank, const Say& say) {
      auto control = meeting.connect(rank);
      control->agree("begin", "");
      if (rank == 1) {
        if (fork() == 0) {
          close(children[1]);
          char byte;
          _exit(read(children[0], &byte, 1) == 0 ? 0 : 1);
        }
        // The parent's connections still work after the fork.
        control->agree("forked", "");
        raise(SIGKILL);
      }
      control->agree("forked", "");
      wait_for_failure(*control, say);
    });
    for (const int64_t rank : {0, 2}) {
      EXPECT_EQ(hear(ranks, rank).text, std::string("rank 1 (host1) is gone") + kGone);
    }
  }
  close(children[0]);
  close(children[1]);
}

TEST(Control, AForkedChildMayDropItsCopyWhileAThreadOfItsParentWaits) {
  Meeting meeting(2);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  RankProcesses ranks(2, [&](int64_t rank, const Say& say) {
    auto control = meeting.connect(rank);
    char byte = 0;
    if (rank == 1) {
      if (read(ends[0], &byte, 1) != 1) say("nothing to read");
      control->agree("a", "b");
      return say("agreed");
    }
    std::thread waits([&] { control->agree("a", "b"); });
    sleep(200);
    const pid_t child = fork();
    if (child == 0) {
      control.reset();
      _exit(0);
    }
    pid_t ended = 0;
    for (int i = 0; i < 1000 && ended == 0; ++i) {
      ended = waitpid(child, nullptr, WNOHANG);
      sleep(10);
    }
    if (ended == 0) {
      say("the child hangs");
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
    }
    if (write(ends[1], &byte, 1) != 1) say("nothing written");
    waits.join();
    say("agreed");
  });
  expect_all(ranks, 2, "agreed");
  for (const int end : ends) close(end);
}

TEST(Control, TellsWhoIsSilentAndFencesIt) {
  for (int64_t victim : {0, 2}) {
    Meeting meeting(4, Milliseconds(500));
    RankProcesses ranks(4, [&](int64_t rank, const Say& say) {
      auto control = meeting.connect(rank);
      control->agree("begin", "");
      say("ready");
      wait_for_failure(*control, say);
      try {
        control->next_epoch();
      } catch (const DistributedFailure& failure) {
        say("no next epoch");
      }
      sleep(1000);
    });
    expect_all(ranks, 4, "ready");
    const int64_t now = microseconds_now();
    ranks.send(victim, SIGSTOP);
    // When the rank is stopped, its last beat may already be an eighth of a second old, a quarter
    // of the silence limit. So the others may find it silent that much earlier.
    const std::string text = expect_one_failure(ranks, 4, {victim}, now, kSecond / 2 - kSecond / 8);
    EXPECT_EQ(text, "rank " + std::to_string(victim) + " (host" + std::to_string(victim) +
                        ") is silent: nothing came from it for 0.5 s: it is stopped or "
                        "overloaded, or the network is cut");
    for (int64_t rank = 0; rank < 4; ++rank) {
      if (rank == victim) continue;
      EXPECT_EQ(ranks.next(rank), "no next epoch");
    }
    // The rank wakes, reports no other rank, and throws what the others have thrown.
    ranks.send(victim, SIGCONT);
    EXPECT_EQ(hear(ranks, victim).text, text);
    EXPECT_EQ(ranks.next(victim), "no next epoch");
  }
}

TEST(Control, AShortStopIsNotAFault) {
  Meeting meeting(3, Milliseconds(2000));
  RankProcesses ranks(3, [&](int64_t rank, const Say& say) {
    auto control = meeting.connect(rank);
    control->agree("begin", "");
    say("ready");
    sleep(1500);
    control->agree("end", "");
    say("well");
  });
  expect_all(ranks, 3, "ready");
  ranks.send(1, SIGSTOP);
  sleep(700);
  ranks.send(1, SIGCONT);
  expect_all(ranks, 3, "well");
}

// All ranks are stopped, as when a machine sleeps. A rank that did not listen meanwhile must not
// report the others as silent.
TEST(Control, AStopOfAllIsNobodysSilence) {
  Meeting meeting(3, Milliseconds(500));
  RankProcesses ranks(3, [&](int64_t rank, const Say& say) {
    auto control = meeting.connect(rank);
    control->agree("begin", "");
    say("ready");
    sleep(200);  // not counting the time in which it is stopped
    for (int i = 0; i < 10; ++i) {
      sleep(30);
      control->check();
    }
    control->agree("end", "");
    say("well");
  });
  expect_all(ranks, 3, "ready");
  for (int64_t rank = 0; rank < 3; ++rank) ranks.send(rank, SIGSTOP);
  sleep(1200);
  for (int64_t rank = 0; rank < 3; ++rank) ranks.send(rank, SIGCONT);
  expect_all(ranks, 3, "well");
}

TEST(Control, SomebodyElseDecidesWhereTheLowestRankIsStopped) {
  Meeting meeting(4);
  RankProcesses ranks(4, [&](int64_t rank, const Say& say) {
    auto control = meeting.connect(rank);
    control->agree("begin", "");
    say("ready");
    if (rank == 3) {
      sleep(200);  // rank 0 is stopped meanwhile
      Fault fault;
      fault.text = "boom";
      const int64_t now = microseconds_now();
      control->report(fault);
      say(std::to_string(now) + " reported");
    }
    wait_for_failure(*control, say);
    sleep(500);
  });
  expect_all(ranks, 4, "ready");
  ranks.send(0, SIGSTOP);
  const Heard reported = hear(ranks, 3);
  EXPECT_EQ(expect_one_failure(ranks, 4, {0}, reported.time), "rank 3 (host3) threw: boom");
  ranks.send(0, SIGCONT);
  EXPECT_EQ(hear(ranks, 0).text, "rank 3 (host3) threw: boom");
}

TEST(Control, TellsWhoLeavesBeforeTheOthersAreDone) {
  Meeting meeting(3);
  RankProcesses ranks(3, [&](int64_t rank, const Say& say) {
    auto control = meeting.connect(rank);
    {
      Control::Call first(*control);
      control->agree("the first call", "");
      first.done();
    }
    control->agree("begin", "");
    const int64_t now = microseconds_now();
    if (rank == 1) {
      control.reset();
      say(std::to_string(now) + " left");
      return;
    }
    try {
      Control::Call second(*control);
      wait_for_failure(*control, say);
      second.done();
    } catch (const DistributedFailure& failure) {  // the other rank had left already
      say(std::to_string(microseconds_now()) + " " + failure.what());
    }
  });
  const Heard left = hear(ranks, 1);
  EXPECT_EQ(left.text, "left");
  EXPECT_EQ(expect_one_failure(ranks, 3, {1}, left.time),
            "rank 1 (host1) left: it ended after 1 calls, but is needed for call 2");
}

TEST(Control, ARankThatHasDoneItsPartMayLeave) {
  Meeting meeting(3);
  RankProcesses ranks(3, [&](int64_t rank, const Say& say) {
    auto control = meeting.connect(rank);
    {
      Control::Call call(*control);
      control->agree("step", "");
      if (rank != 0) sleep(300);  // rank 0 has left long ago
      call.done();
    }
    control->check();
    control.reset();
    say("done");
  });
  for (int64_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(ranks.next(rank), "done");
    EXPECT_TRUE(ranks.ends(rank));
  }
}

// A rank that leaves must not decide. The others know that it leaves, and decide without it, so
// there would be two records.
TEST(Control, ARankThatLeavesDoesNotDecide) {
  Endpoint endpoint{"127.0.0.1", 0};
  ControlOptions options;
  options.size = 2;
  options.token = "a token";
  options.listener = listen_on(endpoint.address, &endpoint.port);
  auto control = std::make_unique<Control>(std::move(options));
  // A rank that is slow to answer: it has a mesh but no Control.
  MeshOptions slow;
  slow.rank = 1;
  slow.size = 2;
  slow.token = "a token";
  Mesh mesh(std::move(slow));
  std::vector<uint8_t> heard;
  const auto listen = [&] {
    for (const MeshEvent& event : mesh.read(std::chrono::steady_clock::now())) {
      if (event.kind == MeshEvent::Kind::kFrame) heard.push_back(event.frame.type);
    }
    mesh.flush();
    sleep(1);
  };
  mesh.add_peer(0, endpoint, std::chrono::steady_clock::now());
  while (!mesh.is_connected(0)) listen();
  Fault fault;
  fault.text = "boom";
  control->report(fault);
  std::thread leaves([&] { control.reset(); });
  while (mesh.is_connected(0)) listen();
  leaves.join();
  const auto count = [&](MessageType type) {
    return std::count(heard.begin(), heard.end(), static_cast<uint8_t>(type));
  };
  EXPECT_EQ(count(MessageType::kFault), 1);
  EXPECT_EQ(count(MessageType::kBye), 1);
  EXPECT_EQ(count(MessageType::kRecord), 0);
}

TEST(Control, ACallThatEndsByAnExceptionIsTold) {
  Meeting meeting(2);
  RankProcesses ranks(2, [&](int64_t rank, const Say& say) {
    auto control = meeting.connect(rank);
    control->agree("begin", "");
    try {
      Control::Call call(*control);
      if (rank == 1) throw std::runtime_error("mine");
      wait_for_failure(*control, say);
    } catch (const std::runtime_error& error) {
      say(error.what());
    }
  });
  EXPECT_EQ(ranks.next(1), "mine");
  EXPECT_EQ(hear(ranks, 0).text,
            "rank 1 (host1) threw: its part of a call that all ranks make ended with an exception");
}

TEST(Control, KeepsAllFaultsAndNamesExceptionsFirst) {
  Meeting meeting(4);
  RankProcesses ranks(4, [&](int64_t rank, const Say& say) {
    auto control = meeting.connect(rank);
    control->agree("begin", "");
    if (rank == 0) say(std::to_string(microseconds_now()) + " begins");
    const auto throw_after = [&](int milliseconds) {
      sleep(milliseconds);
      try {
        throw std::runtime_error("boom " + std::to_string(rank));
      } catch (...) {
        control->report_current_exception();
      }
    };
    if (rank == 1) raise(SIGKILL);
    if (rank == 2) throw_after(12);
    if (rank == 3) throw_after(4);
    wait_for_failure(*control, say);
  });
  const Heard begins = hear(ranks, 0);
  EXPECT_EQ(expect_one_failure(ranks, 4, {1}, begins.time),
            std::string("rank 3 (host3) threw: boom 3|also: rank 2 (host2) threw: boom 2|also: "
                        "rank 1 (host1) is gone") +
                kGone);
}

TEST(Control, ASymptomWaitsForItsCause) {
  Meeting meeting(3);
  RankProcesses ranks(3, [&](int64_t rank, const Say& say) {
    auto control = meeting.connect(rank);
    control->agree("begin", "");
    try {
      if (rank == 0) control->throw_failure("a connection closed");
      sleep(100);
      if (rank == 2) raise(SIGKILL);
      control->throw_failure("another symptom");
    } catch (const DistributedFailure& failure) {
      say(failure.what());
    }
  });
  for (int64_t rank : {0, 1}) {
    EXPECT_EQ(ranks.next(rank), std::string("rank 2 (host2) is gone") + kGone);
  }
}

TEST(Control, ASymptomWithoutACauseIsTold) {
  Meeting meeting(2);
  RankProcesses ranks(2, [&](int64_t rank, const Say& say) {
    auto control = meeting.connect(rank);
    try {
      if (rank == 0) control->throw_failure("a message is damaged");
      wait_for_failure(*control, say);
    } catch (const DistributedFailure& failure) {
      say(failure.what());
    }
  });
  EXPECT_EQ(ranks.next(0), "rank 0 (host0) threw: a message is damaged");
  EXPECT_EQ(hear(ranks, 1).text, "rank 0 (host0) threw: a message is damaged");
}

TEST(Control, RanksThatConnectLearnWhichRankEnded) {
  Meeting meeting(4);
  RankProcesses ranks(4, [&](int64_t rank, const Say& say) {
    if (rank == 3) sleep(400);  // rank 3 connects when the failure has been decided
    auto control = meeting.begin(rank);
    if (rank == 2) {
      sleep(100);
      say(std::to_string(microseconds_now()) + " dies");
      raise(SIGKILL);
    }
    try {
      control->wait_until_connected(std::chrono::steady_clock::now() + std::chrono::seconds(10));
      control->agree("begin", "");
      say("0 connected");
    } catch (const DistributedFailure& failure) {
      say(std::to_string(microseconds_now()) + " " + failure.what());
    }
    sleep(1000);
  });
  const Heard dies = hear(ranks, 2);
  EXPECT_EQ(expect_one_failure(ranks, 4, {2}, dies.time),
            std::string("rank 2 (host2) is gone") + kGone);
}

// A connection waits at the port, but the process has no file descriptor left to accept it.
// Control's thread must not try again and again, and the error must name the cause.
TEST(Control, WithoutAFileForAConnectionItsThreadRestsAndTheErrorSaysSo) {
  Meeting meeting(2);
  RankProcesses ranks(1, [&](int64_t rank, const Say& say) {
    auto control = meeting.begin(rank);
    const Socket stranger(socket(AF_INET, SOCK_STREAM, 0));
    const int next = dup(0);
    close(next);
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = static_cast<rlim_t>(next);
    setrlimit(RLIMIT_NOFILE, &limit);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(meeting.endpoint(0).port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const auto* const where = reinterpret_cast<const sockaddr*>(&address);
    say(connect(stranger.get(), where, sizeof address) == 0 ? "waits" : "cannot connect");
    const std::clock_t before = std::clock();  // processor time
    try {
      control->wait_until_connected(std::chrono::steady_clock::now() + Milliseconds(500));
    } catch (const std::runtime_error& error) {
      say(error.what());
    }
    const double used = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
    say(used < 0.1 ? "rests" : "is busy for " + std::to_string(used) + " s");
  });
  EXPECT_EQ(ranks.next(0), "waits");
  EXPECT_EQ(
      ranks.next(0),
      "rank 1 did not connect in time (WorldOptions::rendezvous_limit); this process (rank 0) "
      "cannot accept connections: Too many open files");
  EXPECT_EQ(ranks.next(0), "rests");
  EXPECT_TRUE(ranks.ends(0));
}

TEST(Control, NamesWhoDoesNotConnect) {
  Meeting meeting(3);
  auto control = meeting.begin(0);
  try {
    control->wait_until_connected(std::chrono::steady_clock::now() + Milliseconds(50));
    FAIL() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(),
                 "ranks 1, 2 did not connect in time (WorldOptions::rendezvous_limit); was each "
                 "rank started once, with the same number of processes, and the same address and "
                 "port of rank 0?");
  }
}

// A process that connects and is not a rank is dropped, whatever it sends, and the ranks go on.
TEST(Control, StrangersChangeNothing) {
  Meeting meeting(3);
  std::vector<Endpoint> endpoints = {meeting.endpoint(0), meeting.endpoint(1), meeting.endpoint(2)};
  auto random = testing::test_random();
  int all_have_spoken[2];
  ASSERT_EQ(pipe(all_have_spoken), 0);
  RankProcesses ranks(3, [&](int64_t rank, const Say& say) {
    if (rank == 2) {  // so that the others go on listening
      char byte = 0;
      if (read(all_have_spoken[0], &byte, 1) != 1) say("nobody has spoken");
    }
    auto control = meeting.connect(rank);
    control->agree("end", "");
    say("well");
  });
  std::vector<Socket> silent;
  int dropped = 0;
  for (int i = 0; i < 10'000; ++i) {
    // The text is random bytes, mostly as the body of a frame of a hello's type; sometimes only the
    // beginning of that.
    std::string nonsense;
    for (uint64_t size = random() % 200; size > 0; --size) nonsense += static_cast<char>(random());
    std::string text = "GPC1" + std::string("\1\0\0\0\0\0\0\0", 8);
    text += static_cast<char>(nonsense.size());
    text += std::string(3, '\0') + nonsense;
    if (random() % 4 == 0) text = nonsense;
    if (random() % 4 == 0) text.resize(random() % (text.size() + 1));
    Socket socket = begin_connect(endpoints[static_cast<size_t>(random() % 2)]);
    sleep(0);
    (void)send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL);
    if (random() % 8 == 0) silent.push_back(std::move(socket));
    if (silent.size() > 100) {
      silent.clear();
      ++dropped;
    }
  }
  EXPECT_GT(dropped, 0);
  ASSERT_EQ(write(all_have_spoken[1], "x", 1), 1);
  for (const int end : all_have_spoken) close(end);
  for (int64_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(ranks.next(rank), "well");
    EXPECT_TRUE(ranks.ends(rank));
  }
}

// Strangers connect all the time that a rank needs to connect, and there are more of them than a
// rank listens to at once. No rank takes another one for dead.
TEST(Control, AFloodOfStrangersMakesNobodyLookDead) {
  Meeting meeting(3);
  std::vector<Endpoint> endpoints = {meeting.endpoint(0), meeting.endpoint(1)};
  RankProcesses ranks(3, [&](int64_t rank, const Say& say) {
    if (rank == 2) sleep(300);  // the flood has begun
    auto control = meeting.connect(rank);
    control->agree("end", "");
    say("well");
  });
  std::atomic<int64_t> strangers{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, end = microseconds_now() + kSecond] {
      std::vector<Socket> silent(200);
      for (size_t i = 0; microseconds_now() < end; ++i) {
        try {
          silent[i % silent.size()] = begin_connect(endpoints[i % 2]);
          ++strangers;
        } catch (const std::runtime_error&) {  // all have connected: no rank listens any more
          return;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(strangers, 64);
  for (int64_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(ranks.next(rank), "well");
    EXPECT_TRUE(ranks.ends(rank));
  }
}

// Some ranks fail, each in a random way at a random time. The others must throw the same text.
TEST(Control, RandomFaults) {
  auto random = testing::test_random();
  const auto draw = [&](uint64_t count) { return static_cast<int>(random() % count); };
  for (int round = 0; round < 50; ++round) {
    const int64_t size = 3 + draw(2);
    enum Way { kNothing, kThrow, kKill, kLeave };
    std::vector<Way> ways(static_cast<size_t>(size), kNothing);
    std::vector<int> delays(static_cast<size_t>(size));
    const int faults = 1 + draw(2);
    for (int i = 0; i < faults; ++i) {
      const auto victim = static_cast<size_t>(draw(static_cast<uint64_t>(size)));
      ways[victim] = static_cast<Way>(kThrow + draw(3));
      delays[victim] = draw(20);
    }
    Meeting meeting(size);
    RankProcesses ranks(size, [&](int64_t rank, const Say& say) {
      auto control = meeting.connect(rank);
      control->agree("begin", "");
      try {
        Control::Call call(*control);
        sleep(delays[static_cast<size_t>(rank)]);
        switch (ways[static_cast<size_t>(rank)]) {
          case kThrow: {
            Fault fault;
            fault.text = "boom";
            control->report(fault);
            break;
          }
          case kKill:
            raise(SIGKILL);
            break;
          case kLeave:
            call.done();
            break;
          case kNothing:
            break;
        }
        if (ways[static_cast<size_t>(rank)] != kLeave) {
          wait_for_failure(*control, say);
          return;
        }
      } catch (const DistributedFailure& failure) {
        say(std::to_string(microseconds_now()) + " " + failure.what());
        return;
      }
      // Rank 0 leaves, because it has done its part: no other rank makes the next call.
      control.reset();
      say("0 left");
    });
    std::set<std::string> texts;
    bool all_leave_or_wait = true;
    for (const Way way : ways)
      all_leave_or_wait = all_leave_or_wait && (way == kNothing || way == kLeave);
    if (all_leave_or_wait)
      continue;  // a rank that nothing will wake waits forever: the destructor ends it
    for (int64_t rank = 0; rank < size; ++rank) {
      const Way way = ways[static_cast<size_t>(rank)];
      if (way == kKill) continue;
      const Heard heard = hear(ranks, rank);
      if (heard.text == "left") continue;
      EXPECT_GT(heard.time, 0) << heard.text;
      EXPECT_THAT(heard.text, StartsWith("rank ")) << "round " << round;
      texts.insert(heard.text);
    }
    EXPECT_THAT(texts, SizeIs(1)) << "round " << round;
  }
}

}  // namespace
}  // namespace gpipe::distributed
