#include "experiments/frame/balance.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "meta/meta_scope.h"

namespace gpipe::experiments {

int64_t layers_of(const models::NamedModel& model) {
  const MetaScope meta;
  return static_cast<int64_t>(model.make()->size());
}

std::vector<int64_t> scale_balance(const std::vector<int64_t>& balance, int64_t layers) {
  const auto partitions = static_cast<int64_t>(balance.size());
  if (layers < partitions) {
    throw std::invalid_argument(std::to_string(layers) + " layers cannot be cut into " +
                                std::to_string(partitions) + " partitions; take a larger --scale");
  }
  int64_t all = 0;
  for (const int64_t part : balance) {
    if (part < 1 || part > std::numeric_limits<int64_t>::max() - all) {
      throw std::invalid_argument("a balance to scale has " + std::to_string(part) +
                                  " layers in a partition; each has at least 1, and all together "
                                  "fewer than 2^63");
    }
    all += part;
  }
  // The ends of partitions are rounded and not their lengths, so that the sum is right.
  std::vector<int64_t> scaled;
  int64_t done = 0;
  int64_t published = 0;
  for (int64_t j = 0; j < partitions; ++j) {
    published += balance[static_cast<std::size_t>(j)];
    const double share = static_cast<double>(published) / static_cast<double>(all);
    const int64_t end = std::clamp<int64_t>(std::llround(share * static_cast<double>(layers)),
                                            done + 1, layers - (partitions - 1 - j));
    scaled.push_back(end - done);
    done = end;
  }
  return scaled;
}

std::vector<int64_t> choose_balance(const std::vector<int64_t>& given,
                                    const std::vector<int64_t>& published,
                                    const std::string& network, int64_t layers) {
  if (given.empty()) return scale_balance(published, layers);
  if (given.size() != published.size()) {
    throw std::invalid_argument("--balance=" + to_text(given) + " is for " +
                                std::to_string(given.size()) + " partitions, not for " +
                                std::to_string(published.size()));
  }
  command::check_balance_sum(given, layers, to_text(given), network);
  return given;
}

}  // namespace gpipe::experiments
