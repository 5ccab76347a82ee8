#include "gpipe/resilient/meet_again.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "gpipe/distributed/connect_world.h"
#include "gpipe/distributed/control/agreement.h"
#include "gpipe/distributed/control/failure.h"
#include "gpipe/distributed/meet/environment.h"
#include "gpipe/distributed/meet/meeting_client.h"
#include "gpipe/distributed/meet/meeting_messages.h"
#include "gpipe/distributed/sockets/token.h"
#include "text/counted.h"

namespace gpipe {
namespace {

using std::chrono::milliseconds;

// What this process knows of its worlds.
struct Former {
  int64_t generation = 0;  // 0: no world yet
  std::weak_ptr<internal::Processes> processes;
};

Former& former() {
  static Former instance;
  return instance;
}

Meeting keep(Meeting meeting) {
  former() = {meeting.generation, meeting.world.processes()};
  return meeting;
}

// The meeting of a process without a meeting place: the first world is the only one.
Meeting meet_once(const WorldOptions& options) {
  if (former().generation != 0) {
    throw std::logic_error(
        "gpipe::meet() was called again, and no launcher keeps a meeting place "
        "(GPIPE_MEETING_PLACE is not set): start the processes with //gpipe/distributed:launch, or "
        "end after a failure and start them all again");
  }
  Meeting meeting;
  meeting.world = World::from_environment(options);
  meeting.generation = 1;
  meeting.came_from.assign(static_cast<std::size_t>(meeting.world.size()), -1);
  return keep(std::move(meeting));
}

void announce(const Meeting& meeting) {
  const std::string newcomers =
      meeting.newcomers() == 0
          ? ""
          : ", " + text::counted(meeting.newcomers(), "newcomer") + " among them";
  std::clog << "gpipe: generation " + std::to_string(meeting.generation) + ": " +
                   text::counted(meeting.world.size(), "process", "processes") + newcomers + "\n"
            << std::flush;
}

milliseconds bounded(milliseconds limit) {
  return std::clamp<milliseconds>(limit, milliseconds(0), std::chrono::hours(24 * 365));
}

// Whether a process threw, and none has ended or is silent. Then the next meeting has the same
// processes.
bool only_threw(const distributed::DistributedFailure& failure) {
  bool threw = false;
  for (const distributed::Fault& fault : failure.faults()) {
    if (fault.kind == distributed::FaultKind::kDeath) return false;
    if (fault.kind == distributed::FaultKind::kSilence) return false;
    threw = threw || fault.kind == distributed::FaultKind::kException;
  }
  return threw;
}

// Connects the processes of a planned world. Throws MeetingIsVoid if that world does not come to
// exist, or the DistributedFailure that shows it.
World connect(const distributed::MeetingClient::World& planned, const WorldOptions& options,
              distributed::MeetingClient& client) {
  distributed::Environment environment = distributed::environment_of_this_process();
  environment.rank = planned.plan.rank;
  environment.size = planned.plan.size;
  environment.local_rank = planned.plan.local_rank;
  environment.local_size = std::min(environment.local_size, planned.plan.size);
  environment.master_port = planned.plan.port;
  WorldOptions world_options = options;
  world_options.announce = options.announce && planned.generation == 1;
  try {
    World world = distributed::connect_world(environment, world_options,
                                             "generation " + std::to_string(planned.generation),
                                             [&client] { client.check(); });
    client.arrive();
    return world;
  } catch (const distributed::MeetingIsVoid&) {
    throw;
  } catch (const distributed::MeetingIsUnreachable&) {
    throw;
  } catch (const distributed::DistributedFailure& failure) {
    // A process that is told that the world is void throws, which the others may hear first.
    if (only_threw(failure)) client.wait_for_void(milliseconds(500));
    throw;
  } catch (const distributed::Disagreement&) {
    throw;  // all other processes throw it, too
  } catch (const std::exception&) {
    // The error may follow from the end of another process, e.g. a lost store, of which the
    // launcher has not told yet. So wait a moment for that message.
    client.wait_for_void(milliseconds(500));
    throw;
  }
}

}  // namespace

namespace internal {

milliseconds patience_with_place(milliseconds limit,
                                 const std::vector<distributed::Fault>& faults) {
  const bool is_cut_off =
      !faults.empty() && std::all_of(faults.begin(), faults.end(), [](const auto& fault) {
        return fault.kind == distributed::FaultKind::kSilence;
      });
  // The others have noticed the silence at the same time. The first of them that asks may compute
  // for `limit` before, and then they wait for this process for kSilent of the meeting place.
  if (is_cut_off) return limit + std::chrono::seconds(5);
  // They take up to `limit` to notice that this process is gone and as long to meet, or 20 s if
  // another one starts, and then they connect.
  return 2 * limit + std::chrono::seconds(30);
}

}  // namespace internal

// The variable alone is not enough. If //gpipe/distributed:launch has started another launcher,
// that launcher's processes have the variable, too, but the meeting place is not for them.
bool can_meet_again() {
  return std::getenv(distributed::kMeetingPlaceVariable) != nullptr &&
         distributed::environment_of_this_process().launcher == distributed::Launcher::kGPipe;
}

Meeting meet(const WorldOptions& options, const MeetAgainOptions& again) {
  if (!former().processes.expired()) {
    throw std::logic_error(
        "gpipe::meet() was called while the World of generation " +
        std::to_string(former().generation) +
        " is still used: destroy it first, with the pipelines, optimizers and copies that keep it");
  }
  if (!can_meet_again()) return meet_once(options);
  distributed::Question question;
  question.number = distributed::environment_of_this_process().rank;
  question.first_limit = bounded(options.rendezvous_limit);
  question.limit = bounded(options.silence_limit);
  static const std::string process = distributed::make_token();
  question.process = process;
  question.multiple_of = again.multiple_of;
  for (const distributed::Fault& fault : again.faults) {
    if (fault.kind == distributed::FaultKind::kSilence) question.silent.push_back(fault.rank);
  }
  const milliseconds patience = internal::patience_with_place(question.limit, again.faults);
  // After so many worlds in a row of processes that live and cannot connect, this one gives up.
  constexpr int kMostInVain = 3;
  int in_vain = 0;
  std::optional<distributed::MeetingClient> client;
  while (true) {
    try {
      if (!client) client.emplace(std::getenv(distributed::kMeetingPlaceVariable), patience);
      const auto planned = client->ask(question, former().generation);
      Meeting meeting;
      meeting.world = connect(planned, options, *client);
      meeting.generation = planned.generation;
      meeting.came_from = planned.plan.came_from;
      if (meeting.world.rank() == 0 && options.announce && meeting.generation > 1) {
        announce(meeting);
      }
      return keep(std::move(meeting));
    } catch (const distributed::MeetingIsVoid&) {  // ask again
    } catch (const distributed::MeetingIsUnreachable& cut) {
      client.reset();
      if (options.announce) {
        std::clog << std::string("gpipe: ") + cut.what() + ". It tries to reach it again, for " +
                         std::to_string(patience.count() / 1000) + " s\n"
                  << std::flush;
      }
    } catch (const distributed::DistributedFailure& failure) {
      in_vain = only_threw(failure) ? in_vain + 1 : 0;
      if (in_vain == kMostInVain) throw;
      if (options.announce) {
        std::clog << std::string("gpipe: meets again: ") + failure.what() + "\n" << std::flush;
      }
    } catch (const distributed::MeetingIsOver& over) {
      throw WorldIsOver(over.what());
    }
  }
}

}  // namespace gpipe
