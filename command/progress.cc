#include "command/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <utility>

namespace gpipe::command {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kBarWidth = 20;
// Returns to the first column and erases to the end of the line.
constexpr char kEraseLine[] = "\r\x1b[K";

double seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

Progress::Progress(std::ostream& out, std::string label, int64_t total, ProgressOptions options)
    : out_(out), label_(std::move(label)), total_(total), options_(std::move(options)) {
  if (!options_.now) options_.now = [] { return Clock::now(); };
  if (options_.interval.count() < 0) {
    options_.interval = std::chrono::milliseconds(options_.terminal ? 100 : 10000);
  }
  begin_ = options_.now();
  last_ = begin_;
}

Progress::Progress(const InterruptScope& interrupt, std::string label, int64_t total)
    : Progress(std::cerr, std::move(label), total, terminal_options(STDERR_FILENO)) {
  interrupt_ = &interrupt;
}

Progress::~Progress() { finish(); }

void Progress::update(int64_t done, const std::string& note) {
  if (interrupt_ != nullptr) interrupt_->check();
  const Clock::time_point now = options_.now();
  // The first line on a terminal is drawn at once, to show that the work has begun.
  if (now - last_ < options_.interval && !(options_.terminal && !drawn_)) return;
  last_ = now;
  std::string text = line(done, note, now - begin_);
  if (options_.terminal) {
    // The last column stays free, because some terminals wrap the line when it is written.
    const std::size_t room = static_cast<std::size_t>(std::max(options_.width - 1, 1));
    if (text.size() > room) text.resize(room);
    out_ << kEraseLine << text << std::flush;
  } else {
    out_ << text << '\n' << std::flush;
  }
  drawn_ = true;
}

void Progress::finish() {
  if (options_.terminal && drawn_) out_ << kEraseLine << std::flush;
  drawn_ = false;
}

std::string Progress::line(int64_t done, const std::string& note, Clock::duration elapsed) const {
  std::string text = label_ + " ";
  if (total_ > 0) {
    const double share =
        std::clamp(static_cast<double>(done) / static_cast<double>(total_), 0.0, 1.0);
    if (options_.terminal) {
      const int filled = static_cast<int>(share * kBarWidth);
      text += "[" + std::string(static_cast<std::size_t>(filled), '#') +
              std::string(static_cast<std::size_t>(kBarWidth - filled), '.') + "] ";
    }
    text += std::to_string(static_cast<int>(share * 100)) + "% " + std::to_string(done) + "/" +
            std::to_string(total_);
    if (share > 0) {
      text += " | left " + format_duration(seconds(elapsed) * (1 - share) / share);
    }
  } else {
    text += std::to_string(done) + " | " + format_duration(seconds(elapsed));
  }
  if (!note.empty()) text += " | " + note;
  return text;
}

bool is_terminal(int file_descriptor) {
  if (isatty(file_descriptor) == 0) return false;
  const char* term = std::getenv("TERM");
  return term != nullptr && std::strcmp(term, "dumb") != 0;
}

ProgressOptions terminal_options(int file_descriptor) {
  ProgressOptions options;
  options.terminal = is_terminal(file_descriptor);
  winsize size = {};
  if (options.terminal && ioctl(file_descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    options.width = size.ws_col;
  }
  return options;
}

std::string format_duration(double seconds) {
  constexpr double kMost = 1000.0 * 3600;
  if (!(seconds >= 0 && seconds < kMost)) return "-";
  const long long whole = std::llround(seconds);
  char text[32];
  if (whole >= 3600) {
    std::snprintf(text, sizeof text, "%lld:%02lld:%02lld", whole / 3600, whole / 60 % 60,
                  whole % 60);
  } else {
    std::snprintf(text, sizeof text, "%lld:%02lld", whole / 60, whole % 60);
  }
  return text;
}

}  // namespace gpipe::command
