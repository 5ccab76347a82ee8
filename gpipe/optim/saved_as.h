// SavedAs: marks an optimizer that a checkpoint saves as an optimizer of another type, whose states
// and options it has.
#ifndef GPIPE_OPTIM_SAVED_AS_H_
#define GPIPE_OPTIM_SAVED_AS_H_

#include <typeinfo>

namespace gpipe {

// The base class by which code that writes checkpoints finds that type (dynamic_cast).
class SavedAsOther {
 public:
  virtual const std::type_info& saved_type() const = 0;

 protected:
  SavedAsOther() = default;
  SavedAsOther(const SavedAsOther&) = default;
  SavedAsOther& operator=(const SavedAsOther&) = default;
  ~SavedAsOther() = default;
};

template <typename Optimizer>
class SavedAs : public SavedAsOther {
 public:
  const std::type_info& saved_type() const final { return typeid(Optimizer); }

 protected:
  ~SavedAs() = default;
};

}  // namespace gpipe

#endif  // GPIPE_OPTIM_SAVED_AS_H_
