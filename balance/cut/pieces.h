// Pieces: where a list of layers may be cut if some layers must stay together.
//
// Needs no LibTorch. Internal to //balance and //diagnose.
#ifndef BALANCE_CUT_PIECES_H_
#define BALANCE_CUT_PIECES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "balance/cut/partition.h"

namespace gpipe::balance {

// Describes the first mistake in ranges of layers to keep together: "keep_together[1] is layers 4
// to 2, expected first <= last, both from 0 to 5". Empty: there is none.
std::string wrong_ranges(int64_t layers, const std::vector<LayerRange>& keep_together);

// Returns the ranges of layers that must not be separated. `pieces` are the numbers of layers of
// all pieces, in order; a piece of one layer is not a range.
std::vector<LayerRange> joined_layers(const std::vector<int64_t>& pieces);

class Pieces {
 public:
  // Ranges may overlap. Throws std::invalid_argument, `prefix` and wrong_ranges(), if the ranges
  // are wrong.
  Pieces(int64_t layers, const std::vector<LayerRange>& keep_together, const std::string& prefix);

  // The number of pieces: no cut can have more partitions.
  int64_t size() const { return static_cast<int64_t>(places_.size()) - 1; }

  // The number of layers before each place where a cut is allowed, including 0 and all of them.
  const std::vector<int64_t>& places() const { return places_; }

  // Whether a cut is allowed behind the first `layers` layers, 0 to all of them.
  bool may_cut(int64_t layers) const { return may_cut_[static_cast<size_t>(layers)]; }

  // Whether every partition has a layer and no piece is cut. `balance` must sum up to all layers.
  bool allow(const std::vector<int64_t>& balance) const;

 private:
  std::vector<bool> may_cut_;  // [layers before]
  std::vector<int64_t> places_;
};

}  // namespace gpipe::balance

#endif  // BALANCE_CUT_PIECES_H_
