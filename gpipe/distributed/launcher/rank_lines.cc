#include "gpipe/distributed/launcher/rank_lines.h"

#include <limits.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace gpipe::distributed {

std::string RankLines::add(std::string_view bytes) {
  std::string lines;
  while (!bytes.empty()) {
    const std::size_t room = kLongestLine - partial_.size();
    const std::size_t newline = bytes.substr(0, room).find('\n');
    const bool whole = newline != std::string_view::npos;
    const std::size_t taken = whole ? newline : std::min(room, bytes.size());
    partial_.append(bytes.substr(0, taken));
    bytes.remove_prefix(whole ? taken + 1 : taken);
    if (!whole && partial_.size() < kLongestLine) break;
    lines.append(prefix_).append(partial_).push_back('\n');
    partial_.clear();
  }
  return lines;
}

std::string RankLines::finish() {
  if (partial_.empty()) return "";
  return prefix_ + std::exchange(partial_, "") + "\n";
}

OutputQueue::OutputQueue(int fd) : fd_(fd) {}

void OutputQueue::push(std::string_view text) {
  if (!gone_) pending_.append(text);
}

void OutputQueue::write_some() {
  std::size_t written = 0;
  while (written < pending_.size() && !gone_) {
    pollfd ready = {fd_, POLLOUT, 0};
    if (poll(&ready, 1, 0) < 1) break;
    // A pipe that is ready takes this many bytes without blocking.
    const std::size_t size = std::min<std::size_t>(pending_.size() - written, PIPE_BUF);
    const ssize_t result = write(fd_, pending_.data() + written, size);
    if (result > 0) {
      written += static_cast<std::size_t>(result);
    } else if (errno != EINTR && errno != EAGAIN) {
      gone_ = true;  // later output is dropped, and the run goes on
      if (errno != EPIPE) error_ = errno;
    } else if (errno == EAGAIN) {
      break;
    }
  }
  pending_.erase(0, gone_ ? pending_.size() : written);
}

bool is_same_file(int a, int b) {
  struct stat first = {};
  struct stat second = {};
  if (fstat(a, &first) != 0 || fstat(b, &second) != 0) return false;
  return first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

}  // namespace gpipe::distributed
