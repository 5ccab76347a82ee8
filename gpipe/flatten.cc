#include "gpipe/flatten.h"

#include <c10/util/Exception.h>

#include <map>
#include <string>
#include <typeinfo>
#include <utility>

namespace gpipe {
namespace {

using torch::nn::SequentialImpl;

class Flattener {
 public:
  // `path`: the Sequential's place, with dots; empty for the whole.
  void add(SequentialImpl& from, const std::string& path) {
    const auto children = from.named_children();
    size_t index = 0;
    for (torch::nn::AnyModule& layer : from) {
      const std::string& name = children[index++].key();
      const std::string place = path.empty() ? name : path + "." + name;
      const torch::nn::Module& module = *layer.ptr();
      if (typeid(module) == typeid(SequentialImpl)) {
        add(*std::static_pointer_cast<SequentialImpl>(layer.ptr()), place);
      } else {
        push(layer, place);
      }
    }
  }
  torch::nn::Sequential take() { return std::move(flat_); }

 private:
  void push(const torch::nn::AnyModule& layer, const std::string& place) {
    std::string name = place;
    for (char& letter : name) letter = letter == '.' ? '_' : letter;
    const auto [other, fresh] = places_.emplace(name, place);
    TORCH_CHECK_VALUE(fresh, "flatten: the layers '", other->second, "' and '", place,
                      "' would both be called '", name, "'; give one of them another name");
    flat_->push_back(name, layer);
  }

  std::map<std::string, std::string> places_;  // of each name
  torch::nn::Sequential flat_;
};

}  // namespace

torch::nn::Sequential flatten(const torch::nn::Sequential& nested) {
  TORCH_CHECK_VALUE(!nested.is_empty(), "flatten was given an empty module holder");
  Flattener flattener;
  flattener.add(*nested, "");
  torch::nn::Sequential flat = flattener.take();
  flat->train(nested->is_training());
  return flat;
}

}  // namespace gpipe
