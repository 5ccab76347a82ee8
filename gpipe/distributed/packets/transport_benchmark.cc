// Measures what a message costs beyond c10d's own send and receive.
//
//   tools/bazel run //gpipe/distributed/packets:transport_benchmark
//
// Two processes of this program send a tensor back and forth: with c10d's plain send and recv, and
// as packets of a run. They do both in turns, over the same group, so that a busy machine slows
// both. The counter `ratio` is the median of ours / bare.

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "gpipe/distributed/meet/session.h"
#include "gpipe/distributed/packets/message_plan.h"
#include "gpipe/distributed/packets/packet_codec.h"
#include "gpipe/distributed/packets/remote_transport.h"
#include "gpipe/distributed/sockets/master_port.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/timing.h"

namespace gpipe::distributed {
namespace {

using internal::Packet;

constexpr int32_t kOrderTag = 1 << 30;
constexpr int32_t kBareTag = kOrderTag + 2;

// One process's end of the group.
struct Ends {
  std::unique_ptr<Session> session;
  std::unique_ptr<Group> group;
};

at::Tensor bytes_of(int64_t count) { return at::zeros({count}, at::kByte); }

// Sends a tensor back and forth with c10d's plain functions: rank 0 sends and then receives, rank 1
// receives and then sends.
void bare_rounds(Ends& ends, int64_t bytes, int64_t rounds) {
  const int64_t rank = ends.session->rank();
  const at::Tensor sent = bytes_of(bytes);
  const at::Tensor room = bytes_of(bytes);
  for (int64_t i = 0; i < rounds; ++i) {
    // The tag is even from rank 0 to rank 1 and odd on the way back, as in the messages of a run.
    if (rank == 0) ends.group->send(sent, 1, kBareTag)->wait();
    ends.group->receive(room, 1 - rank, rank == 0 ? kBareTag + 1 : kBareTag)->wait();
    if (rank == 1) ends.group->send(sent, 0, kBareTag + 1)->wait();
  }
}

// A schedule without any overlap: one micro-batch after another goes forward and comes back.
Program to_and_fro(int64_t rounds) {
  std::ostringstream text;
  text << "stages 2\nmicro_batches " << rounds << "\n";
  for (const int stage : {0, 1}) {
    text << "worker " << stage << ":";
    for (int64_t i = 0; i < rounds; ++i) {
      text << " F" << stage << "." << i << " B" << stage << "." << i;
    }
    text << "\n";
  }
  return compile(Schedule::from_text(text.str()), Routes::create(2));
}

void our_rounds(Ends& ends, const Program& program, MessagePlan& plan, int64_t bytes) {
  const auto rank = static_cast<int32_t>(ends.session->rank());
  const at::Tensor tensor = bytes_of(bytes);
  RemoteTransport transport(program, plan, *ends.group, rank, &ends.session->control());
  std::vector<Packet> received;
  std::vector<Packet> sent;
  for (const Step& step : program.workers[static_cast<size_t>(rank)]) {
    received.clear();
    received.resize(step.receives.size());
    transport.receive(rank, step.receives, received);
    sent.clear();
    sent.resize(step.sends.size());
    for (Packet& packet : sent) {
      packet.items.emplace_back();
      packet.items.back().tensor = tensor;
    }
    transport.send(step.sends, sent);
  }
  transport.finish();
}

// What rank 0 tells rank 1: the measurement in which rank 1 must take part.
struct Order {
  int64_t bytes = 0;  // 0: the end
  int64_t rounds = 0;
};

// A pair of measurements, in seconds: with plain send and recv, and as packets of a run.
class Pair {
 public:
  Pair(Ends& ends, const Order& order)
      : ends_(ends), order_(order), program_(to_and_fro(order.rounds)), plan_(program_, {0, 1}) {}

  double bare() {
    return seconds_of([&] { bare_rounds(ends_, order_.bytes, order_.rounds); });
  }
  double ours() {
    return seconds_of([&] { our_rounds(ends_, program_, plan_, order_.bytes); });
  }

 private:
  Ends& ends_;
  Order order_;
  Program program_;
  MessagePlan plan_;
};

constexpr int kPairs = 15;

void exchange(Ends& ends, Order& order) {
  at::Tensor message = at::zeros({2}, at::kLong);
  if (ends.session->rank() == 0) {
    message[0] = order.bytes;
    message[1] = order.rounds;
    ends.group->send(message, 1, kOrderTag)->wait();
  } else {
    ends.group->receive(message, 0, kOrderTag)->wait();
    order = {message[0].item<int64_t>(), message[1].item<int64_t>()};
  }
}

// What each of the two ranks does for one benchmark.
void run_pairs(Ends& ends, const Order& order, std::vector<double>* bare,
               std::vector<double>* ours) {
  Pair pair(ends, order);
  pair.bare();
  pair.ours();  // a first run, which learns the messages' sizes
  for (int i = 0; i < kPairs; ++i) {
    const double of_bare = pair.bare();
    const double of_ours = pair.ours();
    if (bare != nullptr) bare->push_back(of_bare);
    if (ours != nullptr) ours->push_back(of_ours);
  }
}

Ends* ends = nullptr;

void BM_RoundTrip(benchmark::State& state) {
  Order order{state.range(0), state.range(1)};
  std::vector<double> bare;
  std::vector<double> ours;
  for (auto _ : state) {
    exchange(*ends, order);
    run_pairs(*ends, order, &bare, &ours);
    double total = 0;
    for (const double seconds : ours) total += seconds;
    state.SetIterationTime(total);
  }
  std::vector<double> ratios;
  for (size_t i = 0; i < bare.size(); ++i) ratios.push_back(ours[i] / bare[i]);
  const auto rounds = static_cast<double>(order.rounds);
  state.counters["bare_us"] = median(bare) / rounds * 1e6;
  state.counters["ours_us"] = median(ours) / rounds * 1e6;
  state.counters["ratio"] = median(ratios);
}
BENCHMARK(BM_RoundTrip)
    ->ArgNames({"bytes", "rounds"})
    ->Args({256, 400})
    ->Args({1 << 20, 40})
    ->Args({16 << 20, 10})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);

// The CPU time of a packet alone: encodes one tensor into bytes and decodes it.
void BM_Codec(benchmark::State& state) {
  Packet packet;
  packet.items.emplace_back();
  packet.items.back().tensor = at::zeros({state.range(0) / 4});
  for (auto _ : state) {
    const OutgoingPacket outgoing = encode(packet);
    IncomingPacket incoming(outgoing.head, 1 << 30);
    benchmark::DoNotOptimize(incoming.take());
  }
}
BENCHMARK(BM_Codec)->ArgNames({"bytes"})->Arg(256)->Arg(1 << 20);

Ends connect(int64_t rank, int port) {
  at::set_num_threads(1);
  const std::string number = std::to_string(rank);
  const std::map<std::string, std::string> variables = {{"RANK", number},
                                                        {"WORLD_SIZE", "2"},
                                                        {"LOCAL_RANK", number},
                                                        {"LOCAL_WORLD_SIZE", "2"},
                                                        {"MASTER_ADDR", "127.0.0.1"},
                                                        {"MASTER_PORT", std::to_string(port)}};
  SessionOptions options;
  options.announce = false;
  Ends ends;
  ends.session = Session::connect(read_environment(variables), options);
  ends.group = ends.session->connect_group("tensors");
  return ends;
}

void serve(int port) {
  Ends ends = connect(1, port);
  while (true) {
    Order order;
    exchange(ends, order);
    if (order.bytes == 0) return;
    run_pairs(ends, order, nullptr, nullptr);
  }
}

}  // namespace
}  // namespace gpipe::distributed

int main(int argc, char** argv) {
  using namespace gpipe::distributed;
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  const MasterPort port;
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    serve(port.number());
    _exit(0);
  }
  {
    Ends own = connect(0, port.number());
    ends = &own;
    benchmark::RunSpecifiedBenchmarks();
    Order end;
    exchange(own, end);
  }
  waitpid(child, nullptr, 0);
  return 0;
}
