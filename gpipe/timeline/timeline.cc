#include "gpipe/timeline/timeline.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <utility>

#include "gpipe/timeline/chrome_trace.h"

namespace gpipe {
namespace {

int64_t nanoseconds(Event::Time time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

struct Record {
  int64_t run;
  TimelineAction action;
};

// The record of one worker.
struct Buffer {
  std::mutex mutex;  // against the reader, and workers of this number in other pipelines
  // The begin of each action that has not ended, with its run. It is one, unless several pipelines
  // run at once.
  std::vector<std::pair<int64_t, Event::Time>> begun;
  std::vector<Record> records;
};

}  // namespace

class Timeline::Log {
 public:
  void add(const Event& event) {
    Buffer& buffer = this->buffer(static_cast<size_t>(event.worker));
    const std::lock_guard<std::mutex> lock(buffer.mutex);
    if (event.edge == Event::Edge::kBegin) {
      buffer.begun.emplace_back(event.run, event.time);
      return;
    }
    const auto begun = std::find_if(buffer.begun.begin(), buffer.begun.end(),
                                    [&](const auto& entry) { return entry.first == event.run; });
    if (begun == buffer.begun.end()) return;  // the action began before clear()
    TimelineAction action{event.action, nanoseconds(begun->second), nanoseconds(event.time)};
    const bool recomputed = event.recompute_begin < event.recompute_end;
    action.recompute_begin = recomputed ? nanoseconds(event.recompute_begin) : action.begin;
    action.recompute_end = recomputed ? nanoseconds(event.recompute_end) : action.begin;
    action.failed = event.failed;
    buffer.begun.erase(begun);
    buffer.records.push_back({event.run, action});
  }

  std::vector<StepTimeline> steps() const {
    std::map<int64_t, StepTimeline> by_run;
    const std::shared_lock<std::shared_mutex> all(mutex_);
    for (size_t worker = 0; worker < buffers_.size(); ++worker) {
      const std::lock_guard<std::mutex> lock(buffers_[worker]->mutex);
      for (const Record& record : buffers_[worker]->records) {
        StepTimeline& step = by_run[record.run];
        if (step.workers.size() <= worker) step.workers.resize(worker + 1);
        step.workers[worker].push_back(record.action);
      }
    }
    // An unfinished action is noted only now, because by_run now has all steps of which an action
    // has ended.
    for (const auto& buffer : buffers_) {
      const std::lock_guard<std::mutex> lock(buffer->mutex);
      for (const auto& [run, begin] : buffer->begun) {
        const auto step = by_run.find(run);
        if (step != by_run.end()) step->second.unfinished = true;
      }
    }
    std::vector<StepTimeline> steps;
    for (auto& [run, step] : by_run) {
      step.run = run;
      steps.push_back(std::move(step));
    }
    std::stable_sort(steps.begin(), steps.end(), [](const StepTimeline& a, const StepTimeline& b) {
      return a.begin() < b.begin();
    });
    return steps;
  }

  void clear() {
    const std::shared_lock<std::shared_mutex> all(mutex_);
    for (const auto& buffer : buffers_) {
      const std::lock_guard<std::mutex> lock(buffer->mutex);
      buffer->begun.clear();
      buffer->records.clear();
    }
  }

 private:
  Buffer& buffer(size_t worker) {
    {
      const std::shared_lock<std::shared_mutex> all(mutex_);
      if (worker < buffers_.size()) return *buffers_[worker];
    }
    const std::unique_lock<std::shared_mutex> all(mutex_);
    while (buffers_.size() <= worker) buffers_.push_back(std::make_unique<Buffer>());
    return *buffers_[worker];
  }

  mutable std::shared_mutex mutex_;               // guards the list, not the buffers in it
  std::vector<std::unique_ptr<Buffer>> buffers_;  // [worker]; a buffer is never removed
};

Timeline::Timeline() : log_(std::make_shared<Log>()) {}
Timeline::~Timeline() = default;
Timeline::Timeline(Timeline&&) noexcept = default;
Timeline& Timeline::operator=(Timeline&&) noexcept = default;

Observer Timeline::observer() {
  return [log = log_](const Event& event) { log->add(event); };
}

std::vector<StepTimeline> Timeline::steps() const {
  std::vector<StepTimeline> steps = log_->steps();
  const int64_t first = steps.empty() ? 0 : steps.front().begin();
  for (StepTimeline& step : steps) move_clock(step, -first);
  return steps;
}

std::vector<StepTimeline> Timeline::steps_of_steady_clock() const { return log_->steps(); }

void Timeline::clear() { log_->clear(); }

void Timeline::write_chrome_trace(const std::string& path,
                                  const std::optional<Routes>& routes) const {
  std::ofstream file(path);
  file << to_chrome_trace({{"pipeline", steps(), routes}});
  file.flush();
  if (!file) {
    throw std::runtime_error("cannot write the trace to '" + path + "': " + std::strerror(errno));
  }
}

}  // namespace gpipe
