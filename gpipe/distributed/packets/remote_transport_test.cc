// Tests of the workers of one run in several processes. Every schedule runs over messages in
// memory, and real processes, with their failures, over Gloo.
#include "gpipe/distributed/packets/remote_transport.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "gpipe/distributed/meet/session.h"
#include "gpipe/distributed/sockets/master_port.h"
#include "gpipe/runtime/executor.h"
#include "gpipe/runtime/mailboxes.h"
#include "gpipe/runtime/worker_pool.h"
#include "gpipe/schedule/named_schedule.h"
#include "gpipe/schedule/random_schedule.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/testing/processes/memory_group.h"
#include "gpipe/testing/processes/rank_processes.h"
#include "gpipe/testing/seed.h"
#include "gpipe/testing/watchdog.h"

namespace gpipe::distributed {
namespace {

using internal::Handler;
using internal::Item;
using internal::Packet;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;
using Say = RankProcesses::Say;

// The result of each action: a number that depends on all that it has received, in order.
class Results {
 public:
  void add(const Action& action, double value) {
    std::lock_guard<std::mutex> lock(mutex_);
    EXPECT_TRUE(values_.emplace(action.to_text(), value).second) << action;
  }
  void add_all(const Results& other) { values_.insert(other.values_.begin(), other.values_.end()); }
  const std::map<std::string, double>& values() const { return values_; }
  std::string text() const {
    std::string text;
    for (const auto& [action, value] : values_) text += action + "=" + std::to_string(value) + " ";
    return text;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, double> values_;
};

// How many elements an action sends. The numbers differ so that a packet fits into the first
// message, needs a second message in the first run or in each run, or has tensors that are messages
// of their own.
int64_t elements(const Action& action, int run) {
  switch (action.micro_batch % 4) {
    case 0:
      return 5;
    case 1:
      return 3000;
    case 2:
      return run == 1 ? 300000 : 10;
    default:
      return 600 + 300 * run;
  }
}

void compute(const Action& action, int run, std::vector<Packet>& received,
             std::vector<Packet>& sent, Results& results) {
  double value = action.stage + 10 * action.micro_batch + 1000 * run;
  double factor = 1;
  for (const Packet& packet : received) {
    ASSERT_EQ(packet.items.size(), 2);
    const at::Tensor& tensor = packet.items[0].tensor;
    ASSERT_TRUE(tensor.defined());
    ASSERT_EQ(tensor.numel(), elements(action, run));
    EXPECT_FALSE(packet.items[1].tensor.defined());
    EXPECT_EQ(tensor[0].item<double>(), tensor[-1].item<double>());
    value += (factor += 0.25) * tensor[-1].item<double>();
  }
  results.add(action, value);
  for (size_t k = 0; k < sent.size(); ++k) {
    Item item;
    item.tensor =
        at::full({elements(action, run)}, value + static_cast<double>(k) / 8, at::kDouble);
    sent[k].items.push_back(item);
    sent[k].items.push_back({});
  }
}

// The results of a run in one process.
std::map<std::string, double> expected_results(const Program& program, int run) {
  Results results;
  internal::WorkerPool pool(static_cast<int64_t>(program.workers.size()));
  internal::Mailboxes<Packet> mailboxes(program.slots);
  const Handler<Packet> handler = [&](const Action& action, auto& received, auto& sent) {
    compute(action, run, received, sent, results);
  };
  EXPECT_FALSE(internal::execute<Packet>(pool, program, mailboxes, handler));
  return results.values();
}

std::vector<int32_t> workers_of(const std::vector<int64_t>& rank_of_worker, int64_t rank) {
  std::vector<int32_t> workers;
  for (size_t worker = 0; worker < rank_of_worker.size(); ++worker) {
    if (rank_of_worker[worker] == rank) workers.push_back(static_cast<int32_t>(worker));
  }
  return workers;
}

// Runs this rank's part of some runs, and keeps the results.
void run_part(const Program& program, const std::vector<int64_t>& rank_of_worker, int64_t rank,
              Group& group, int64_t window, std::vector<Results>& results) {
  MessagePlan plan(program, rank_of_worker);
  internal::ExecuteOptions options;
  options.placement = workers_of(rank_of_worker, rank);
  internal::WorkerPool pool(static_cast<int64_t>(options.placement.size()));
  for (int run = 0; run < static_cast<int>(results.size()); ++run) {
    RemoteTransportOptions transport_options;
    transport_options.window = window;
    transport_options.unreceived = 1 << 20;  // only some runs start the thread that releases
    RemoteTransport transport(program, plan, group, rank, nullptr, transport_options);
    const Handler<Packet> handler = [&](const Action& action, auto& received, auto& sent) {
      compute(action, run, received, sent, results[static_cast<size_t>(run)]);
    };
    EXPECT_FALSE(internal::execute<Packet>(pool, program, transport, handler, options));
    transport.finish();
  }
}

void expect_runs_over_memory(const Schedule& schedule, const Routes& routes,
                             const std::vector<int64_t>& rank_of_worker, int64_t window) {
  constexpr int kRuns = 3;
  const Program program = compile(schedule, routes);
  const int64_t ranks = 1 + *std::max_element(rank_of_worker.begin(), rank_of_worker.end());
  MemoryNetwork network;
  std::vector<std::vector<Results>> results;
  for (int64_t rank = 0; rank < ranks; ++rank) results.emplace_back(kRuns);
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto group = network.group(rank);
      run_part(program, rank_of_worker, rank, *group, window, results[static_cast<size_t>(rank)]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int run = 0; run < kRuns; ++run) {
    Results all;
    for (const auto& of_rank : results) all.add_all(of_rank[static_cast<size_t>(run)]);
    EXPECT_EQ(all.values(), expected_results(program, run)) << schedule.to_text();
  }
}

std::vector<int64_t> one_each(int64_t workers) {
  std::vector<int64_t> ranks;
  for (int64_t worker = 0; worker < workers; ++worker) ranks.push_back(worker);
  return ranks;
}

TEST(RemoteTransport, RunsEverySchedule) {
  for (const NamedSchedule& named : named_schedules()) {
    SCOPED_TRACE(named.name);
    const testing::Watchdog watchdog(std::chrono::seconds(120), named.name);
    const Schedule schedule = schedule_by_name(named.name, 8, 8);
    const Routes routes = Routes::create(8, {{0, 7, "far"}, {2, 5, "skip"}, {3, 5, "other"}});
    const int64_t workers = schedule.workers();
    expect_runs_over_memory(schedule, routes, one_each(workers), 4);
    expect_runs_over_memory(schedule, routes, one_each(workers), 1);
    // Also with two neighboring workers in each process, and with all workers in one process.
    std::vector<int64_t> pairs;
    for (int64_t worker = 0; worker < workers; ++worker) pairs.push_back(worker / 2);
    expect_runs_over_memory(schedule, routes, pairs, 2);
    expect_runs_over_memory(schedule, routes, std::vector<int64_t>(pairs.size(), 0), 2);
  }
}

TEST(RemoteTransport, RunsRandomSchedules) {
  auto random = testing::test_random();
  for (int round = 0; round < 30; ++round) {
    const auto stages = static_cast<int64_t>(2 + random() % 5);
    const Schedule schedule = testing::random_schedule(
        stages, static_cast<int64_t>(1 + random() % 6), testing::MicroBatchOrder::kAny, random);
    const testing::Watchdog watchdog(std::chrono::seconds(60), schedule.to_text());
    std::vector<int64_t> ranks;
    for (int64_t worker = 0; worker < schedule.workers(); ++worker) {
      ranks.push_back(static_cast<int64_t>(random() % 3));
    }
    // The ranks are numbered anew, so that each rank has a worker.
    std::map<int64_t, int64_t> numbers;
    for (int64_t& rank : ranks) rank = numbers.emplace(rank, numbers.size()).first->second;
    std::vector<Route> skips;
    if (stages > 2) skips.push_back({0, static_cast<int32_t>(stages - 1), "skip"});
    expect_runs_over_memory(schedule, Routes::create(stages, skips), ranks,
                            static_cast<int64_t>(1 + random() % 4));
  }
}

TEST(RemoteTransport, SendsNeverBlockAndMoveWhenTheyAreAskedFor) {
  // Stage 0 sends the packets of all forwards before stage 1 begins. No send blocks, and no packet
  // moves until its receive is posted.
  const Program program = compile(Schedule::gpipe(2, 8), Routes::create(2));
  MemoryNetwork network;
  const auto sender = network.group(0);
  MessagePlan plan(program, {0, 1});
  RemoteTransport transport(program, plan, *sender, 0, nullptr);
  for (const Step& step : program.workers[0]) {
    if (step.action.kind != ActionKind::kForward) continue;
    std::vector<Packet> packets(1);
    packets[0].items.push_back({});
    transport.send(step.sends, packets);
  }
  EXPECT_EQ(network.most_waiting(), 8);
  EXPECT_EQ(network.moved(), 0);
  const auto receiver = network.group(1);
  MessagePlan other_plan(program, {0, 1});
  RemoteTransportOptions options;
  options.window = 3;
  RemoteTransport other(program, other_plan, *receiver, 1, nullptr, options);
  EXPECT_EQ(network.moved(), 3);
  std::vector<Packet> received(1);
  EXPECT_TRUE(other.receive(1, program.workers[1][0].receives, received));
  EXPECT_EQ(network.moved(), 3);
  EXPECT_TRUE(other.receive(1, program.workers[1][1].receives, received));
  EXPECT_EQ(network.moved(), 4);
}

TEST(RemoteTransport, CancelEndsReceives) {
  const Program program = compile(Schedule::gpipe(2, 1), Routes::create(2));
  MemoryNetwork network;
  const auto group = network.group(1);
  MessagePlan plan(program, {0, 1});
  RemoteTransport transport(program, plan, *group, 1, nullptr);
  std::thread thread([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    transport.cancel();
  });
  std::vector<Packet> received(1);
  EXPECT_FALSE(transport.receive(1, program.workers[1][0].receives, received));
  thread.join();
  EXPECT_FALSE(transport.receive(1, program.workers[1][0].receives, received));
  EXPECT_THROW(transport.finish(), std::runtime_error);
}

// The second transport may have the address of the first one, in which this thread has worked. The
// exception of the second run must not be reported with the stage and the micro-batch of the first.
TEST(RemoteTransport, AnExceptionHasNoPlaceOfAnEarlierRun) {
  const Program program = compile(Schedule::one_f_one_b(1, 4), Routes::create(1));
  MemoryNetwork network;
  const auto group = network.group(0);
  MessagePlan plan(program, {0});
  Control control(ControlOptions{});
  for (int run = 0; run < 10; ++run) {
    {
      RemoteTransport earlier(program, plan, *group, 0, &control);
      std::vector<Packet> packets;
      EXPECT_TRUE(earlier.receive(0, {}, packets));
    }
    RemoteTransport transport(program, plan, *group, 0, &control);
    try {
      throw std::runtime_error("boom");
    } catch (const std::runtime_error&) {
      transport.cancel();
    }
    try {
      control.check();
      FAIL() << "nothing was thrown";
    } catch (const DistributedFailure& failure) {
      EXPECT_STREQ(failure.what(), "rank 0 threw: boom");
    }
    control.next_epoch();
  }
}

// A transport of an earlier epoch is canceled late. That must not fail the epoch that has begun
// since.
TEST(RemoteTransport, ACancelThatComesLateIsNotTold) {
  const Program program = compile(Schedule::one_f_one_b(1, 4), Routes::create(1));
  MemoryNetwork network;
  const auto group = network.group(0);
  MessagePlan plan(program, {0});
  Control control(ControlOptions{});
  RemoteTransport transport(program, plan, *group, 0, &control);
  control.report(Fault());
  control.next_epoch();
  transport.cancel();
  EXPECT_FALSE(control.failed());
}

TEST(RemoteTransport, DamagedMessagesAreRefused) {
  const Program program = compile(Schedule::gpipe(2, 1), Routes::create(2));
  MemoryNetwork network;
  const auto group = network.group(1);
  MessagePlan plan(program, {0, 1});
  RemoteTransport transport(program, plan, *group, 1, nullptr);
  const auto sent = network.group(0)->send(at::zeros({100}, at::kByte), 1, plan.message(1, 0).tag);
  std::vector<Packet> received(1);
  try {
    transport.receive(1, program.workers[1][0].receives, received);
    FAIL() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), StartsWith("receiving from rank 0 failed: a packet of tensors is "
                                         "damaged"));
  }
}

TEST(RemoteTransport, AChangeInPlaceWhileItIsSentIsAnError) {
  const Program program = compile(Schedule::gpipe(2, 1), Routes::create(2));
  MemoryNetwork network;
  const auto group = network.group(0);
  MessagePlan plan(program, {0, 1});
  RemoteTransport transport(program, plan, *group, 0, nullptr);
  const at::Tensor large = at::zeros({1 << 20});
  std::vector<Packet> packets(1);
  Item item;
  item.tensor = large;
  packets[0].items.push_back(item);
  transport.send(program.workers[0][0].sends, packets);
  large.add_(1);
  const auto receiver = network.group(1);
  MessagePlan other_plan(program, {0, 1});
  RemoteTransport other(program, other_plan, *receiver, 1, nullptr);
  std::vector<Packet> received(1);
  EXPECT_TRUE(other.receive(1, program.workers[1][0].receives, received));
  try {
    transport.finish();
    FAIL() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("changed in place while it was being sent to rank 1"));
  }
}

// --- Tests over Gloo.

std::map<std::string, std::string> variables(int64_t rank, int64_t size, int port) {
  return {{"RANK", std::to_string(rank)},       {"WORLD_SIZE", std::to_string(size)},
          {"LOCAL_RANK", std::to_string(rank)}, {"LOCAL_WORLD_SIZE", std::to_string(size)},
          {"MASTER_ADDR", "127.0.0.1"},         {"MASTER_PORT", std::to_string(port)}};
}

std::unique_ptr<Session> connect(int64_t rank, int64_t size, int port) {
  SessionOptions options;
  options.rendezvous_limit = std::chrono::seconds(30);
  options.announce = false;
  return Session::connect(read_environment(variables(rank, size, port)), options);
}

std::string text_of(const std::map<std::string, double>& values, const Program& program,
                    const std::vector<int64_t>& rank_of_worker, int64_t rank) {
  Results mine;
  for (const int32_t worker : workers_of(rank_of_worker, rank)) {
    for (const Step& step : program.workers[static_cast<size_t>(worker)]) {
      mine.add(step.action, values.at(step.action.to_text()));
    }
  }
  return mine.text();
}

TEST(RemoteTransportOverGloo, ComputesWhatOneProcessDoes) {
  const Program program =
      compile(schedule_by_name("1f1b", 4, 6), Routes::create(4, {{0, 3, "far"}, {1, 3, "skip"}}));
  for (const std::vector<int64_t>& rank_of_worker :
       std::vector<std::vector<int64_t>>{{0, 0, 1, 1}, {0, 1, 2, 3}, {1, 0, 1, 0}}) {
    const int64_t size = 1 + *std::max_element(rank_of_worker.begin(), rank_of_worker.end());
    const MasterPort port;
    RankProcesses ranks(size, [&](int64_t rank, const Say& say) {
      auto session = connect(rank, size, port.number());
      auto group = session->connect_group("tensors");
      std::vector<Results> results(3);
      run_part(program, rank_of_worker, rank, *group, 4, results);
      for (const Results& of_run : results) say(of_run.text());
      session->control().agree("end", "");
    });
    for (int run = 0; run < 3; ++run) {
      const auto values = expected_results(program, run);
      for (int64_t rank = 0; rank < size; ++rank) {
        EXPECT_EQ(ranks.next(rank), text_of(values, program, rank_of_worker, rank));
      }
    }
    for (int64_t rank = 0; rank < size; ++rank) EXPECT_TRUE(ranks.ends(rank));
  }
}

// One run in which `act` is called at each action. Tells the parent the outcome.
void run_once(const Program& program, Session& session, Group& group, const Say& say,
              const std::function<void(const Action&)>& act) {
  const std::vector<int64_t> rank_of_worker = one_each(session.size());
  MessagePlan plan(program, rank_of_worker);
  internal::ExecuteOptions options;
  options.placement = workers_of(rank_of_worker, session.rank());
  internal::WorkerPool pool(1);
  RemoteTransport transport(program, plan, group, session.rank(), &session.control());
  Results results;
  const Handler<Packet> handler = [&](const Action& action, auto& received, auto& sent) {
    act(action);
    compute(action, 1, received, sent, results);
  };
  try {
    Control::Call call(session.control());
    const auto failure = internal::execute<Packet>(pool, program, transport, handler, options);
    if (failure) std::rethrow_exception(failure->error);
    transport.finish();
    // All ranks agree, as they do at the end of a step, where all get the loss. So a rank that is
    // done waits for the others.
    session.control().agree("end of the run", "");
    call.done();
    say("0 well");
  } catch (const std::exception& error) {
    say(std::to_string(microseconds_now()) + " " + error.what());
  }
}

// The text of a line "TIME TEXT"; *time becomes the time.
std::string text_behind(const std::string& line, int64_t* time = nullptr) {
  const size_t space = line.find(' ');
  if (time != nullptr) *time = std::atoll(line.c_str());
  return space == std::string::npos ? line : line.substr(space + 1);
}

TEST(RemoteTransportOverGloo, AnExceptionEndsTheRunEverywhereAndTheNextOneIsWell) {
  const Program program = compile(Schedule::one_f_one_b(3, 6), Routes::create(3, {{0, 2, "skip"}}));
  const MasterPort port;
  RankProcesses ranks(3, [&](int64_t rank, const Say& say) {
    auto session = connect(rank, 3, port.number());
    for (const char* where : {"F1.2", "B1.3", "none"}) {
      auto group = session->connect_group("tensors");
      run_once(program, *session, *group, say, [&](const Action& action) {
        if (action.to_text() != where) return;
        say(std::to_string(microseconds_now()) + " now");
        throw std::runtime_error("boom");
      });
      if (session->control().failed()) session->control().next_epoch();
    }
    session->control().agree("end", "");
  });
  for (const std::string place : {"stage 1, micro-batch 2", "stage 1, micro-batch 3"}) {
    int64_t thrown = 0;
    EXPECT_EQ(text_behind(ranks.next(1), &thrown), "now");
    EXPECT_EQ(text_behind(ranks.next(1)), "boom");
    for (const int64_t rank : {0, 2}) {
      int64_t time = 0;
      EXPECT_THAT(text_behind(ranks.next(rank), &time),
                  AllOf(StartsWith("rank 1 ("), HasSubstr(") threw in " + place + ": boom")));
      EXPECT_LT(time - thrown, 1000000);
    }
  }
  for (int64_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(ranks.next(rank), "0 well");
    EXPECT_TRUE(ranks.ends(rank));
  }
}

TEST(RemoteTransportOverGloo, TheDeathOfARankEndsTheRunEverywhere) {
  const Program program = compile(Schedule::one_f_one_b(4, 6), Routes::create(4));
  for (const int64_t victim : {0, 1, 3}) {
    const MasterPort port;
    RankProcesses ranks(4, [&](int64_t rank, const Say& say) {
      auto session = connect(rank, 4, port.number());
      auto group = session->connect_group("tensors");
      run_once(program, *session, *group, say, [&](const Action& action) {
        if (rank != victim || action.kind != ActionKind::kBackward || action.micro_batch != 2)
          return;
        say(std::to_string(microseconds_now()) + " now");
        raise(SIGKILL);
      });
      // The survivors live on for a moment, so that no rank learns of the failure from the end of
      // another survivor.
      std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    });
    int64_t killed = 0;
    EXPECT_EQ(text_behind(ranks.next(victim), &killed), "now");
    std::set<std::string> texts;
    for (int64_t rank = 0; rank < 4; ++rank) {
      if (rank == victim) continue;
      int64_t time = 0;
      texts.insert(text_behind(ranks.next(rank), &time));
      EXPECT_LT(time - killed, 1000000);
    }
    ASSERT_THAT(texts, SizeIs(1));
    EXPECT_THAT(*texts.begin(), AllOf(StartsWith("rank " + std::to_string(victim) + " ("),
                                      HasSubstr(") is gone: ")));
  }
}

}  // namespace
}  // namespace gpipe::distributed
