// partition: finds exactly which layers go into which partition for given costs of the layers.
//
// Needs no LibTorch and measures nothing.
//
// Numbers: costs are taken as multiples of a unit, a power of two such that all costs sum to at
// least 2^60 and less than 2^62 units. Other values are rounded to the nearest unit. (So whole
// numbers that sum to at most 2^60 are exact.) Everything after that is exact: the answer depends
// neither on the machine nor on an order of additions, and scaling all costs by a power of two does
// not change it. docs/design/balance.md says how and why.
#ifndef BALANCE_CUT_PARTITION_H_
#define BALANCE_CUT_PARTITION_H_

#include <cstdint>
#include <vector>

namespace gpipe::balance {

// Layers `first` to `last`, both included, counted from 0.
struct LayerRange {
  int64_t first;
  int64_t last;
};

// An empty list means that the option is not used.
struct PartitionOptions {
  // [partition] How long the partition takes for a cost of 1: 2 for a device half as fast as the
  // one on which the costs were measured. Above 0; rounded to 2^-62 of the largest. Default: 1 for
  // all.
  std::vector<double> slowness;

  // [layer] How much the layer needs of its partition's limit, in any unit, for example bytes. At
  // least 0, with a sum below 2^63. Default: no limits.
  std::vector<int64_t> sizes;
  // [partition] The limit of the sum of its layers' sizes. Required with `sizes`.
  std::vector<int64_t> size_limits;

  // Ranges of layers that must not be separated. Ranges may overlap.
  std::vector<LayerRange> keep_together;

  // [i] The time that a cut between layers i and i + 1 costs the partition before it (`send_costs`)
  // and the one behind it (`receive_costs`), independent of their slowness. In the unit of the
  // costs. Default: 0 for all.
  std::vector<double> send_costs;
  std::vector<double> receive_costs;
};

// Cuts the layers into consecutive partitions of at least one layer each, if layer i costs
// `costs[i]`. Returns the number of layers of each: the `balance` of GPipeOptions.
//
// A partition's weight is the sum of its layers' costs. Its time is slowness x weight + the costs
// of its cuts. Among all cuts that the options allow, the result has
//   1. the least longest time;
//   2. then the least sum of weight x time: without options, of squared weights;
//   3. then the least sum of squared numbers of layers;
//   4. then the fewest layers in the first partition, then in the second, and so on, for early
//      partitions hold the most micro-batches.
//
//   partition({1, 2, 3, 4, 5, 6}, 2);  // {4, 2}
//
// Without cut costs it takes O(p n log n) time for n layers and p partitions (a thousand layers
// into 64: a few ms), with them O(p n^2) at worst (five thousand: half a second on the worst lists
// known).
//
// Throws std::invalid_argument for fewer than one partition, for more than there are layers or than
// keep_together leaves pieces, for costs that are negative or not finite, for lists of a wrong
// length, and where no cut keeps the size limits.
std::vector<int64_t> partition(const std::vector<double>& costs, int64_t partitions,
                               const PartitionOptions& options = {});

}  // namespace gpipe::balance

#endif  // BALANCE_CUT_PARTITION_H_
