#include "gpipe/timeline/chrome_trace.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "gpipe/timeline/timeline_dependencies.h"

namespace gpipe {
namespace {

using Json = nlohmann::ordered_json;

const char* kind_name(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return "forward";
    case ActionKind::kBackward:
      return "backward";
    case ActionKind::kInputGradient:
      return "input gradient";
    case ActionKind::kWeightGradient:
      return "weight gradient";
    case ActionKind::kOffload:
      return "offload";
    case ActionKind::kReload:
      return "reload";
  }
  return "";
}

double microseconds(int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e3; }

// Collects the events of a trace, one after the other.
class Trace {
 public:
  void add(const Json& event) {
    text_ += text_.empty() ? "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n" : ",\n";
    text_ += event.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  std::string finish() { return (text_.empty() ? "{\"traceEvents\": [" : text_) + "\n]}\n"; }
  int64_t next_flow() { return flows_++; }

 private:
  std::string text_;
  int64_t flows_ = 0;
};

void name_track(Trace& trace, size_t process, size_t track, const std::string& name, int order) {
  trace.add({{"name", "thread_name"},
             {"ph", "M"},
             {"pid", process},
             {"tid", track},
             {"args", {{"name", name}}}});
  trace.add({{"name", "thread_sort_index"},
             {"ph", "M"},
             {"pid", process},
             {"tid", track},
             {"args", {{"sort_index", order}}}});
}

Json complete(size_t process, size_t track, const std::string& name, const char* category,
              int64_t begin, int64_t end) {
  return {{"name", name},
          {"cat", category},
          {"ph", "X"},
          {"pid", process},
          {"tid", track},
          {"ts", microseconds(begin)},
          {"dur", microseconds(end - begin)}};
}

void add_action(Trace& trace, size_t process, size_t track, const TimelineAction& timed) {
  const Action& action = timed.action;
  Json event = complete(process, track, action.to_text() + (timed.failed ? " failed" : ""),
                        kind_name(action.kind), timed.begin, timed.end);
  event["args"] = {{"kind", kind_name(action.kind)},
                   {"stage", action.stage},
                   {"micro_batch", action.micro_batch}};
  if (timed.failed) {
    event["args"]["failed"] = true;
    event["cname"] = "terrible";
  }
  trace.add(event);
  if (timed.recompute() <= 0) return;
  event = complete(process, track, "recompute", "recompute", timed.recompute_begin,
                   timed.recompute_end);
  event["args"] = {{"stage", action.stage}, {"micro_batch", action.micro_batch}};
  trace.add(event);
}

// Adds the arrows that end at the action `timed`.
void add_flows(Trace& trace, size_t process, size_t worker, const TimelineAction& timed,
               const internal::TimelineDependencies& dependencies) {
  for (const auto& need : dependencies.needs(timed.action)) {
    if (!need.route || static_cast<size_t>(need.position.worker) == worker) continue;
    const TimelineAction& producer = dependencies.at(need.position);
    if (producer.failed) continue;
    const bool forward = timed.action.kind == ActionKind::kForward;
    const std::string& route = dependencies.routes()[*need.route].name;
    Json flow = {{"name", forward ? route : "gradient of " + route},
                 {"cat", forward ? "activation" : "gradient"},
                 {"ph", "s"},
                 {"id", trace.next_flow()},
                 {"pid", process},
                 {"tid", need.position.worker},
                 // An arrow begins at the event that contains its time. An action's end is not
                 // within the action, so this takes the nanosecond before.
                 {"ts", microseconds(std::max(producer.begin, producer.end - 1))}};
    trace.add(flow);
    flow["ph"] = "f";
    flow["bp"] = "e";
    flow["tid"] = worker;
    flow["ts"] = microseconds(timed.begin);
    trace.add(flow);
  }
}

}  // namespace

std::string to_chrome_trace(const std::vector<TraceProcess>& processes) {
  Trace trace;
  for (size_t process = 0; process < processes.size(); ++process) {
    const TraceProcess& trace_process = processes[process];
    trace.add({{"name", "process_name"},
               {"ph", "M"},
               {"pid", process},
               {"tid", 0},
               {"args", {{"name", trace_process.name}}}});
    size_t workers = 0;
    for (const StepTimeline& step : trace_process.steps) {
      workers = std::max(workers, step.workers.size());
    }
    for (size_t worker = 0; worker < workers; ++worker) {
      name_track(trace, process, worker, "worker " + std::to_string(worker),
                 static_cast<int>(worker) + 1);
    }
    name_track(trace, process, workers, "steps", 0);
    for (size_t number = 0; number < trace_process.steps.size(); ++number) {
      const StepTimeline& step = trace_process.steps[number];
      trace.add(complete(process, workers,
                         "step " + std::to_string(number) + (step.failed() ? " failed" : ""),
                         "step", step.begin(), step.end()));
      const internal::TimelineDependencies dependencies(step, trace_process.routes);
      for (size_t worker = 0; worker < step.workers.size(); ++worker) {
        for (const TimelineAction& timed : step.workers[worker]) {
          add_action(trace, process, worker, timed);
          add_flows(trace, process, worker, timed, dependencies);
        }
      }
    }
  }
  return trace.finish();
}

}  // namespace gpipe
