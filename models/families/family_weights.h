// WeightName: which tensor of a published file is which parameter of ours, or a part of one. Also
// the lists of these names that families have.
#ifndef MODELS_FAMILIES_FAMILY_WEIGHTS_H_
#define MODELS_FAMILIES_FAMILY_WEIGHTS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "models/transformer_options.h"

namespace gpipe::models::internal {

// The part of our parameter that a file's tensor holds, or its form.
enum class WeightPart : uint8_t {
  kAll,
  kTransposed,
  kQueries,  // rows of `qkv`
  kKeys,
  kValues,
  // One expert's part of the matrices of all experts. "@" in the name stands for the expert's
  // number.
  kExpertGate,
  kExpertUp,
  kExpert,
  kAllExperts,  // the name has no ".weight"
};

// The rows [first, second) that a file's tensor holds of our parameter of `rows` rows: all rows,
// except for queries, keys and values.
std::pair<int64_t, int64_t> rows_of(WeightPart part, const TransformerOptions& options,
                                    int64_t rows);
bool is_of_experts(WeightPart part);

// The names of a tensor in a file and of our parameter, without ".weight" and ".bias". "#" stands
// for the number of a block.
struct WeightName {
  std::string theirs, ours;
  WeightPart part = WeightPart::kAll;
};

// The names of all weights of a family, in the order of a file that transformers writes. `fused`:
// all experts are in one tensor (Family::fused_weights).
std::vector<WeightName> gpt2_weights(WeightPart matrix);  // `matrix`: kAll or kTransposed
std::vector<WeightName> llama_weights();
std::vector<WeightName> llama_weights_with_head_norms();
std::vector<WeightName> phi3_weights();
std::vector<WeightName> olmo2_weights();
std::vector<WeightName> mixtral_weights();
std::vector<WeightName> fused_mixtral_weights();
std::vector<WeightName> qwen2_moe_weights(bool fused);
std::vector<WeightName> qwen3_moe_weights(bool fused);
std::vector<WeightName> gemma2_weights();
std::vector<WeightName> gemma3_weights();
std::vector<WeightName> gpt_neox_weights();
std::vector<WeightName> starcoder2_weights();

}  // namespace gpipe::models::internal

#endif  // MODELS_FAMILIES_FAMILY_WEIGHTS_H_
