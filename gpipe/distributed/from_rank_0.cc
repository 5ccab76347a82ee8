#include "gpipe/distributed/from_rank_0.h"

#include <exception>
#include <stdexcept>

#include "gpipe/distributed/control/exception_text.h"
#include "gpipe/internal/processes/processes.h"

namespace gpipe {
namespace {

constexpr char kMade = '+';
constexpr char kFailed = '-';

}  // namespace

std::string from_rank_0(const World& world, const std::function<std::string()>& make) {
  internal::Processes* const processes = world.processes().get();
  if (processes == nullptr) return make();
  return internal::in_call(processes, [&] {
    std::string own;
    std::exception_ptr error;
    if (world.rank() == 0) {
      try {
        own = kMade + make();
      } catch (...) {
        error = std::current_exception();
        own = kFailed + distributed::text_of_current_exception();
      }
    }
    const std::string made =
        internal::exchange_long(*processes, "from_rank_0", own, /*is_patient=*/true).at(0);
    if (made.empty() || made[0] != kMade) {
      if (!error) error = std::make_exception_ptr(std::runtime_error("rank 0: " + made.substr(1)));
      throw internal::FoundByAll{error};
    }
    return made.substr(1);
  });
}

}  // namespace gpipe
