// Families: how published models call what a TransformerOptions describes, in config.json and in
// their files of weights. A family is a table; a new one needs no class.
#ifndef MODELS_FAMILIES_H_
#define MODELS_FAMILIES_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "models/config_fields.h"
#include "models/transformer_options.h"

namespace gpipe::models::internal {

// Which part of our parameter a tensor of a file holds, or in which form.
enum class WeightPart : uint8_t {
  kAll,
  kTransposed,
  kQueries,  // rows of `qkv`
  kKeys,
  kValues,
  // One expert's part of the matrices of all; "@" in the name stands for the expert's number.
  kExpertGate,
  kExpertUp,
  kExpert,
  kAllExperts,  // the name has no ".weight"
};

// The rows [first, second) of our parameter, of `rows` rows, that a tensor of a file is: all but
// for queries, keys and values.
std::pair<int64_t, int64_t> rows_of(WeightPart part, const TransformerOptions& options,
                                    int64_t rows);
bool is_of_experts(WeightPart part);

// "#" stands for the number of a block. Without ".weight" and ".bias".
struct WeightName {
  std::string theirs, ours;
  WeightPart part = WeightPart::kAll;
};

struct Family {
  std::string model_type;
  std::string architecture;  // the class in Python's transformers
  TransformerKind kind;      // of the options that the fields change
  // Reads or writes all fields that change what is computed.
  void (*fields)(ConfigFields& fields, TransformerOptions& options);
  // In the order of a file that transformers writes. Begins with the embedding; not the head, which
  // is "lm_head" for all.
  std::vector<WeightName> weights;
  std::string prefix = "model.";  // of theirs; files of a model without its head have none
  // Ends of names of tensors that older versions saved although they are computed.
  std::vector<std::string> computed = {".rotary_emb.inv_freq"};
  std::string old_head = {};  // another name of the head's matrix
  // The names of files in which all experts are one tensor, if the family has experts: what version
  // 5 of transformers computes with, and writes if it is asked to.
  std::vector<WeightName> fused_weights = {};
};

const std::vector<Family>& families();
// Null if there is none.
const Family* family_of(const std::string& model_type);
// "'gemma', 'gpt2' or 'llama'"
std::string family_names();

}  // namespace gpipe::models::internal

#endif  // MODELS_FAMILIES_H_
