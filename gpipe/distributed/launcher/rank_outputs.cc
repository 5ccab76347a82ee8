#include "gpipe/distributed/launcher/rank_outputs.h"

#include <fcntl.h>
#include <sys/signalfd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <stdexcept>

namespace gpipe::distributed {

int RankOutputs::open_log(int64_t rank, const char* end) const {
  if (log_directory_.empty()) return -1;
  const std::string path = log_directory_ + "/rank_" + std::to_string(rank) + end;
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) throw std::runtime_error("cannot write " + path + ": " + std::strerror(errno));
  return fd;
}

bool RankOutputs::read_some(RankStream& stream) {
  if (stream.from < 0) return false;
  ssize_t size = 0;
  do {
    size = read(stream.from, buffer_.data(), buffer_.size());
  } while (size < 0 && errno == EINTR);
  if (size < 0) return false;
  const std::string_view bytes(buffer_.data(), static_cast<std::size_t>(size));
  if (size == 0) {
    close(std::exchange(stream.from, -1));
    stream.to->push(stream.lines.finish());
  } else {
    stream.has_written = true;
    stream.to->push(stream.lines.add(bytes));
    write_log(stream, bytes);
  }
  return size > 0;
}

void RankOutputs::read_rest(RankStream& stream) {
  constexpr int kMostReads = 32;  // more than a pipe holds
  for (int i = 0; i < kMostReads && read_some(stream); ++i) {
  }
}

void RankOutputs::drain(RankStream& stream) {
  read_rest(stream);
  stream.to->push(stream.lines.finish());
}

void RankOutputs::write_log(RankStream& stream, std::string_view bytes) {
  while (stream.log >= 0 && !bytes.empty()) {
    const ssize_t written = write(stream.log, bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      say("a file in " + log_directory_ +
          " cannot be written to any longer: " + std::strerror(errno));
      close(std::exchange(stream.log, -1));
    }
  }
}

void RankOutputs::add_waits(std::vector<pollfd>& waits) const {
  for (const OutputQueue* queue : {&to_output_, static_cast<const OutputQueue*>(to_error_)}) {
    if (!queue->empty()) waits.push_back({queue->fd(), POLLOUT, 0});
  }
}

void RankOutputs::write_some() {
  to_output_.write_some();
  to_error_->write_some();
}

void RankOutputs::write_all(int signals) {
  for (;;) {
    write_some();
    std::vector<pollfd> waits = {{signals, POLLIN, 0}};
    add_waits(waits);
    if (waits.size() == 1) return;
    poll(waits.data(), waits.size(), -1);
    signalfd_siginfo info;
    while (read(signals, &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
      const uint32_t signal = info.ssi_signo;
      if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP) return;
    }
  }
}

bool RankOutputs::finish(int signals) {
  write_all(signals);
  const int error = to_output_.error() != 0 ? to_output_.error() : to_error_->error();
  if (error == 0) return false;
  say(std::string("output was lost: ") + std::strerror(error));
  write_all(signals);
  return true;
}

}  // namespace gpipe::distributed
