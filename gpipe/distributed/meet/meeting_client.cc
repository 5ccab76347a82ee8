#include "gpipe/distributed/meet/meeting_client.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

namespace gpipe::distributed {
namespace {

using std::chrono::milliseconds;

constexpr char kGone[] =
    "the launcher's meeting place is gone: its process has ended, and this one can meet no other";
// A meeting place that is older than kMeetingProtocol closes the connection when it is asked.
constexpr char kNotHeard[] =
    ". If the launcher still runs, it is of another build: build //gpipe/distributed:launch and "
    "the program from the same sources";

// Waits until the connection is ready for one of `events`. Returns whether it became so within
// `limit` milliseconds; -1: no limit.
bool wait_for(const Connection& connection, int16_t events, int limit) {
  pollfd wait{connection.descriptor(), events, 0};
  int ready = 0;
  do {
    ready = poll(&wait, 1, limit);
  } while (ready < 0 && errno == EINTR);
  return ready > 0;
}

// A connection to the endpoint. Throws MeetingIsOver if there is none within `limit`.
Socket reach(const Endpoint& endpoint, milliseconds limit) {
  constexpr milliseconds kPause{100};  // before the next try
  // The system repeats a packet that finds no way after ever longer pauses. A new try is heard
  // sooner when the way is there again.
  constexpr milliseconds kTry{1000};
  const auto end = std::chrono::steady_clock::now() + limit;
  std::string why = "no answer";
  while (true) {
    const auto left =
        std::chrono::duration_cast<milliseconds>(end - std::chrono::steady_clock::now());
    try {
      Connection connection(begin_connect(endpoint));
      if (wait_for(connection, POLLOUT,
                   static_cast<int>(std::clamp(left, milliseconds(0), kTry).count()))) {
        Socket socket = connection.take_socket();
        const int error = connect_error(socket);
        if (error == 0) return socket;
        why = std::strerror(error);
      }
    } catch (const std::runtime_error& error) {
      why = error.what();
    }
    if (left <= kPause) break;
    std::this_thread::sleep_for(kPause);
  }
  throw MeetingIsOver("the launcher's meeting place at " + to_text(endpoint) +
                      " could not be reached for " + std::to_string(limit.count() / 1000) + " s (" +
                      why +
                      "): the launcher has ended, or this machine is cut off from it. Whoever is "
                      "left there goes on without this process, which must end");
}

}  // namespace

MeetingClient::MeetingClient(const std::string& place, milliseconds limit) {
  const std::size_t slash = place.rfind('/');
  const std::size_t colon = place.rfind(':', slash);
  if (slash == std::string::npos || colon == std::string::npos) {
    throw std::invalid_argument(std::string(kMeetingPlaceVariable) + "='" + place +
                                "' is not ADDRESS:PORT/SECRET: //gpipe/distributed:launch sets it, "
                                "and a program must not change it");
  }
  secret_ = place.substr(slash + 1);
  endpoint_.address = place.substr(0, colon);
  if (!endpoint_.address.empty() && endpoint_.address.front() == '[') {
    endpoint_.address = endpoint_.address.substr(1, endpoint_.address.size() - 2);
  }
  endpoint_.port = std::atoi(place.substr(colon + 1, slash - colon - 1).c_str());
  connection_ = Connection(reach(endpoint_, limit));
  made_ = std::chrono::steady_clock::now();
}

MeetingClient::World MeetingClient::ask(Question question, int64_t former) {
  question.secret = secret_;
  watch_line(connection_.descriptor(), question.limit);
  send({kAsk, static_cast<uint32_t>(former), to_bytes(question)});
  while (true) {
    const Frame frame = *next(std::nullopt);
    if (frame.type == kOver) throw MeetingIsOver(frame.body);
    if (frame.type == kRefused) throw std::runtime_error(frame.body);
    // Another message is about a world that this process has given up.
    if (frame.type != kWorld) continue;
    generation_ = frame.epoch;
    is_void_ = false;
    return {generation_, to_planned_world(frame.body)};
  }
}

void MeetingClient::wait_for_void(milliseconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!is_void_) {
    const auto left = end - std::chrono::steady_clock::now();
    const auto frame =
        next(std::max(milliseconds(0), std::chrono::duration_cast<milliseconds>(left)));
    if (!frame) return;
    is_void_ = frame->type == kVoid && frame->epoch == generation_;
  }
  throw MeetingIsVoid("a process ended, or was silent, while the processes met");
}

void MeetingClient::arrive() {
  send({kArrived, static_cast<uint32_t>(generation_), ""});
  while (true) {
    const Frame frame = *next(std::nullopt);
    if (frame.epoch != generation_) continue;
    if (frame.type == kGo) return;
    is_void_ = frame.type == kVoid;
    if (is_void_) check();
  }
}

std::optional<Frame> MeetingClient::next(std::optional<milliseconds> limit) {
  while (arrived_.empty()) {
    if (!wait_for(connection_, POLLIN, limit ? static_cast<int>(limit->count()) : -1)) {
      return std::nullopt;
    }
    const Connection::State state = connection_.read(arrived_);
    if (state != Connection::State::kOpen && arrived_.empty()) throw_end();
  }
  Frame frame = std::move(arrived_.front());
  arrived_.erase(arrived_.begin());
  return frame;
}

void MeetingClient::send(Frame frame) {
  connection_.queue(frame);
  do {
    if (!connection_.flush()) throw_end();
  } while (connection_.has_unwritten() && wait_for(connection_, POLLOUT, -1));
}

void MeetingClient::throw_end() const {
  // A connection that breaks at once was not cut: nobody answers behind it.
  constexpr std::chrono::seconds kCut{1};
  const int error = connection_.error();
  if (error == 0 || std::chrono::steady_clock::now() < made_ + kCut) {
    throw std::runtime_error(std::string(kGone) + (generation_ == 0 ? kNotHeard : ""));
  }
  throw MeetingIsUnreachable("the line to the launcher's meeting place at " + to_text(endpoint_) +
                             " was cut while this process waited for its answer (" +
                             std::strerror(error) + ")");
}

}  // namespace gpipe::distributed
