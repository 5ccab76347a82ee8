load("//third_party:system.bzl", "PREFIXES", "missing")

# Maps Abseil's Bazel packages to their targets. A target `name` is described by the pkg-config file
# `absl_name.pc`; "name=other" says that the file is `absl_other.pc`.
_TARGETS = {
    "algorithm": ["algorithm", "container=algorithm_container"],
    "base": ["base", "config", "core_headers", "dynamic_annotations", "endian", "log_severity"],
    "cleanup": ["cleanup"],
    "container": [
        "btree",
        "fixed_array",
        "flat_hash_map",
        "flat_hash_set",
        "inlined_vector",
        "node_hash_map",
        "node_hash_set",
    ],
    "debugging": ["failure_signal_handler", "leak_check", "stacktrace", "symbolize"],
    "flags": [
        "commandlineflag=flags_commandlineflag",
        "config=flags_config",
        "flag=flags",
        "marshalling=flags_marshalling",
        "parse=flags_parse",
        "reflection=flags_reflection",
        "usage=flags_usage",
    ],
    "functional": ["any_invocable", "bind_front", "function_ref"],
    "hash": ["hash"],
    "memory": ["memory"],
    "meta": ["type_traits"],
    "numeric": ["bits", "int128"],
    "random": ["bit_gen_ref=random_bit_gen_ref", "random=random_random"],
    "status": ["status", "statusor"],
    "strings": ["cord", "str_format", "strings"],
    "synchronization": ["synchronization"],
    "time": ["time"],
    "types": ["any", "compare", "optional", "span", "variant"],
    "utility": ["utility"],
}

_PROBE = "include/absl/base/config.h"
_PACKAGE = "libabsl-dev"

# This limit is far deeper than Abseil's packages go.
_MAX_DEPTH = 64

def _pkgconfig_folder(repository_ctx):
    for prefix in PREFIXES:
        for lib in ["lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "lib64", "lib", "share"]:
            folder = repository_ctx.path(prefix + "/" + lib + "/pkgconfig")
            if folder.get_child("absl_base.pc").exists:
                return folder
    missing(repository_ctx, _PROBE + " with pkg-config files", _PACKAGE)
    return None

def _field(text, name):
    for line in text.split("\n"):
        if line.startswith(name + ":"):
            return line[len(name) + 1:].strip()
    return ""

def _describe(repository_ctx, folder, module, cache):
    """Returns struct(libs, requires) of one pkg-config module, None if there is no such file."""
    if module not in cache:
        path = folder.get_child(module + ".pc")
        if not path.exists:
            cache[module] = None
        else:
            text = repository_ctx.read(path)
            cache[module] = struct(
                libs = [word for word in _field(text, "Libs").split(" ") if word.startswith("-labsl_")],
                requires = [word.split("=")[0].strip() for word in _field(text, "Requires").split(",") if word.strip()],
            )
    return cache[module]

def _closure(repository_ctx, folder, module, cache):
    """Link options of a module and all it requires: inline functions in headers reach far."""
    seen = {module: True}
    front = [module]
    libs = {}
    for _ in range(_MAX_DEPTH):
        following = []
        for each in front:
            described = _describe(repository_ctx, folder, each, cache)
            if described == None:
                continue
            for lib in described.libs:
                libs[lib] = True
            for required in described.requires:
                if required not in seen:
                    seen[required] = True
                    following.append(required)
        front = following
    return libs.keys()

def _absl_impl(repository_ctx):
    folder = _pkgconfig_folder(repository_ctx)
    cache = {}
    for package, targets in _TARGETS.items():
        lines = [
            "load(\"@rules_cc//cc:defs.bzl\", \"cc_library\")",
            "",
            "package(default_visibility = [\"//visibility:public\"])",
        ]
        for target in targets:
            name, _, file = target.partition("=")
            module = "absl_" + (file or name)
            if _describe(repository_ctx, folder, module, cache) == None:
                continue  # Another version of Abseil may lack it; Bazel reports that if needed.
            libs = _closure(repository_ctx, folder, module, cache)
            lines += ["", "cc_library(", "    name = \"%s\"," % name]
            if libs:
                # Only libraries that are really called become dependencies of the binary.
                lines.append("    linkopts = [")
                for option in ["-Wl,--push-state,--as-needed"] + libs + ["-Wl,--pop-state"]:
                    lines.append("        \"%s\"," % option)
                lines.append("    ],")
            lines.append(")")
        repository_ctx.file("absl/%s/BUILD.bazel" % package, "\n".join(lines) + "\n")
    repository_ctx.file("WORKSPACE", "workspace(name = \"{}\")\n".format(repository_ctx.name))

_absl_repository = repository_rule(implementation = _absl_impl, local = True)

def repo():
    _absl_repository(name = "com_google_absl")
