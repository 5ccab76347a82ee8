// verify_skippables: the static check that the skips of a model pair up.
#ifndef SKIP_VERIFY_H_
#define SKIP_VERIFY_H_

namespace torch::nn {
class Sequential;
}  // namespace torch::nn

namespace gpipe::skip {

// Checks, without running anything, that the skips of `module` pair up: each name in its namespace
// is stashed by exactly one layer and popped by exactly one later layer. Skippable layers nested in
// the children count too, in the order in which they are registered. A stash and a pop inside one
// child that is not a `Sequential` may be registered in any order, since only that child knows in
// which order it calls them.
//
// Guarantees: the check reads the model and changes nothing.
//
// Throws one c10::TypeError that lists every mismatch, with the child ("child 2", or "child 3.1"
// for a layer nested in child 3) and the name. Mismatches are: a layer that both stashes and pops a
// name; a name stashed or popped again (also after a complete pair: isolate the pairs); a name
// popped but not stashed before; a name stashed but never popped; `module` itself being skippable,
// since only its layers are called. Throws c10::ValueError if `module` has no implementation, or if
// a submodule is a null pointer.
void verify_skippables(const torch::nn::Sequential& module);

}  // namespace gpipe::skip

#endif  // SKIP_VERIFY_H_
