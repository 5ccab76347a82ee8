// write_samples: lets a language model write.
#ifndef LANGUAGE_MODEL_SAMPLE_H_
#define LANGUAGE_MODEL_SAMPLE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "examples/language_model/network.h"

namespace language_model {

struct SampleOptions {
  int64_t samples = 1;  // the number of texts, each a row; at most Network::most_draws()
  int64_t bytes = 300;  // of each text
  std::string prompt;
  double temperature = 1;
  uint64_t seed = 0;
  // How many tokens the network looks back at, at most.
  int64_t length = 256;
  // Whether keys and values of earlier tokens are kept (models/kv_cache.h). If not, each byte takes
  // a forward over all tokens before it.
  bool cache = true;
};

// Returns the texts, each after its prompt. A text may have the ends of documents; a new document
// does not see the one before. A text that is longer than `length` goes on from its last half;
// without a cache, from its last `length` tokens. Requires evaluation mode: see Network::train().
//
// All processes must call it, and get the same texts.
std::vector<std::string> write_samples(Network& network, const SampleOptions& options);

// The text without control characters, for a terminal. A model that has learned little writes
// control characters.
std::string printable(std::string text);

}  // namespace language_model

#endif  // LANGUAGE_MODEL_SAMPLE_H_
