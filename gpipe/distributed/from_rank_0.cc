#include "gpipe/distributed/from_rank_0.h"

#include <exception>
#include <stdexcept>
#include <utility>

#include "gpipe/internal/processes/processes.h"
#include "gpipe/runtime/bytes.h"
#include "text/exception_text.h"

namespace gpipe {

std::string from_rank_0(const World& world, const std::function<std::string()>& make) {
  internal::Processes* const processes = world.processes().get();
  if (processes == nullptr) return make();
  return internal::in_call(processes, [&] {
    std::pair<bool, std::string> own;  // whether it was made, and the text
    std::exception_ptr error;
    if (world.rank() == 0) {
      try {
        own = {true, make()};
      } catch (...) {
        error = std::current_exception();
        own = {false, text::message_of_current_exception()};
      }
    }
    auto [is_made, text] = internal::from_bytes<std::pair<bool, std::string>>(
        internal::exchange_long(*processes, "from_rank_0", internal::to_bytes(own),
                                /*is_patient=*/true)
            .at(0));
    if (is_made) return text;
    if (!error) error = std::make_exception_ptr(std::runtime_error("rank 0: " + text));
    throw internal::FoundByAll{error};
  });
}

}  // namespace gpipe
