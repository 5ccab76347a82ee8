// Transport across processes: the same executor with the workers of one run in two processes.
#include "gpipe/runtime/transport.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "gpipe/runtime/executor.h"
#include "gpipe/runtime/mailboxes.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe::internal {
namespace {

// Sends texts between two processes. Texts for the other process's workers go through a socket. A
// thread at the other end puts them into the mailboxes there.
class SocketTransport final : public Transport<std::string> {
 public:
  SocketTransport(const Program& program, std::vector<bool> is_here, int socket)
      : mailboxes_(program.slots), is_here_(std::move(is_here)), socket_(socket) {
    reader_ = std::thread([this] { read_all(); });
  }
  // Ends this side's stream and waits until the other side's stream has ended.
  ~SocketTransport() override {
    shutdown(socket_, SHUT_WR);
    reader_.join();
    close(socket_);
  }

  void send(const std::vector<Step::Send>& sends, std::vector<std::string>& payloads) override {
    for (size_t k = 0; k < sends.size(); ++k) {
      if (is_here_[sends[k].worker]) {
        mailboxes_.put(sends[k].worker, sends[k].slot, std::move(payloads[k]));
      } else {
        write_frame({sends[k].worker, sends[k].slot, static_cast<int32_t>(payloads[k].size())},
                    payloads[k]);
      }
    }
  }
  bool receive(int32_t worker, const std::vector<int32_t>& slots,
               std::vector<std::string>& payloads) override {
    if (mailboxes_.receive(worker, slots, payloads)) return true;
    if (failed_there_) throw std::runtime_error("the other process failed");
    return false;
  }
  void cancel() noexcept override {
    try {
      if (!mailboxes_.cancelled() && !failed_there_) write_frame({kFailed, 0, 0}, "");
    } catch (const std::runtime_error&) {  // the other side is gone
    }
    mailboxes_.cancel();
  }

 private:
  static constexpr int32_t kFailed = -1;
  struct Head {
    int32_t worker;
    int32_t slot;
    int32_t size;
  };

  void write_frame(const Head& head, const std::string& text) {
    std::string frame(reinterpret_cast<const char*>(&head), sizeof(head));
    frame += text;
    std::lock_guard<std::mutex> lock(write_mutex_);
    for (size_t done = 0; done < frame.size();) {
      const ssize_t count = ::send(socket_, frame.data() + done, frame.size() - done, MSG_NOSIGNAL);
      if (count <= 0) throw std::runtime_error("the socket is closed");
      done += static_cast<size_t>(count);
    }
  }
  bool read_exactly(void* to, size_t size) {
    return size == 0 || recv(socket_, to, size, MSG_WAITALL) == static_cast<ssize_t>(size);
  }
  void read_all() {
    Head head{};
    while (read_exactly(&head, sizeof(head))) {
      if (head.worker == kFailed) {
        failed_there_ = true;
        mailboxes_.cancel();
        continue;
      }
      std::string text(static_cast<size_t>(head.size), '\0');
      if (!read_exactly(text.data(), text.size())) return;
      mailboxes_.put(head.worker, head.slot, std::move(text));
    }
  }

  Mailboxes<std::string> mailboxes_;
  std::vector<bool> is_here_;
  int socket_;
  std::mutex write_mutex_;
  std::atomic<bool> failed_there_{false};
  std::thread reader_;
};

// Runs the even workers here and the odd ones in a child process, and returns the failure of this
// process's part.
// `in_child` is given what failed in the child and returns the child's exit code.
std::optional<RunFailure> run_in_two_processes(
    const Program& program, const Handler<std::string>& handler,
    const std::function<int(const std::optional<RunFailure>&)>& in_child) {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) throw std::runtime_error("socketpair");
  const pid_t child = fork();
  const int parity = child == 0 ? 1 : 0;
  close(sockets[1 - parity]);
  ExecuteOptions options;
  std::vector<bool> is_here;
  for (int32_t worker = 0; worker < static_cast<int32_t>(program.workers.size()); ++worker) {
    is_here.push_back(worker % 2 == parity);
    if (is_here.back()) options.placement.push_back(worker);
  }
  std::optional<RunFailure> failure;
  {
    WorkerPool pool(static_cast<int64_t>(options.placement.size()));
    SocketTransport transport(program, is_here, sockets[parity]);
    failure = execute<std::string>(pool, program, transport, handler, options);
  }
  if (child == 0) _exit(in_child(failure));
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << "in the child";
  return failure;
}

TEST(Transport, TheWorkersOfARunMayBeInTwoProcesses) {
  const Routes routes = Routes::create(4, {{0, 3, "far"}, {1, 3, "near"}});
  const Program program = compile(Schedule::one_f_one_b(4, 6), routes);
  std::atomic<int> actions{0};
  std::atomic<int> wrong{0};
  const Handler<std::string> handler = [&](const Action& action, std::vector<std::string>& received,
                                           std::vector<std::string>& sent) {
    ++actions;
    const bool forward = action.kind == ActionKind::kForward;
    const auto& sources = forward ? routes.incoming(action.stage) : routes.outgoing(action.stage);
    const auto& targets = forward ? routes.outgoing(action.stage) : routes.incoming(action.stage);
    const auto text = [&](RouteId route) {
      return (forward ? "F" : "B") + to_text(route) + ":" + std::to_string(action.micro_batch);
    };
    for (size_t k = 0; k < sources.size(); ++k) wrong += received[k] == text(sources[k]) ? 0 : 1;
    for (size_t k = 0; k < targets.size(); ++k) sent[k] = text(targets[k]);
  };
  const auto failure = run_in_two_processes(program, handler, [&](const auto& failed) {
    return !failed && actions == 24 && wrong == 0 ? 0 : 1;
  });
  EXPECT_FALSE(failure);
  EXPECT_EQ(actions, 24);
  EXPECT_EQ(wrong, 0);
}

TEST(Transport, AFailureReachesTheOtherProcess) {
  const Program program = compile(Schedule::one_f_one_b(4, 6), Routes::create(4));
  const Action failing{ActionKind::kBackward, 3, 2};  // stage 3 runs in the child
  const auto failure = run_in_two_processes(
      program,
      [&](const Action& action, auto&, auto&) {
        if (action == failing) throw std::out_of_range("here");
      },
      [&](const auto& failed) { return failed && failed->action == failing ? 0 : 1; });
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->action, std::nullopt);
  EXPECT_THROW(std::rethrow_exception(failure->error), std::runtime_error);
}

}  // namespace
}  // namespace gpipe::internal
