// OperatorCensus: records which operators of LibTorch run, on any thread.
#ifndef BALANCE_MEMORY_OPERATOR_CENSUS_H_
#define BALANCE_MEMORY_OPERATOR_CENSUS_H_

#include <ATen/record_function.h>

#include <set>
#include <string>

namespace gpipe::balance {

// A census records from its construction to its destruction. Only one may exist at a time.
// Operators that other operators call are recorded, too.
class OperatorCensus {
 public:
  OperatorCensus();
  ~OperatorCensus();
  OperatorCensus(const OperatorCensus&) = delete;
  OperatorCensus& operator=(const OperatorCensus&) = delete;

  // The names of the operators so far, such as "aten::mm". An operator that had an argument in
  // lower precision is also there as "aten::mm(bfloat16)" or "aten::mm(float16)".
  std::set<std::string> operators() const;

  // The names of the operators that no other operator called: the ones that the model, autograd,
  // the pipeline and the optimizer used.
  std::set<std::string> calls() const;

 private:
  at::CallbackHandle handle_;
};

}  // namespace gpipe::balance

#endif  // BALANCE_MEMORY_OPERATOR_CENSUS_H_
