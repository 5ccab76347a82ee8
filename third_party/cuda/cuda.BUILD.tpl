load("@rules_cc//cc:defs.bzl", "cc_library")

package(default_visibility = ["//visibility:public"])

cc_library(
    name = "cuda",
    # CCCL's headers are named as the standard library's (nv/target). They lie among the others before CUDA 13, in a
    # folder of their own since.
    hdrs = glob(
        [
            "include/*.h",
            "include/*.hpp",
            "include/cccl/cuda/**",
            "include/cccl/nv/**",
            "include/crt/**",
            "include/cuda/**",
            "include/nv/**",
        ],
        allow_empty = True,
    ),
    defines = ["GPIPE_HAS_CUDA_TOOLKIT=1"],
    includes = [
        "include",
        "include/cccl",
    ],
    # Not the shared one: LibTorch would run on the toolkit's runtime instead of its own, and, with GNU ld, be linked with
    # the NCCL that a toolkit's folder may have.
    deps = [":cudart_static"],
)

# For kernels of our own. LibTorch brings a shared runtime, perhaps of another minor version, such as 13.2 beside a
# toolkit 13.0; a static one does not get into its way, and both use the same context.
cc_library(
    name = "cudart_static",
    linkopts = [
        "-L%{lib}",
        "-lcudart_static",
        "-ldl",
        "-lrt",
        "-pthread",
    ],
)

filegroup(
    name = "nvcc",
    srcs = ["bin/nvcc"],
)
