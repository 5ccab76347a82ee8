#include "gpipe/internal/threads/openmp_team.h"

#include <dlfcn.h>
#include <unistd.h>

#include <string_view>

namespace gpipe::internal {
namespace {

const pid_t kProcess = getpid();

// Declarations of OpenMP 5.0's omp.h. That header is not included, because it would only come with
// a compiler flag that also links the compiler's own libgomp, beside LibTorch's.
using PauseResourceAll = int (*)(int kind);
constexpr int kSoft = 1;

PauseResourceAll find_pause() {
  void* const symbol = dlsym(RTLD_DEFAULT, "omp_pause_resource_all");
  Dl_info info;
  if (symbol == nullptr || dladdr(symbol, &info) == 0 || info.dli_fname == nullptr) return nullptr;
  // Only libgomp's function is used, because in other libraries this function acts on all threads
  // of the process.
  const std::string_view path = info.dli_fname;
  if (path.substr(path.rfind('/') + 1).rfind("libgomp", 0) != 0) return nullptr;
  return reinterpret_cast<PauseResourceAll>(symbol);
}

}  // namespace

void release_openmp_team() noexcept {
  static const PauseResourceAll pause = find_pause();
  if (pause != nullptr && getpid() == kProcess) (void)pause(kSoft);
}

}  // namespace gpipe::internal
