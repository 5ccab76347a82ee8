#include "experiments/rivals/resident_peak.h"

#include <dlfcn.h>
#include <malloc.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace gpipe::experiments {
namespace {

int64_t bytes_of(const std::string& status, const std::string& key) {
  std::istringstream lines(status);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind(key + ":", 0) != 0) continue;
    return std::stoll(line.substr(key.size() + 1)) * 1024;  // "VmHWM:   1234 kB"
  }
  throw std::runtime_error("/proc/self/status has no line " + key +
                           "; memory is measured on Linux 4.5 or later only");
}

ResidentMemory resident_memory() {
  std::ostringstream status;
  status << std::ifstream("/proc/self/status").rdbuf();
  return parse_resident_memory(status.str());
}

// Memory that the start of the program has freed would hide later allocations. Both allocators are
// asked, tcmalloc by name: either may be the program's malloc.
void release_free_memory() {
  malloc_trim(0);
  void* const of_tcmalloc = dlsym(RTLD_DEFAULT, "MallocExtension_ReleaseFreeMemory");
  if (of_tcmalloc != nullptr) reinterpret_cast<void (*)()>(of_tcmalloc)();
}

}  // namespace

ResidentMemory parse_resident_memory(const std::string& status) {
  ResidentMemory memory;
  memory.peak = bytes_of(status, "VmHWM");
  memory.anonymous = bytes_of(status, "RssAnon");
  memory.other = bytes_of(status, "RssFile") + bytes_of(status, "RssShmem");
  return memory;
}

ResidentPeak::ResidentPeak() {
  release_free_memory();
  // Sets the peak to what is held now. Where that is forbidden, an earlier peak may be reported.
  std::ofstream("/proc/self/clear_refs") << "5";
  before_ = resident_memory().anonymous;
}

int64_t ResidentPeak::bytes() const {
  const ResidentMemory now = resident_memory();
  return std::max<int64_t>(now.peak - now.other - before_, 0);
}

}  // namespace gpipe::experiments
