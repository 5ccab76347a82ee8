// connect_world(): a World of processes that know their ranks, whoever has told them.
#ifndef GPIPE_DISTRIBUTED_CONNECT_WORLD_H_
#define GPIPE_DISTRIBUTED_CONNECT_WORLD_H_

#include <functional>
#include <string>

#include "gpipe/distributed/meet/environment.h"
#include "gpipe/world.h"

namespace gpipe::distributed {

// World::from_environment(), which says what it throws, with this environment. `name`, `check`: as
// in SessionOptions.
World connect_world(const Environment& environment, const WorldOptions& options,
                    const std::string& name = "", const std::function<void()>& check = nullptr);

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_CONNECT_WORLD_H_
