// default_chunks: the numbers of micro-batches to try if the caller named none.
#ifndef BALANCE_CHOOSE_DEFAULT_CHUNKS_H_
#define BALANCE_CHOOSE_DEFAULT_CHUNKS_H_

#include <torch/nn/module.h>

#include <cstdint>
#include <vector>

namespace gpipe::balance {

// All powers of two below the number of rows of the mini-batch, and the number of rows itself.
//
// If the model has batch norms in training mode, numbers that give a micro-batch a single row are
// left out, unless the mini-batch itself has one row. The statistics of one image say little about
// the others, and a batch norm of vectors throws on a single row. A caller who wants these numbers
// can name them.
std::vector<int64_t> default_chunks(const torch::nn::Module& model, int64_t rows);

// Returns the caller's numbers `given`, or default_chunks() if there are none. Throws
// c10::ValueError if one of them is not from 1 to the rows.
std::vector<int64_t> chunks_to_try(const std::vector<int64_t>& given,
                                   const torch::nn::Module& model, int64_t rows);

}  // namespace gpipe::balance

#endif  // BALANCE_CHOOSE_DEFAULT_CHUNKS_H_
