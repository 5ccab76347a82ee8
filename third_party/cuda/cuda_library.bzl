"""cuda_library: CUDA kernels, compiled by the toolkit's nvcc where there is one."""

load("@local_cuda//:cuda.bzl", "CUDA_ARCHITECTURES", "CUDA_TOOLKIT")
load("@rules_cc//cc:defs.bzl", "cc_library")

ArchitecturesInfo = provider("The GPU architectures to compile for.", fields = ["numbers"])

def default_architectures(wanted):
    """The architectures in `wanted` (such as "80,90") that the toolkit's nvcc can compile for; all of `wanted` if it does not say which."""
    known = [number for number in wanted.split(",") if number in CUDA_ARCHITECTURES]
    return ",".join(known) or wanted

def _architectures_impl(ctx):
    numbers = [number.strip() for number in ctx.build_setting_value.split(",")]
    for number in numbers:
        if not number.rstrip("af").isdigit():
            fail("--%s=%s: give compute capabilities without the point, such as 80,90" % (ctx.label, ctx.build_setting_value))
    return ArchitecturesInfo(numbers = numbers)

# The flag --//third_party/cuda:architectures=80,90.
cuda_architectures = rule(
    implementation = _architectures_impl,
    build_setting = config.string(flag = True),
)

def _cuda_object_impl(ctx):
    output = ctx.actions.declare_file(ctx.label.name + ".o")
    numbers = ctx.attr._architectures[ArchitecturesInfo].numbers
    arguments = ctx.actions.args()
    # The C++ standard of kernels and of the headers that they share with C++ sources. It need not
    # be LibTorch's, because none of them includes a header of LibTorch. Every nvcc from 11 on knows
    # 17; 20 is known from 12 on.
    arguments.add_all(["-c", ctx.file.src, "-o", output, "-std=c++17", "-O2", "-I", "."])
    arguments.add_all(["-Xcompiler", "-fPIC", "-Xcompiler", "-Wall,-Wextra"])
    for number in numbers:
        arguments.add("-gencode=arch=compute_%s,code=sm_%s" % (number, number))
    # For architectures that are newer than all of these, the driver compiles this code.
    arguments.add("-gencode=arch=compute_%s,code=compute_%s" % (numbers[-1], numbers[-1]))
    ctx.actions.run(
        executable = CUDA_TOOLKIT + "/bin/nvcc",
        arguments = [arguments],
        inputs = depset([ctx.file.src] + ctx.files.hdrs),
        outputs = [output],
        mnemonic = "Nvcc",
        progress_message = "Compiling %s for %s" % (ctx.file.src.short_path, ", ".join(["sm_" + n for n in numbers])),
        # The host's compiler is found on PATH.
        use_default_shell_env = True,
    )
    return DefaultInfo(files = depset([output]))

_cuda_object = rule(
    implementation = _cuda_object_impl,
    attrs = {
        "src": attr.label(allow_single_file = [".cu"], mandatory = True),
        "hdrs": attr.label_list(allow_files = [".h"]),
        "_architectures": attr.label(default = Label("//third_party/cuda:architectures")),
    },
)

def cuda_library(name, srcs, hdrs, stub_srcs, deps = [], stub_deps = [], **kwargs):
    """A cc_library of CUDA kernels; where there is no toolkit, of `stub_srcs`.

    Kernels include their own headers (from the root of the workspace) and the CUDA runtime's, nothing else:
    nvcc need not understand LibTorch. Nor need the toolkit be of LibTorch's CUDA: kernels are compiled with its headers and
    linked with its static runtime, and LibTorch's shared one, in the same program, may be of another minor version.

    Args:
      name: of the library.
      srcs: .cu files.
      hdrs: C++ headers, which both sides implement.
      stub_srcs: .cc files that do the same as well as they can, or throw.
      deps: of the kernels.
      stub_deps: of the stub.
      **kwargs: of the cc_library.
    """
    if not CUDA_TOOLKIT:
        cc_library(name = name, srcs = stub_srcs, hdrs = hdrs, deps = stub_deps, **kwargs)
        return
    objects = []
    for src in srcs:
        object_name = name + "_" + src.replace(".cu", "").replace("/", "_")
        _cuda_object(
            name = object_name,
            testonly = kwargs.get("testonly", False),
            src = src,
            hdrs = hdrs,
        )
        objects.append(":" + object_name)
    cc_library(name = name, srcs = objects, hdrs = hdrs, deps = deps + [Label("//third_party:cudart_static")], **kwargs)
