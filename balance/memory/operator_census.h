// OperatorCensus: which operators of LibTorch run, on any thread.
#ifndef BALANCE_MEMORY_OPERATOR_CENSUS_H_
#define BALANCE_MEMORY_OPERATOR_CENSUS_H_

#include <ATen/record_function.h>

#include <set>
#include <string>

namespace gpipe::balance {

// Counts from when it is made until it is destroyed; one at a time. Operators that are called by
// others count, too.
class OperatorCensus {
 public:
  OperatorCensus();
  ~OperatorCensus();
  OperatorCensus(const OperatorCensus&) = delete;
  OperatorCensus& operator=(const OperatorCensus&) = delete;

  // So far, such as "aten::mm"; one that had an argument in lower precision also as
  // "aten::mm(bfloat16)" or "aten::mm(float16)".
  std::set<std::string> operators() const;

 private:
  at::CallbackHandle handle_;
};

}  // namespace gpipe::balance

#endif  // BALANCE_MEMORY_OPERATOR_CENSUS_H_
