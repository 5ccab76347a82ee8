// default_chunks: the numbers of micro-batches that are tried where none were asked for.
#ifndef BALANCE_CHOOSE_DEFAULT_CHUNKS_H_
#define BALANCE_CHOOSE_DEFAULT_CHUNKS_H_

#include <torch/nn/module.h>

#include <cstdint>
#include <vector>

namespace gpipe::balance {

// All powers of two up to the rows of the mini-batch, and the rows.
//
// Where the model has batch norms in training mode, those are left out with which a micro-batch
// would have one row, unless the mini-batch has no more: statistics of one image say little of the
// others, and of one vector a batch norm takes none at all but throws. Whoever wants them asks for
// them.
std::vector<int64_t> default_chunks(const torch::nn::Module& model, int64_t rows);

}  // namespace gpipe::balance

#endif  // BALANCE_CHOOSE_DEFAULT_CHUNKS_H_
