// A plugin of gcc with one pragma: `#pragma gpipe_instantiate` instantiates the templates that were
// asked for so far.
//
// LibTorch's inline functions ask for some 20,000 functions of templates. gcc makes those at the
// end of each file that includes them, whether the file calls them or not: five seconds of a
// processor. In a precompiled header it notes them only, so that each file that starts from it
// makes them again. With this pragma as its last line they are in the header (clang has an option
// for that, -fpch-instantiate-templates). What is emitted does not change.
//
// precompile.sh compiles the plugin, and does without it if that fails, because gcc's headers may
// change from version to version. It was tried with gcc 12.
#include "gcc-plugin.h"
// tree.h must come after gcc-plugin.h.
#include "tree.h"
// These must come after tree.h.
#include "c-family/c-pragma.h"
#include "cp/cp-tree.h"

int plugin_is_GPL_compatible;  // NOLINT(readability-identifier-naming): gcc looks for this name

int plugin_init(plugin_name_args* plugin, plugin_gcc_version*) {
  register_callback(
      plugin->base_name, PLUGIN_PRAGMAS,
      [](void*, void*) {
        c_register_pragma(nullptr, "gpipe_instantiate",
                          [](cpp_reader*) { instantiate_pending_templates(/*retries=*/0); });
      },
      nullptr);
  return 0;
}
