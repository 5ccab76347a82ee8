// has_tokenizer, check_tokenizer: compare the tokenizer of a model's folder with the one that made
// the token ids.
#ifndef FINE_TUNE_TOKENIZER_H_
#define FINE_TUNE_TOKENIZER_H_

#include <map>
#include <string>

namespace fine_tune {

// Whether the folder has a file with a tokenizer's vocabulary.
bool has_tokenizer(const std::string& folder);

// `made_by`: the files of the tokenizer by which prepare.py has made token ids, with the text that
// stands for each (examples/common/bits.h, content_of); other entries do not count. Throws
// std::runtime_error that names the file if the folder's file of that name has another content,
// because the ids would then stand for other words. A file that is missing on one side is not
// compared.
void check_tokenizer(const std::map<std::string, std::string>& made_by, const std::string& folder);

}  // namespace fine_tune

#endif  // FINE_TUNE_TOKENIZER_H_
