// find_skippables: finds the skippable layers of a module, and where they are.
#ifndef SKIP_WALK_H_
#define SKIP_WALK_H_

#include <cstdint>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace gpipe::skip {
class Skippable;
}  // namespace gpipe::skip

namespace gpipe::skip::internal {

// A skippable layer and where it was found.
struct Found {
  Skippable* skippable;
  std::string path;                               // "3.1", relative to the root; "" for the root
  std::vector<const torch::nn::Module*> parents;  // from the root down, without the layer itself
};

// Every occurrence of a skippable layer at or below `root`, parents before children, in the order
// of registration. A layer registered in two places occurs twice.
std::vector<Found> find_skippables(torch::nn::Module& root);

}  // namespace gpipe::skip::internal

#endif  // SKIP_WALK_H_
