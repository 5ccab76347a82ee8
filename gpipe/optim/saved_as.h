// SavedAs: marks an optimizer that a checkpoint saves as an optimizer of another type, whose states
// and options it has.
#ifndef GPIPE_OPTIM_SAVED_AS_H_
#define GPIPE_OPTIM_SAVED_AS_H_

#include <c10/util/Type.h>

#include <string>
#include <typeinfo>

namespace gpipe {

// Code that writes checkpoints finds the other type by this base class (dynamic_cast).
class SavedAsOther {
 public:
  // Returns the type as checkpoints name it, e.g. "torch::optim::Adam".
  virtual std::string saved_type() const = 0;
  // Whether the optimizer takes options from a checkpoint that it does not have itself. Python's
  // learning-rate schedulers add some, and numbers in Python may be whole or not.
  virtual bool takes_other_options() const { return false; }

 protected:
  SavedAsOther() = default;
  SavedAsOther(const SavedAsOther&) = default;
  SavedAsOther& operator=(const SavedAsOther&) = default;
  ~SavedAsOther() = default;
};

template <typename Optimizer>
class SavedAs : public SavedAsOther {
 public:
  std::string saved_type() const final { return c10::demangle(typeid(Optimizer).name()); }

 protected:
  ~SavedAs() = default;
};

}  // namespace gpipe

#endif  // GPIPE_OPTIM_SAVED_AS_H_
