#include "gpipe/distributed/launcher/meeting_place.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "gpipe/distributed/meet/meeting_client.h"
#include "gpipe/distributed/sockets/sockets.h"

namespace gpipe::distributed {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr milliseconds kLimit{10'000};

// A meeting place with `size` living processes, served by a thread. with() calls other functions of
// the meeting place between two rounds of that thread.
class Served {
 public:
  explicit Served(int64_t size) : place_("127.0.0.1", size), variable_(place_.variable()) {
    for (int64_t number = 0; number < size; ++number) place_.started(number);
    thread_ = std::thread([this] {
      while (!ends_) {
        {
          const std::lock_guard<std::mutex> lock(mutex_);
          std::vector<pollfd> waits;
          place_.add_waits(waits);
          place_.serve();
        }
        std::this_thread::sleep_for(milliseconds(1));
      }
    });
  }
  ~Served() {
    ends_ = true;
    thread_.join();
  }
  template <typename Call>
  auto with(Call call) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return call(place_);
  }
  const std::string& variable() const { return variable_; }

 private:
  std::mutex mutex_;
  MeetingPlace place_;
  const std::string variable_;
  std::atomic<bool> ends_{false};
  std::thread thread_;
};

Question question(int64_t number, milliseconds limit = milliseconds(60'000)) {
  Question result;
  result.number = number;
  result.first_limit = milliseconds(60'000);
  result.limit = limit;
  return result;
}

std::future<MeetingClient::World> ask(MeetingClient& client, int64_t number, int64_t former) {
  return std::async(std::launch::async,
                    [&, number, former] { return client.ask(question(number), former); });
}

TEST(MeetingPlace, GivesAllTheSameWorldAndEachItsRank) {
  Served place(2);
  EXPECT_FALSE(place.with([](MeetingPlace& it) { return it.was_asked(); }));
  EXPECT_FALSE(place.with([](MeetingPlace& it) { return it.is_outside(0); }));
  MeetingClient first(place.variable(), kLimit);
  MeetingClient second(place.variable(), kLimit);
  auto of_second = ask(second, 1, 0);
  auto of_first = ask(first, 0, 0);
  const MeetingClient::World a = of_first.get();
  const MeetingClient::World b = of_second.get();
  EXPECT_EQ(a.generation, 1);
  EXPECT_EQ(b.generation, 1);
  EXPECT_EQ(a.plan.rank, 0);
  EXPECT_EQ(b.plan.rank, 1);
  EXPECT_EQ(a.plan.size, 2);
  EXPECT_GT(a.plan.port, 0);
  EXPECT_EQ(a.plan.port, b.plan.port);
  EXPECT_THAT(b.plan.came_from, ElementsAre(-1, -1));
  auto arrives = std::async(std::launch::async, [&] { first.arrive(); });
  second.arrive();
  arrives.get();
  EXPECT_TRUE(place.with([](MeetingPlace& it) { return it.was_asked() && it.is_member(1); }));
}

// A world of two processes, which have not connected yet.
struct TwoThatMet {
  TwoThatMet() {
    auto of_first = ask(first, 0, 0);
    ask(*second, 1, 0).get();
    of_first.get();
  }
  void end_second() {
    second.reset();
    place.with([](MeetingPlace& it) { return it.ended(1), true; });
  }
  Served place{2};
  MeetingClient first{place.variable(), kLimit};
  std::unique_ptr<MeetingClient> second = std::make_unique<MeetingClient>(place.variable(), kLimit);
};

TEST(MeetingPlace, TellsThoseWhoConnectThatOneOfThemDied) {
  TwoThatMet met;
  met.first.check();
  met.end_second();
  EXPECT_THROW(met.first.arrive(), MeetingIsVoid);
  const MeetingClient::World alone = met.first.ask(question(0), 0);
  EXPECT_EQ(alone.generation, 2);
  EXPECT_EQ(alone.plan.size, 1);
  met.first.arrive();
}

TEST(MeetingPlace, TellsThoseWhoWaitForItThatOneOfThemDied) {
  TwoThatMet met;
  met.first.wait_for_void(milliseconds(1));
  met.end_second();
  EXPECT_THROW(met.first.wait_for_void(kLimit), MeetingIsVoid);
  EXPECT_THROW(met.first.check(), MeetingIsVoid) << "it is told each time until the next question";
  EXPECT_EQ(met.first.ask(question(0), 0).plan.size, 1);
  met.first.check();
  met.first.arrive();
}

TEST(MeetingPlace, TellsALateProcessThatItsWorldIsOver) {
  Served place(2);
  {
    MeetingClient first(place.variable(), kLimit);
    MeetingClient second(place.variable(), kLimit);
    auto of_first = ask(first, 0, 0);
    ask(second, 1, 0).get();
    of_first.get();
    auto arrives = std::async(std::launch::async, [&] { first.arrive(); });
    second.arrive();
    arrives.get();
  }
  MeetingClient first(place.variable(), kLimit);
  EXPECT_EQ(first.ask(question(0, milliseconds(100)), 1).plan.size, 1);
  first.arrive();
  MeetingClient second(place.variable(), kLimit);
  try {
    second.ask(question(1), 1);
    FAIL() << "the late process was let in";
  } catch (const MeetingIsOver& over) {
    EXPECT_THAT(over.what(), HasSubstr("generation 2 exists"));
  }
  EXPECT_TRUE(place.with([](MeetingPlace& it) { return it.was_left_out(1); }));
  EXPECT_TRUE(place.with([](MeetingPlace& it) { return it.is_outside(1) && !it.is_outside(0); }));
}

TEST(MeetingPlace, ARunThatEndsIsToldToAllThatWait) {
  Served place(2);
  MeetingClient first(place.variable(), kLimit);
  auto waits = ask(first, 0, 0);
  while (!place.with([](MeetingPlace& it) { return it.has_asked(0); })) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  place.with([](MeetingPlace& it) { return it.end("rank 1 ended with exit code 3"), true; });
  EXPECT_THROW(waits.get(), MeetingIsOver);
  MeetingClient late(place.variable(), kLimit);
  EXPECT_THROW(late.ask(question(0), 0), std::runtime_error);
}

TEST(MeetingPlace, HearsNobodyWithoutTheSecret) {
  Served place(1);
  std::string wrong = place.variable();
  wrong.back() = wrong.back() == '0' ? '1' : '0';
  MeetingClient stranger(wrong, kLimit);
  EXPECT_THROW(stranger.ask(question(0), 0), std::runtime_error);
  EXPECT_FALSE(place.with([](MeetingPlace& it) { return it.was_asked(); }));
}

// What a program of another build reads when it asks.
std::string refusal_of(const std::string& protocol) {
  Served place(1);
  MeetingClient client(place.variable(), kLimit);
  Question of_another_build = question(0);
  of_another_build.protocol = protocol;
  try {
    client.ask(of_another_build, 0);
  } catch (const std::runtime_error& error) {
    EXPECT_FALSE(place.with([](MeetingPlace& it) { return it.was_asked(); }));
    return error.what();
  }
  return "was let in";
}

TEST(MeetingPlace, RefusesAProgramWhoseMessagesHaveAnotherForm) {
  EXPECT_EQ(refusal_of(kMeetingProtocol), "was let in");
  EXPECT_EQ(refusal_of("gpipe meeting 3"),
            "the launcher's messages have the form 'gpipe meeting 2', and this program's the form "
            "'gpipe meeting 3': build //gpipe/distributed:launch and the program from the same "
            "sources");
  // Where newer forms have their name, the oldest one has the number of the rank, of eight bytes.
  for (const std::string& older : {std::string(), std::string(1, '`'), std::string(15, '\0')}) {
    EXPECT_THAT(refusal_of(older), HasSubstr("and this program's an older one, without a number"));
  }
  // That number may also be more than the bytes that follow: here the secret is empty, and eight
  // bytes have a size.
  EXPECT_EQ(to_question(to_bytes(question(0)).substr(0, 21)).protocol, "");
}

TEST(MeetingPlace, RefusesASecondProcessOfARank) {
  Served place(2);
  MeetingClient first(place.variable(), kLimit);
  auto waits = ask(first, 0, 0);
  while (!place.with([](MeetingPlace& it) { return it.has_asked(0); })) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  MeetingClient second(place.variable(), kLimit);
  try {
    second.ask(question(0), 0);
    FAIL() << "two processes of a rank";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("another process of rank 0"));
  }
  place.with([](MeetingPlace& it) { return it.end("the test ends"), true; });
  EXPECT_THROW(waits.get(), MeetingIsOver);
}

// The process has lost its connection, and the place has not noticed that yet.
TEST(MeetingPlace, AProcessMayAskAgainOverAnotherConnection) {
  Served place(2);
  Question asked = question(0);
  asked.process = "this one";
  MeetingClient first(place.variable(), kLimit);
  auto is_told = std::async(std::launch::async, [&] { return first.ask(asked, 0); });
  while (!place.with([](MeetingPlace& it) { return it.has_asked(0); })) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  MeetingClient again(place.variable(), kLimit);
  auto of_again = std::async(std::launch::async, [&] { return again.ask(asked, 0); });
  EXPECT_EQ(is_told.wait_for(std::chrono::seconds(30)), std::future_status::ready);
  if (HasFailure()) place.with([](MeetingPlace& it) { return it.end("the test ends"), true; });
  EXPECT_THROW(is_told.get(), std::runtime_error);
  if (HasFailure()) return;
  MeetingClient other(place.variable(), kLimit);
  EXPECT_EQ(ask(other, 1, 0).get().plan.rank, 1);
  EXPECT_EQ(of_again.get().plan.size, 2);
}

// Runs `body` in a thread with a network of its own, which has nothing but a loopback. `set_up(is)`
// sets whether the loopback carries packets. Returns whether there can be such a network here.
bool in_own_network(const std::function<void(const std::function<void(bool is)>& set_up)>& body) {
  bool can = false;
  std::thread([&] {
    can = unshare(CLONE_NEWNET) == 0;
    if (!can) return;
    const Socket socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    const auto set_up = [&](bool is) {
      ifreq request{};
      std::strcpy(request.ifr_name, "lo");
      request.ifr_flags = is ? IFF_UP : 0;
      ASSERT_EQ(ioctl(socket.get(), SIOCSIFFLAGS, &request), 0) << std::strerror(errno);
    };
    set_up(true);
    body(set_up);
  }).join();
  return can;
}

TEST(MeetingPlace, BothEndsNoticeThatTheLineIsCut) {
  const bool can = in_own_network([](const std::function<void(bool)>& set_up) {
    Served place(2);
    MeetingClient first(place.variable(), kLimit);
    auto waits = std::async(std::launch::async,
                            [&] { return first.ask(question(0, milliseconds(1000)), 0); });
    while (!place.with([](MeetingPlace& it) { return it.waits(); })) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    set_up(false);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (place.with([](MeetingPlace& it) { return it.waits(); }) &&
           std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    EXPECT_FALSE(place.with([](MeetingPlace& it) { return it.waits(); }));
    EXPECT_EQ(waits.wait_until(end), std::future_status::ready);
    set_up(true);
    // Ends the wait of a client that has not noticed anything.
    place.with([](MeetingPlace& it) { return it.ended(0), true; });
    try {
      waits.get();
      FAIL() << "there is a world of one process";
    } catch (const MeetingIsUnreachable& cut) {
      EXPECT_THAT(cut.what(), HasSubstr("was cut while this process waited for its answer"));
    } catch (const std::exception& error) {
      FAIL() << error.what();
    }
    place.with([](MeetingPlace& it) { return it.started(0), true; });
    MeetingClient again(place.variable(), kLimit);
    MeetingClient second(place.variable(), kLimit);
    auto of_again = ask(again, 0, 0);
    EXPECT_EQ(ask(second, 1, 0).get().plan.rank, 1);
    EXPECT_EQ(of_again.get().plan.rank, 0);
  });
  if (!can) GTEST_SKIP() << "a network of its own needs root";
}

TEST(MeetingClient, GivesUpAPlaceThatNobodyCanReach) {
  const auto begin = std::chrono::steady_clock::now();
  try {
    MeetingClient("127.0.0.1:1/secret", milliseconds(1200));
    FAIL() << "somebody listens";
  } catch (const MeetingIsOver& over) {
    EXPECT_THAT(over.what(), HasSubstr("127.0.0.1:1 could not be reached for 1 s ("));
    EXPECT_THAT(over.what(), HasSubstr("Connection refused): the launcher has ended, or this"));
  }
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(1000));
}

TEST(MeetingClient, ReachesAPlaceOnceItListens) {
  int port = 0;
  listen_on("127.0.0.1", &port).close();
  auto connects = std::async(std::launch::async, [&] {
    MeetingClient("127.0.0.1:" + std::to_string(port) + "/secret", kLimit);
  });
  EXPECT_EQ(connects.wait_for(milliseconds(300)), std::future_status::timeout);
  const Socket listener = listen_on("127.0.0.1", &port);
  EXPECT_NO_THROW(connects.get());
}

TEST(MeetingClient, SaysWhatIsWrongWithTheVariable) {
  EXPECT_THROW(MeetingClient("somewhere", kLimit), std::invalid_argument);
}

}  // namespace
}  // namespace gpipe::distributed
