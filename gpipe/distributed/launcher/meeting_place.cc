#include "gpipe/distributed/launcher/meeting_place.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "gpipe/distributed/sockets/token.h"
#include "gpipe/runtime/bytes.h"

namespace gpipe::distributed {
namespace {

constexpr std::size_t kMostVisitors = 4096;
constexpr std::size_t kGreatestQuestion = 16384;  // bytes; each silent rank takes 8

// Why a program whose messages have another form is refused.
std::string refusal_of(const std::string& protocol) {
  return "the launcher's messages have the form '" + std::string(kMeetingProtocol) +
         "', and this program's " +
         (protocol.empty() ? "an older one, without a number" : "the form '" + protocol + "'") +
         ": build //gpipe/distributed:launch and the program from the same sources";
}

}  // namespace

MeetingPlace::MeetingPlace(const std::string& address, int64_t most)
    : listens_at_{address, 0},
      secret_(make_token()),
      listener_(listen_on(address, &listens_at_.port)),
      rules_(most) {}

void MeetingPlace::started(int64_t number) { rules_.started(number); }

void MeetingPlace::ended(int64_t number) {
  rules_.ended(number);
  have_asked_.erase(number);
  left_out_.erase(number);
  visitors_.remove_if([&](const Visitor& visitor) { return visitor.number == number; });
}

void MeetingPlace::end(const std::string& why) {
  why_it_ends_ = why;
  for (Visitor& visitor : visitors_) {
    if (visitor.number < 0) continue;
    rules_.gave_up(visitor.number);
    visitor.connection.queue({kOver, 0, why});
  }
}

std::optional<MeetingPlace::Time> MeetingPlace::add_waits(std::vector<pollfd>& waits) const {
  waits.push_back({listener_.get(), POLLIN, 0});
  for (const Visitor& visitor : visitors_) {
    const int events = POLLIN | (visitor.connection.has_unwritten() ? POLLOUT : 0);
    waits.push_back({visitor.connection.descriptor(), static_cast<int16_t>(events), 0});
  }
  return rules_.next_time();
}

void MeetingPlace::serve() {
  const Time now = std::chrono::steady_clock::now();
  accept_all();
  for (Visitor& visitor : visitors_) {
    if (!hear(visitor, now)) lose(visitor);
  }
  for (const MeetingRules::Answer& answer : rules_.answers(now)) tell(answer);
  for (Visitor& visitor : visitors_) {
    if (visitor.connection.is_open() && !visitor.connection.flush()) lose(visitor);
  }
  visitors_.remove_if([](const Visitor& visitor) { return !visitor.connection.is_open(); });
}

void MeetingPlace::accept_all() {
  for (;;) {
    Socket socket = accept_on(listener_);
    if (!socket.is_open()) return;
    visitors_.emplace_back();
    visitors_.back().connection = Connection(std::move(socket));
    visitors_.back().connection.limit(kGreatestQuestion);
    if (visitors_.size() <= kMostVisitors) continue;
    const auto stranger = std::find_if(visitors_.begin(), visitors_.end(),
                                       [](const Visitor& each) { return each.number < 0; });
    if (stranger != visitors_.end()) visitors_.erase(stranger);
  }
}

bool MeetingPlace::hear(Visitor& visitor, Time now) {
  std::vector<Frame> frames;
  // If the connection is closed, the process has ended, and the frames that it sent before do not
  // count any more.
  if (visitor.connection.read(frames) != Connection::State::kOpen) return false;
  return std::all_of(frames.begin(), frames.end(),
                     [&](const Frame& frame) { return take(visitor, frame, now); });
}

bool MeetingPlace::take(Visitor& visitor, const Frame& frame, Time now) {
  if (frame.type == kArrived && visitor.number >= 0) {
    rules_.arrived(visitor.number, frame.epoch);
    return true;
  }
  if (frame.type != kAsk) return false;
  Question question;
  try {
    question = to_question(frame.body);
  } catch (const internal::DamagedMessage&) {
    return false;
  }
  if (question.secret != secret_ || question.number < 0) return false;
  if (question.protocol != kMeetingProtocol) {
    visitor.connection.queue({kRefused, 0, refusal_of(question.protocol)});
    return true;
  }
  for (Visitor& other : visitors_) {
    if (&other == &visitor || other.number != question.number || !other.connection.is_open()) {
      continue;
    }
    if (!question.process.empty() && other.process == question.process) {
      // The line was cut, and the process has noticed it before this end of its former connection.
      lose(other);
      continue;
    }
    visitor.connection.queue(
        {kRefused, 0,
         "another process of rank " + std::to_string(question.number) +
             " is at the meeting place: one process of each rank may call gpipe::meet()"});
    return true;
  }
  visitor.number = question.number;
  visitor.process = question.process;
  watch_line(visitor.connection.descriptor(), question.limit);
  was_asked_ = true;
  have_asked_.insert(question.number);
  if (why_it_ends_) {
    visitor.connection.queue({kOver, 0, *why_it_ends_});
  } else {
    rules_.ask(question.number, frame.epoch, question, now);
  }
  return true;
}

void MeetingPlace::tell(const MeetingRules::Answer& answer) {
  std::string body = answer.text;
  if (answer.message == kWorld) {
    // Each world gets a port of its own, because threads that are left over may still hold the port
    // of the last world.
    if (std::exchange(port_generation_, answer.generation) != answer.generation) {
      port_ = std::make_unique<MasterPort>();
    }
    PlannedWorld world;
    world.rank = answer.rank;
    world.port = port_->number();
    world.came_from = answer.came_from;
    world.local_rank = answer.local_rank;
    body = to_bytes(world);
  }
  if (answer.message == kOver) left_out_.insert(answer.number);
  for (Visitor& visitor : visitors_) {
    if (visitor.number != answer.number) continue;
    visitor.connection.queue({answer.message, static_cast<uint32_t>(answer.generation), body});
  }
}

// A process whose connection ends asks no longer, most often because it has met the others. The
// same process may already have asked again over another connection, which is read next.
void MeetingPlace::lose(Visitor& visitor) {
  const int error = visitor.connection.error();
  const bool was_cut = error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH;
  visitor.connection.close();
  const int64_t number = std::exchange(visitor.number, -1);
  if (number < 0) return;
  was_cut ? rules_.was_cut_off(number) : rules_.gave_up(number);
}

}  // namespace gpipe::distributed
