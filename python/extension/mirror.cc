#include "python/extension/mirror.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <map>
#include <utility>

namespace gpipe::python {
namespace {

namespace py = pybind11;

// Gives access to a module's registered buffers, because LibTorch has no function that replaces
// one. It reaches the private member because an explicit instantiation may name private members.
torch::OrderedDict<std::string, at::Tensor>& buffers_of(torch::nn::Module& module);
template <auto kMember>
struct BuffersOf {
  friend torch::OrderedDict<std::string, at::Tensor>& buffers_of(torch::nn::Module& module) {
    return module.*kMember;
  }
};
template struct BuffersOf<&torch::nn::Module::buffers_>;

std::string type_name(const py::object& module) {
  return py::str(py::type::handle_of(module).attr("__name__"));
}

// The tensors in a dict of the Python module, by name, without entries that are None. A scripted
// module has no dict, and gives one that nobody else keeps.
struct TensorsIn {
  TensorsIn(const py::object& module, const char* attribute);

  py::dict dict;  // keeps the entries alive
  std::vector<std::pair<PyObject*, const at::Tensor*>> entries;
};

TensorsIn::TensorsIn(const py::object& module, const char* attribute)
    : dict(module.attr(attribute)) {
  PyObject* name = nullptr;
  PyObject* value = nullptr;
  Py_ssize_t place = 0;
  while (PyDict_Next(dict.ptr(), &place, &name, &value) != 0) {
    if (value == Py_None) continue;
    if (!THPVariable_Check(value)) {
      throw py::type_error("'" + std::string(py::str(name)) + "' in " + attribute + " of a " +
                           type_name(module) + " is not a tensor");
    }
    entries.emplace_back(name, &THPVariable_Unpack(value));
  }
}

void take_over(const std::vector<std::pair<PyObject*, const at::Tensor*>>& now,
               torch::OrderedDict<std::string, at::Tensor>& known) {
  size_t k = 0;
  const bool same =
      now.size() == known.size() && std::all_of(now.begin(), now.end(), [&](const auto& entry) {
        const auto& [key, tensor] = known[k++].pair();
        return tensor.is_same(*entry.second) &&
               PyUnicode_CompareWithASCIIString(entry.first, key.c_str()) == 0;
      });
  if (same) return;
  known.clear();
  for (const auto& [name, tensor] : now) known.insert(py::str(name), *tensor);
}

// One level of modules within modules, for a module that has itself as a submodule.
struct Deeper {
  Deeper() {
    if (Py_EnterRecursiveCall(" while a pipeline looks at the modules within a layer") != 0) {
      throw py::error_already_set();
    }
  }
  ~Deeper() { Py_LeaveRecursiveCall(); }
};

// The C++ namespace that belongs to the number of a Python namespace.
const skip::Namespace& namespace_of(int64_t number) {
  static auto* const namespaces = new std::map<int64_t, skip::Namespace>();  // the GIL guards it
  return (*namespaces)[number];
}

}  // namespace

bool Mirror::is_skippable(const py::object& module) { return py::hasattr(module, "_gpipe_skips_"); }

std::shared_ptr<Mirror> Mirror::make(const py::object& module) {
  if (is_skippable(module)) return std::make_shared<WithSkips<Mirror>>(module);
  return std::make_shared<Mirror>(module);
}

Mirror::Mirror(const py::object& module) : torch::nn::Module(type_name(module)), module_(module) {
  update();
}

bool Mirror::update() {
  const Deeper deeper;
  update_tensors(/*all=*/true);
  update_mode();
  return update_children();
}

void Mirror::update_known() {
  update_tensors(/*all=*/false);
  update_mode();
  for (const auto& child : children()) static_cast<Mirror&>(*child).update_known();
}

void Mirror::update_mode() {
  const bool training = py::cast<bool>(module_.get().attr("training"));
  // This also sets the modes of the modules within, whose updates follow.
  if (training != is_training()) torch::nn::Module::train(training);
}

void Mirror::update_tensors(bool all) {
  const auto module = py::reinterpret_borrow<py::object>(module_.get());
  for (const auto& [attribute, known] :
       {std::pair("_parameters", &parameters_), std::pair("_buffers", &buffers_of(*this))}) {
    const TensorsIn now(module, attribute);
    if (all || now.entries.size() == known->size()) take_over(now.entries, *known);
  }
}

bool Mirror::update_children() {
  const py::dict modules = module_.get().attr("_modules");
  const auto known = named_children();
  bool same = true;
  size_t k = 0;
  for (const auto& [name, module] : modules) {
    if (module.is_none()) continue;
    same = same && k < known.size() &&
           static_cast<Mirror&>(*known[k].value()).module().is(module) &&
           PyUnicode_CompareWithASCIIString(name.ptr(), known[k].key().c_str()) == 0;
    ++k;
  }
  if (same && k == known.size()) {
    bool changed = false;
    for (const auto& child : known) {
      changed = static_cast<Mirror&>(*child.value()).update() || changed;
    }
    return changed;
  }
  std::vector<std::shared_ptr<Mirror>> former;
  for (const auto& child : known) {
    unregister_module(child.key());
    former.push_back(std::static_pointer_cast<Mirror>(child.value()));
  }
  for (const auto& [name, module] : modules) {
    if (module.is_none()) continue;
    const auto kept =
        std::find_if(former.begin(), former.end(),
                     [module = module](const auto& mirror) { return mirror->module().is(module); });
    if (kept == former.end()) {
      register_module(py::str(name), make(py::reinterpret_borrow<py::object>(module)));
      continue;
    }
    (*kept)->update();
    register_module(py::str(name), std::move(*kept));
    former.erase(kept);
  }
  return true;
}

std::vector<std::shared_ptr<Mirror>> Mirror::mirrors_with_skips() {
  std::vector<std::shared_ptr<Mirror>> found;
  for (const auto& child : modules(/*include_self=*/false)) {
    auto mirror = std::static_pointer_cast<Mirror>(child);
    if (mirror->skippable() != nullptr) found.push_back(std::move(mirror));
  }
  return found;
}

Mirror* Mirror::find(py::handle module) {
  if (module_.get().is(module)) return this;
  for (const auto& child : children()) {
    if (Mirror* found = static_cast<Mirror&>(*child).find(module)) return found;
  }
  return nullptr;
}

int Mirror::traverse(visitproc visit, void* arg) const {
  Py_VISIT(module().ptr());
  for (const auto& child : children()) {
    const int found = static_cast<const Mirror&>(*child).traverse(visit, arg);
    if (found != 0) return found;
  }
  return 0;
}

void Mirror::stash_tensor(const std::string& name, at::Tensor /*tensor*/) {
  TORCH_CHECK(false, "'", name, "' was stashed by a module without skips");
}

at::Tensor Mirror::pop_tensor(const std::string& name) {
  TORCH_CHECK(false, "'", name, "' was popped by a module without skips");
}

std::vector<std::string> skip_names(const py::object& module, const char* attribute) {
  auto names = py::cast<std::vector<std::string>>(py::list(module.attr(attribute)));
  std::sort(names.begin(), names.end());
  return names;
}

void isolate_as(const py::object& module, skip::Skippable& skippable) {
  for (const auto& [name, number] :
       py::cast<std::map<std::string, int64_t>>(module.attr("_gpipe_skips_")())) {
    skippable.isolate(namespace_of(number), {name});
  }
}

}  // namespace gpipe::python
