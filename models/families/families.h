// Families: the names that published models use, in config.json and in their files of weights, for
// what a TransformerOptions describes. A family is a table; a new one needs no class.
#ifndef MODELS_FAMILIES_FAMILIES_H_
#define MODELS_FAMILIES_FAMILIES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "models/families/config_fields.h"
#include "models/families/family_weights.h"
#include "models/transformer_options.h"

namespace gpipe::models::internal {

struct Family {
  std::string model_type;
  std::string architecture;  // the class in Python's transformers
  TransformerKind kind;      // the kind of the options before the fields change them
  // Reads or writes all fields that change what is computed.
  void (*fields)(ConfigFields& fields, TransformerOptions& options);
  // The names of the weights, in the order of a file that transformers writes. The first is the
  // embedding. The head is left out, because it is "lm_head" in all families.
  std::vector<WeightName> weights;
  std::string prefix = "model.";  // of the names; absent if the head was not saved
  // Endings of the names of tensors that older versions saved although they are computed.
  std::vector<std::string> computed = {".rotary_emb.inv_freq"};
  std::string old_head = {};  // another name of the head's matrix
  // The names in files that have all experts in one tensor, if the family has experts: the form in
  // which version 5 of transformers computes, and which it writes on demand.
  std::vector<WeightName> fused_weights = {};
};

const std::vector<Family>& families();
// Returns null if there is no such family.
const Family* family_of(const std::string& model_type);
// Throws c10::ValueError if there is no family of the options' name.
const Family& checked_family(const TransformerOptions& options);
// The names as text: "'gemma', 'gpt2' or 'llama'".
std::string family_names();

}  // namespace gpipe::models::internal

#endif  // MODELS_FAMILIES_FAMILIES_H_
