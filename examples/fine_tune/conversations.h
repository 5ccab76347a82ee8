// Conversations: what prepare.py has written, as rows of tokens to train on.
//
// A file of safetensors with three tensors, whatever has written it:
//   ids      (tokens), int32 or int64: the tokens of all conversations, one behind the other
//   mask     (tokens), bool, uint8, int32 or int64: 1 where a token is learned, 0 where it is only
//            read; an answer's tokens, with the one that ends it
//   offsets  (conversations + 1), int32 or int64: conversation k has the tokens from offsets[k] to
//            before offsets[k + 1]; the first is 0, the last the number of all tokens
// Its metadata may name the tokenizer's files (tokenizer.h).
#ifndef FINE_TUNE_CONVERSATIONS_H_
#define FINE_TUNE_CONVERSATIONS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "examples/common/packed_rows.h"

namespace fine_tune {

class Conversations {
 public:
  // A conversation has a row for itself, or shares one (PackedRows). What is behind its first
  // length + 1 tokens is left out, and so is a conversation without an answer in these.
  //
  // Throws std::runtime_error with the path and the reason for a file that cannot be read, that
  // lacks a tensor or has one of another type or length, for offsets that do not rise, for an id
  // that is not one of the model's `vocabulary` tokens, and where no answer is left.
  Conversations(const std::string& path, int64_t vocabulary, int64_t length);

  examples::PackedRows rows(int64_t length, bool packed, uint64_t seed) const;

  int64_t size() const { return static_cast<int64_t>(pieces_.size()); }
  int64_t answer_tokens() const { return answer_tokens_; }
  int64_t shortened() const { return shortened_; }  // those left out count, too
  int64_t left_out() const { return left_out_; }
  // How many conversations have more than `tokens` tokens that the model is given.
  int64_t longer_than(int64_t tokens) const;
  // The metadata that prepare.py has noted beside the tensors (tokenizer.h).
  const std::map<std::string, std::string>& made_by() const { return made_by_; }
  // A text that stands for the file in a checkpoint: the number of bytes and a checksum.
  const std::string& content() const { return content_; }

 private:
  struct Piece {
    int64_t begin = 0;   // the first token, in `ids_`
    int64_t tokens = 0;  // what the model is given: all but the last
  };

  at::Tensor ids_, mask_;  // (tokens), int64 and bool
  std::vector<Piece> pieces_;
  int64_t answer_tokens_ = 0, shortened_ = 0, left_out_ = 0;
  std::map<std::string, std::string> made_by_;
  std::string content_;
};

}  // namespace fine_tune

#endif  // FINE_TUNE_CONVERSATIONS_H_
