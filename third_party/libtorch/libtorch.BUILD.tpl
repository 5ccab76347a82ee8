load("@rules_cc//cc:defs.bzl", "cc_library")

package(default_visibility = ["//visibility:public"])

# The shared libraries are not in `srcs`: Bazel would link copies in another folder, where they
# would not find each other, because they look beside themselves ($ORIGIN).
cc_library(
    name = "libtorch",
    hdrs = %{hdrs},
    # Code for CUDA streams checks this with #if: a LibTorch without CUDA has no c10/cuda.
    defines = ["GPIPE_TORCH_HAS_CUDA=%{has_cuda}"],
    includes = [
        "standard",  # first: it stands before a header that all others include
        "cccl",
        "cuda",
        "cuda_crt",
        "include",
        "include/torch/csrc/api/include",
        "nccl",
    ],
    linkopts = [
        "-L%{lib}",
        "-Wl,-rpath,%{lib}",
        # Registrations happen when a library is loaded, so none may be dropped as unused.
        "-Wl,--push-state,--no-as-needed",
        "-ltorch",
        "-ltorch_cpu",
        "-lc10",
        %{cuda_libs}
        "-Wl,--pop-state",
        "-pthread",
    ],
)
