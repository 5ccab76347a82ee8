#include "gpipe/distributed/sockets/new_listeners.h"

#include <dirent.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>

namespace gpipe::distributed {
namespace {

std::set<int> open_descriptors() {
  std::set<int> descriptors;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc/self/fd"), closedir);
  if (!folder) return descriptors;
  while (const dirent* entry = readdir(folder.get())) {  // NOLINT(concurrency-mt-unsafe): ours only
    if (entry->d_name[0] != '.') descriptors.insert(std::atoi(entry->d_name));
  }
  descriptors.erase(dirfd(folder.get()));
  return descriptors;
}

bool is_listening(int descriptor) {
  int listens = 0;
  socklen_t size = sizeof listens;
  return getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens != 0;
}

}  // namespace

NewListeners::NewListeners() : before_(open_descriptors()) {}

void NewListeners::find() {
  found_.clear();
  const auto is_new = [this](int descriptor) { return before_.count(descriptor) == 0; };
  for (const int epoll : open_descriptors()) {
    if (!is_new(epoll)) continue;
    // An epoll's file has a line for each descriptor that it waits for: "tfd:        5 events:
    //   19 data: 7f1c...".
    std::ifstream info("/proc/self/fdinfo/" + std::to_string(epoll));
    for (std::string line; std::getline(info, line);) {
      std::istringstream words(line);
      std::string word;
      Waited waited{epoll, -1, 0};
      if (!(words >> word >> waited.listener) || word != "tfd:") continue;
      while (words >> word && word != "data:") {
      }
      if (!(words >> std::hex >> waited.data)) continue;
      if (is_new(waited.listener) && is_listening(waited.listener)) found_.push_back(waited);
    }
  }
  std::sort(found_.begin(), found_.end(),
            [](const Waited& a, const Waited& b) { return a.listener < b.listener; });
}

void NewListeners::ignore_all() const {
  for (const Waited& waited : found_) {
    // The socket stays in the epoll, with no events, because its owner expects to find it there
    // when it closes. If one of these calls fails, connections are accepted as before.
    epoll_event nothing{};
    nothing.data.u64 = waited.data;
    (void)epoll_ctl(waited.epoll, EPOLL_CTL_MOD, waited.listener, &nothing);
    (void)listen(waited.listener, 0);
  }
}

std::vector<int> NewListeners::found() const {
  std::vector<int> listeners;
  for (const Waited& waited : found_) listeners.push_back(waited.listener);
  return listeners;
}

}  // namespace gpipe::distributed
