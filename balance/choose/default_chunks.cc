#include "balance/choose/default_chunks.h"

#include <c10/util/Exception.h>
#include <torch/nn/modules/batchnorm.h>

#include <algorithm>
#include <string>

#include "gpipe/chunk_sizes.h"

namespace gpipe::balance {
namespace {

// Also sees batch norms of another language: by the name that their module gives itself, or their
// statistics.
bool is_batch_norm(const torch::nn::Module& module) {
  return module.as<torch::nn::BatchNorm1d>() != nullptr ||
         module.as<torch::nn::BatchNorm2d>() != nullptr ||
         module.as<torch::nn::BatchNorm3d>() != nullptr ||
         module.name().find("BatchNorm") != std::string::npos ||
         module.named_buffers(/*recurse=*/false).contains("running_mean");
}

bool has_batch_norms(const torch::nn::Module& model) {
  bool found = false;
  const auto look = [&](const torch::nn::Module& module) {
    found = found || (module.is_training() && is_batch_norm(module));
  };
  model.apply(look);
  return found;
}

bool has_single_row(int64_t rows, int64_t chunks) {
  const std::vector<int64_t> sizes = micro_batch_sizes(rows, chunks);
  return std::find(sizes.begin(), sizes.end(), 1) != sizes.end();
}

}  // namespace

std::vector<int64_t> default_chunks(const torch::nn::Module& model, int64_t rows) {
  std::vector<int64_t> chunks;
  for (int64_t k = 1; k < rows; k *= 2) chunks.push_back(k);
  chunks.push_back(rows);
  if (rows < 2 || !has_batch_norms(model)) return chunks;
  chunks.erase(std::remove_if(chunks.begin(), chunks.end(),
                              [rows](int64_t count) { return has_single_row(rows, count); }),
               chunks.end());
  return chunks;
}

std::vector<int64_t> chunks_to_try(const std::vector<int64_t>& given,
                                   const torch::nn::Module& model, int64_t rows) {
  for (const int64_t count : given) {
    TORCH_CHECK_VALUE(count >= 1 && count <= rows, "chunks has ", count, ", expected 1 to the ",
                      rows, " rows of the mini-batch");
  }
  return given.empty() ? default_chunks(model, rows) : given;
}

}  // namespace gpipe::balance
